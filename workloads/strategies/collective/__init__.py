"""Strategies whose ranks take the same steps and communicate by collectives.

Read `allreduce.py` first, then `local_sgd.py`. Of the other strategies, this folder imports only
`strategies/base/`.
"""
