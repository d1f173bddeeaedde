"""The loop: observe, decide, act, record. Only here do `decide` and `act` meet."""
