"""The Helm chart, rendered by real helm, beside what kustomize makes of the examples."""
