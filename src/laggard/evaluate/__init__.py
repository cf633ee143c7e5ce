"""Evaluation of the analysis against runs with known stragglers."""
