"""Synthetic runs with known stragglers, for scoring the analysis."""
