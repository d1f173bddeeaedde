"""Tests of lightkeeper: sentences on a fake timeline, and a few real fleets."""
