"""Messages between the processes of a training, outside collectives.

ZeroMQ carries them over TCP on the emulated links, authenticated by CURVE. Read `endpoint.py`
first, then `frames.py` (format of a message). The package imports the core only; it imports torch
inside functions.
"""
