"""Showing results: progress, metrics, figures."""
