"""The examples on a real Kubernetes, and what people and nodes do to it: `make kubernetes`."""
