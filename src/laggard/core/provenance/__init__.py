"""Facts that determine a result: versions, machine properties, and the state of repositories.

`fingerprint.py` describes this machine and its packages, `git_repository.py` a repository. This
folder imports `laggard.core` only.
"""
