"""Corrections of scenario files: what a message suggests, as edits that a program can apply.

`laggard.core.edits` has the edits. `model_problems.py` turns a model's errors into located problems
and tries every correction before it is suggested; `host_patterns.py` corrects host patterns.
"""
