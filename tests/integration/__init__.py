"""Real fleets: Lighthouse, torchrun, sidecars, monitor. Minutes, not seconds."""
