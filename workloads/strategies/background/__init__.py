"""Strategies whose models are exchanged by a background thread."""
