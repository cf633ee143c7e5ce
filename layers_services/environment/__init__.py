"""Python environment of remote nodes: node facts, wheels and their installation.

Read `prepare.py` first. `node_facts.py` and `gpus.py` query the nodes, `wheel_plan.py` and
`wheels.py` choose and download wheels, `own_wheel.py` packs Laggard itself, and
`install_on_node.py` runs on the nodes. This folder imports `machine.py` and `ssh/` of this room.
"""
