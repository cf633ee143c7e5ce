"""Command line of Laggard, in one module per group of commands.

Read `main.py` first. This folder imports every other part of the application; no part imports it.
"""
