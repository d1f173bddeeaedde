#!/bin/sh
# Writes an overlay for a job of N replica groups, the gate included:
#
#   sh new-overlay.sh my-job 4 2        # 4 groups, at least 2 in a quorum (default 1)
#   sh new-overlay.sh my-job 4 2 my-values.env     # images, script, GPUs: see values.env
#   kubectl apply -k my-job
#
# The folder is made beside base/ and group/.
set -eu
name=${1:?usage: new-overlay.sh NAME GROUPS [MIN_REPLICAS [VALUES]]}
groups=${2:?usage: new-overlay.sh NAME GROUPS [MIN_REPLICAS [VALUES]]}
TRAIN_IMAGE='' KEEPER_IMAGE='' RANKS_PER_GROUP='' GPUS_PER_GROUP='' TRAIN=''
CPU='' MEMORY='' SHM='' NODE_LABEL='' CHECKPOINTS='' STORAGE_CLASS='' CHART=''
if [ -n "${4-}" ]; then
    . "$(realpath "$4")"
fi
cd "$(dirname "$0")"
least=${3:-1}
case $groups$least in
    *[!0-9]*) echo "new-overlay.sh: GROUPS and MIN_REPLICAS are whole numbers" >&2; exit 2 ;;
esac
if [ "$groups" -lt 1 ] || [ "$least" -lt 1 ] || [ "$least" -gt "$groups" ]; then
    echo "new-overlay.sh: expected 1 <= MIN_REPLICAS <= GROUPS" >&2
    exit 2
fi
if [ -e "$name" ]; then
    echo "new-overlay.sh: $name is there already" >&2
    exit 2
fi
for image in "$TRAIN_IMAGE" "$KEEPER_IMAGE"; do
    case ${image##*/} in
        '' | *:?*) ;;
        *) echo "new-overlay.sh: $image has no tag, expected NAME:TAG" >&2; exit 2 ;;
    esac
done
case $RANKS_PER_GROUP$GPUS_PER_GROUP in
    *[!0-9]*) echo "new-overlay.sh: RANKS_PER_GROUP and GPUS_PER_GROUP are whole numbers" >&2; exit 2 ;;
esac
case $NODE_LABEL in
    '' | *?=?*) ;;
    *) echo "new-overlay.sh: NODE_LABEL is NAME=VALUE" >&2; exit 2 ;;
esac

image() {  # NAME IMAGE: in place of what base/ and group/ say
    [ -z "$2" ] || printf '  - name: registry.example/%s\n    newName: %s\n    newTag: "%s"\n' \
        "$1" "${2%:*}" "${2##*:}"
}

