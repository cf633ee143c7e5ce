"""Fidelity: measured against requested values, before and during training."""
