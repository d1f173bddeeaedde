"""Tests of the witnesses of a host."""
