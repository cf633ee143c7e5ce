"""Scenario folder: its files, their checks, and the plan that follows from them.

Read `load.py` first: `load_scenario` returns one immutable `Scenario`, or reports every problem.
`files.py` and `overrides.py` read the YAML files, `run_plan.py` describes a run, and
`json_schemas.py` and `scaffold.py` help the author of a scenario. This package may import the core
and the rooms.
"""
