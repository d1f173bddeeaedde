"""The loop: look, decide, act, write down. Here alone what decides and what acts meet."""
