"""Trace of a training: spans of every phase and the state of every connection, streamed live.

Read `recorder.py` first, then `stream.py` (file format) and `collect.py` (tables of the run
folder). The package may import the core, `specification/`, `output/`, `transport/`, `datasets/`
and `models/`.
"""
