"""Faults x Lighthouse up or down, with and without lightkeeper and its gate."""
