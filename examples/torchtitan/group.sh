#!/bin/sh
# One replica group of torchtitan's fault tolerant trainer, restarted for as long as it ends badly:
#
#   TORCHFT_LIGHTHOUSE=http://head:29510 LIGHTKEEPER_MONITOR=http://head:8470 \
#       sh group.sh 0 2 --training.steps 1000          # group 0 of 2
#
# RANKS (2) ranks on this host. MASTER_ADDR (127.0.0.1), if groups are on several hosts: this one's
# name. MASTER_PORT (29600 + group): each group of a host has one of its own.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
export REPLICA_GROUP_ID="$1" REPLICA_GROUPS="$2"
shift 2
# the name by which torchtitan registers the group with the Lighthouse: it is what is evicted
export REPLICA_GROUP="torchtitan_ft_$REPLICA_GROUP_ID"
export LIGHTKEEPER_JOB="${LIGHTKEEPER_JOB:-torchtitan}"
exec sh "$here/../launch/group.sh" --nproc-per-node "${RANKS:-2}" \
    --master-addr "${MASTER_ADDR:-127.0.0.1}" --master-port "${MASTER_PORT:-$((29600 + REPLICA_GROUP_ID))}" \
    "$here/run.py" --module debugmodel --config fault_tolerant "$@"
