"""Simulations of the strategies, by the rules of `core/rules/`.

`catalog.py` lists the strategies with their parameters. `lockstep.py` has those whose ranks take
the same steps, `server.py` those with a server, `neighbors.py` those that wait for neighbors, and
`groups.py` those that learn alone or in small groups.
"""
