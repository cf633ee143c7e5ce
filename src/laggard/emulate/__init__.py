"""Emulation without training, for programs of the user."""
