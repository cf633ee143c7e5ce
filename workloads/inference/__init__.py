"""Inference: devices that answer requests, alone, with a server, or with neighbors."""
