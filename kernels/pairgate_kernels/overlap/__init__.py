"""Overlap of the target's and the draft's law at a position."""
