#!/bin/sh
# One replica group, as people start it: until it has finished, with the keeper asked each time.
#   launch.sh NPROC PORT SCRIPT [ARGS ...]
nproc=$1 port=$2
shift 2
until lightkeeper run -- torchrun --nnodes=1 --nproc-per-node="$nproc" \
    --master-addr=127.0.0.1 --master-port="$port" "$@"; do
    echo "launch.sh: torchrun ended with $?"
    sleep 1
done
echo "launch.sh: finished"
