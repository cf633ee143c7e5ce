"""Tasks: cells of a campaign that need no continuum, computed by processes of dask.distributed.

Read `task.py` first, then `task_loop.py`. `pools.py` has the processes: those of this machine, of
machines over SSH, or of OAR jobs. This folder imports nothing of the other campaign modules.
"""
