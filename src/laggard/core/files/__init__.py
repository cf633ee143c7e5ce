"""Files that Laggard reads and writes, on the assumption that a stranger prepared the folder.

`output_files.py` is the only writer of output files, and `input_files.py` reads within limits.
"""
