"""Hybrid-parallel plans of one model on unequal devices.

`planning_problem.py` has what is planned: the blocks of a model, devices and links; read it first.
`placements.py` has the choices for a block, and a plan. `step_tasks.py` turns a plan into the tasks
of a step. `baselines.py` and `local_search.py` find plans.
"""
