"""Rules of the strategies, one pure module each: who may go on, who waits for whom, who meets whom.

The workers run these rules, and the simulation runs the same ones. `graph.py` names neighbors,
`synchronization.py` the steps in which all ranks synchronize, `server_rule.py` what a server
answers, and `wait_rule.py` the steps of others that a step waits for. This folder imports only the
schemas of Laggard.
"""