job() {  # patches of each group's Job
    at=/spec/template/spec/containers/0
    if [ -n "$RANKS_PER_GROUP" ]; then
        printf '      - op: replace\n        path: %s/command/4\n' "$at"
        printf '        value: --nproc-per-node=%s\n' "$RANKS_PER_GROUP"
    fi
    if [ "$GPUS_PER_GROUP" = 0 ]; then
        printf '      - op: remove\n        path: %s/resources/limits/nvidia.com~1gpu\n' "$at"
    elif [ -n "$GPUS_PER_GROUP" ]; then
        printf '      - op: replace\n        path: %s/resources/limits/nvidia.com~1gpu\n' "$at"
        printf '        value: %s\n' "$GPUS_PER_GROUP"
    fi
    if [ -n "$CPU" ]; then
        printf '      - op: replace\n        path: %s/resources/requests/cpu\n' "$at"
        printf '        value: "%s"\n' "$CPU"
    fi
    if [ -n "$MEMORY" ]; then
        for bound in requests limits; do
            printf '      - op: replace\n        path: %s/resources/%s/memory\n' "$at" "$bound"
            printf '        value: %s\n' "$MEMORY"
        done
    fi
    if [ -n "$SHM" ]; then
        printf '      - op: replace\n        path: /spec/template/spec/volumes/2/emptyDir/sizeLimit\n'
        printf '        value: %s\n' "$SHM"
    fi
    if [ -n "$NODE_LABEL" ]; then
        printf '      - op: add\n        path: /spec/template/spec/nodeSelector\n'
        printf '        value: {"%s": "%s"}\n' "${NODE_LABEL%%=*}" "${NODE_LABEL#*=}"
    fi
    if [ -n "$CHECKPOINTS" ]; then
        printf '      - op: add\n        path: /spec/template/spec/volumes/-\n'
        printf '        value: {name: checkpoints, persistentVolumeClaim: {claimName: checkpoints}}\n'
        printf '      - op: add\n        path: %s/volumeMounts/-\n' "$at"
        printf '        value: {name: checkpoints, mountPath: /checkpoints}\n'
        if [ -z "$TRAIN" ]; then
            for word in --checkpoint-dir=/checkpoints --checkpoint-every=50 --resume; do
                printf '      - op: add\n        path: %s/command/-\n        value: %s\n' "$at" "$word"
            done
        fi
    fi
    if [ -n "$TRAIN" ]; then
        for _ in 9 8 7; do
            printf '      - op: remove\n        path: %s/command/7\n' "$at"
        done
        for word in $TRAIN; do
            printf '      - op: add\n        path: %s/command/-\n        value: "%s"\n' "$at" "$word"
        done
    fi
}

mkdir "$name"
{
    cat <<HEAD
# Written by new-overlay.sh: $groups replica groups, at least $least in a quorum.
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
HEAD
    [ -n "$CHART" ] || echo "  - ../base"
    n=0
    while [ "$n" -lt "$groups" ]; do
        echo "  - rg_$n"
        n=$((n + 1))
    done
    [ -z "$CHECKPOINTS" ] || echo "  - checkpoints.yaml"
    [ -n "$CHART" ] || cat <<TAIL
components:
  - ../gate
generatorOptions:
  disableNameSuffixHash: true
configMapGenerator:
  - name: fleet
    namespace: train
    behavior: merge
    literals:
      - MIN_REPLICAS=$least
      - LIGHTKEEPER_JOB=$name
  - name: fleet
    namespace: lightkeeper
    behavior: merge
    literals:
      - MIN_REPLICAS=$least
TAIL
    echo "patches:"
    [ -n "$CHART" ] || cat <<BUDGET
  - target:
      kind: PodDisruptionBudget
      name: ranks
    patch: |
      - op: replace
        path: /spec/minAvailable
        value: $((groups - 1))
BUDGET
    changes=$(job)
    if [ -n "$changes" ]; then
        printf '  - target:\n      kind: Job\n    patch: |\n%s\n' "$changes"
    fi
    if [ -n "$STORAGE_CLASS" ]; then
        printf '  - target:\n      kind: PersistentVolumeClaim\n    patch: |\n'
        printf '      - op: add\n        path: /spec/storageClassName\n        value: %s\n' "$STORAGE_CLASS"
    fi
    images=$(image train "$TRAIN_IMAGE"; image lightkeeper "$KEEPER_IMAGE")
    if [ -n "$images" ]; then
        printf 'images:\n%s\n' "$images"
    fi
} > "$name/kustomization.yaml"
[ -z "$CHECKPOINTS" ] || cat > "$name/checkpoints.yaml" <<CLAIM
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: checkpoints
  namespace: train
spec:
  accessModes: ["ReadWriteMany"]
  resources:
    requests:
      storage: $CHECKPOINTS
CLAIM
n=0
while [ "$n" -lt "$groups" ]; do
    mkdir "$name/rg_$n"
    cat > "$name/rg_$n/kustomization.yaml" <<GROUP
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
  - ../../group
nameSuffix: "-$n"
labels:
  - pairs:
      lightkeeper.dev/group-id: rg_$n
    includeTemplates: true
GROUP
    n=$((n + 1))
done
