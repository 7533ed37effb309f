"""Secure aggregation: the SA1 protocol, free of I/O, clocks and global randomness."""
