"""Messages between the processes of a training, outside collectives.

ZeroMQ carries them over TCP on the emulated links, authenticated by CURVE. Read `endpoint.py`
first, then `frames.py` (format of a message). The package may import the core, `specification/`
and `output/`; torch is imported inside functions only.
"""
