"""The experiments of Cheng & Boots (NIPS 2017), run again: `python -m benchmarks.paper`."""
