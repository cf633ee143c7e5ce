"""Recording of Kineto traces from PyTorch programs that are not changed.

`run_traced.py` is Laggard's side. The other two modules run inside the traced program, whose
Python need not have Laggard: they import the standard library and torch only, and are found by
their file names, since `PYTHONPATH` begins with this folder.
"""
