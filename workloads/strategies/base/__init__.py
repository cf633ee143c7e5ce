"""Base classes and rules that several families of strategies share.

Read `strategy.py` first (protocols and training context), then `parameters.py` (base of each
strategy's section in `workload.yaml`) and `peer_connections.py` (messages between ranks). Nothing
here imports a family of strategies.
"""
