#!/bin/sh
# One node of one replica group: torchrun on a host that the keeper admits, and again when it left.
#
#   REPLICA_GROUP=rg_0 TORCHFT_LIGHTHOUSE=http://head:29511 LIGHTKEEPER_MONITOR=http://head:8470 \
#       sh group.sh --standalone --nproc-per-node 8 -m lightkeeper.trainer.train --steps 1000
#
# Ends with 0 (finished), 75 (refused: start this group on another host), 143 (SIGTERM), or with
# torchrun's own status after five launches in a row that lasted less than a minute: another host
# may do better. docs/deploy.md says why torchrun restarts nothing itself.
set -u
grace_s=${GROUP_GRACE_S:-10} pause_s=${GROUP_PAUSE_S:-2} tries=${GROUP_TRIES:-5}
quick=0
child=

stop() {
    trap '' TERM INT
    if [ -n "$child" ]; then
        kill -TERM "$child" 2>/dev/null
        wait "$child"
    fi
    exit 143
}
trap stop TERM INT

while :; do
    began=$(date +%s)
    # `run` becomes torchrun: one process, which the signal reaches. A keeper that is away admits.
    lightkeeper run -- torchrun --max-restarts=0 --shutdown-timeout="$grace_s" "$@" &
    child=$!
    wait "$child"
    status=$?
    child=
    # Above 128: torchrun itself was killed, and its ranks may live on. They end with this
    # container, step or unit, and nothing may start beside them.
    if [ "$status" -eq 0 ] || [ "$status" -eq 75 ] || [ "$status" -gt 128 ]; then
        exit "$status"
    fi
    quick=$((quick + 1))
    if [ $(($(date +%s) - began)) -ge 60 ]; then
        quick=0
    fi
    if [ "$quick" -ge "$tries" ]; then
        exit "$status"
    fi
    sleep "$pause_s" &
    child=$!
    wait "$child"
    child=
done
