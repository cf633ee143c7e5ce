"""Strategies: rules that turn the updates of all workers into one model.

Read `base/strategy.py` first: it has the training context that a strategy receives and the
protocols that it implements. `registry.py` lists all strategies. The folders hold the families:

- `collective/`: lockstep, with collectives
- `server/`: with a parameter server
- `peer/`: models averaged with other ranks during a step
- `background/`: models exchanged by a background thread
- `base/`: code that the families share

A strategy may import `laggard.core` and the folders of `workloads/` that
`tests/test_architecture.py` lists before it, but no other room. Its module imports torch and other
heavy packages inside functions only, because every command reads the parameters.
"""
