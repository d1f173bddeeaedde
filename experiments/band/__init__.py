"""Does a run with faults learn what a run without them learns? `make loss-band` draws both."""
