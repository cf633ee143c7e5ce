"""Files that the processes of a training write.

`worker_output.py` names all of them, and `decisions.py` appends one kind of line. This package
imports nothing else of Laggard.
"""
