"""Trainings on machines that may be revoked: lives of machines, and when such a training ends.

`lifetimes.py` estimates the survival of machines from observed lives, which `lifetimes_file.py`
reads; `expected_finish.py` has the expected end and the best checkpoints.
"""
