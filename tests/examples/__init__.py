"""The recipes of examples/: rendered, checked, and run where a machine can."""
