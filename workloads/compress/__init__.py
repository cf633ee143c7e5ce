"""Compression: encoders of gradients and model changes, and exchanges of what they encode.

Read `codec.py` first. Every encoder but torch's own (`ddp_hooks.py`) turns a vector into one
tensor, which collectives and messages carry alike. `parameters.py` has the settings of `compress:`
and imports nothing heavy. The package may import the core and the packages below it, from
`specification/` to `tracing/`.
"""
