"""What measures emulated links: echoes for the round trip, a stream for the rate, datagrams for the
loss.

One process has both ends of every probe: a socket made inside a host's namespace stays there,
wherever its process goes on. So nothing has to be started on hosts, and both ends read one clock.
"""
