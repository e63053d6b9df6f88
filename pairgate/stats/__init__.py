"""Statistics: arrays in, `Estimate` out, the random generator passed in. NumPy and SciPy only."""
