"""Selection of the clients that take part in a round of a federated training; pure.

`selector.py` has the interface of all: results are reported, and candidates are selected from.
`simple_selection.py` has selection by chance and by speed, `oort.py` the one of Lai et al., OSDI
2021, and `utility_aware.py` Laggard's own. `failure_pauses.py` keeps clients away that failed.
"""
