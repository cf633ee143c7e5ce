"""Runners that keep what consecutive cells of a campaign need: machines, or imported modules.

`open_runner.py` chooses one. `reserved_cells.py` keeps a reservation, by `reservation_rules.py`;
`warm_process.py` forks runs on this machine. This folder imports `campaign/`, which does not import
it: the command passes a runner to the campaign.
"""
