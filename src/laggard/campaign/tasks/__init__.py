"""Tasks: cells of a campaign that need no continuum, computed by processes of dask.distributed.

Read `cell_task.py` first, then `task_loop.py`. `pools.py` has the processes of this machine,
`remote_pools.py` those of machines over SSH and of OAR jobs. This folder imports nothing of the
other campaign modules.
"""
