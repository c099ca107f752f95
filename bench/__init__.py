"""Benchmarks. `bench/fork.py` is the program; docs/reference/benchmarks.md says what it measures and how."""
