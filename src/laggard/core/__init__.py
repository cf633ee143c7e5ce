"""Definitions that all parts of Laggard share.

Read `errors.py` first, then `run_schema.py` and `span_schema.py`, which define the run folder's
documents and tables. Scenario files rest on `yaml_source.py`, `units.py` and `hosts.py`. `clocks/`
compares the clocks of several machines. `rules/` says who waits for whom under each strategy,
`cost_model/` predicts the seconds of training steps, and `simulation/` plays whole trainings.
`virtual_time.py`, `emulated_drive.py`, `work_counter.py` and `linux.py` serve the emulation.

The core imports nothing of Laggard outside itself, and every other part may import it.
"""
