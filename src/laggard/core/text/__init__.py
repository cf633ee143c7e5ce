"""Text for people: numbers and lists in words, aligned columns, and output to a terminal.

Read `terminal_output.py` first: everything that is printed passes through it. This folder imports
the core only.
"""
