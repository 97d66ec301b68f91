"""Fit a network to a trace or to benchmark tables."""
