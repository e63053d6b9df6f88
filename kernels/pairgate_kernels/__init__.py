"""Kernels of speculative decoding: one folder per operation, `reference.py` (torch) in each."""
