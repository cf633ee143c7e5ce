"""Several jobs on one cluster: its file, traces of jobs, and their schedules.

Read `cluster_file.py` first, then `schedule_jobs.py`.
"""
