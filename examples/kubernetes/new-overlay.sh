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
  - ../base
HEAD
    n=0
    while [ "$n" -lt "$groups" ]; do
        echo "  - rg_$n"
        n=$((n + 1))
    done
    cat <<TAIL
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
patches:
  - target:
      kind: PodDisruptionBudget
      name: ranks
    patch: |
      - op: replace
        path: /spec/minAvailable
        value: $((groups - 1))
TAIL
    changes=$(job)
    if [ -n "$changes" ]; then
        printf '  - target:\n      kind: Job\n    patch: |\n%s\n' "$changes"
    fi
    images=$(image train "$TRAIN_IMAGE"; image lightkeeper "$KEEPER_IMAGE")
    if [ -n "$images" ]; then
        printf 'images:\n%s\n' "$images"
    fi
} > "$name/kustomization.yaml"
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
