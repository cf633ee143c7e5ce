"""Runs on machines reached by SSH: Grid'5000 nodes or any others.

Read `run.py` first: it goes through all stages of one remote run. `testbeds/` reserves and
releases machines, and `agent/` is the program that runs on every node.

As part of the application, this package may import the core, every room, `scenario/`,
`run_folder/` and `supervision/`. Inside it, `agent/` does not import the modules of the
controller.
"""
