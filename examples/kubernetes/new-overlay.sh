#!/bin/sh
# Writes an overlay for a job of N replica groups, the gate included:
#
#   sh new-overlay.sh my-job 4 2        # 4 groups, at least 2 in a quorum (default 1)
#   kubectl apply -k my-job
#
# The folder is made beside base/ and group/. Edit what it wrote: image, arguments, GPUs.
set -eu
cd "$(dirname "$0")"
name=${1:?usage: new-overlay.sh NAME GROUPS [MIN_REPLICAS]}
groups=${2:?usage: new-overlay.sh NAME GROUPS [MIN_REPLICAS]}
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
