"""Benchmarks: `python -m bench NAME`; ratios within one run stand beside absolute times."""
