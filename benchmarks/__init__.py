"""Benchmarks: each prints the numbers that the README and the docs quote, with machine and seeds."""
