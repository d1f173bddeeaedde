/* Native threads that take the GIL and leave again, without end: each time Python lists a new thread. */
#include <Python.h>
#include <pthread.h>

static volatile int over = 0;

static void *come_and_go(void *unused) {
    while (!over) PyGILState_Release(PyGILState_Ensure());
    return unused;
}

void begin(int threads) {
    pthread_t thread;
    while (threads--) pthread_create(&thread, NULL, come_and_go, NULL);
}

void end(void) { over = 1; }
