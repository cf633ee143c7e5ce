"""Sending less: encoders of gradients and of what models have moved, and the ways in which
strategies exchange what they make.

Every encoder but torch's own (`ddp_hooks.py`) takes a vector and gives one tensor to send, which
collectives and messages carry alike.
"""
