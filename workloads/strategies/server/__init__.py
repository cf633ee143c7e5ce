"""Strategies with a parameter server.

Read `update_rule.py` first: it has the pure rules by which the server applies gradients.
`push_pull.py` is the workers' side of all these strategies; the server itself is
`workloads/serving/parameter_server.py`. Of the other strategies, this folder imports only
`strategies/base/`.
"""
