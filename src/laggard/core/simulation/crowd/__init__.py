"""Trainings of up to millions of workers, as arrays over workers instead of events.

`workers.py` has the classes of equal workers, and `absences.py` when they are away; read them
first. `server_rounds.py`, `collective_rounds.py` and `neighbor_rounds.py` have the strategies in
lockstep, by the rules of `core/rules/`. `served_workers.py` has all rules of a server, worker by
worker, and `independent.py` workers that wait for nobody. For few workers all of them agree with
the simulation event by event (`core/simulation/strategies/`).
"""
