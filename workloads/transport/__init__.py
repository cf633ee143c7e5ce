"""Messages between the processes of a training outside collectives: ZeroMQ over TCP on the emulated
links, authenticated by CURVE.
"""
