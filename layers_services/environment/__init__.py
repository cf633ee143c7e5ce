"""Python environment of remote nodes: node facts, wheels and their installation.

Read `prepare.py` first. `node_facts.py` and `gpus.py` query the nodes, `resolve.py` finds the
versions for them, `wheel_plan.py` and `wheels.py` download wheels, `expected_platforms.py` does so
before nodes are reserved, `own_wheel.py` packs Laggard itself, and `install_on_node.py` runs on the
nodes. This folder imports `machine.py` and `ssh/` of this room.
"""
