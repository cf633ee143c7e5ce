"""Traces of other tools as runs, and runs as what other tools read; one module or two per format
(docs/how_to/analyze_other_traces.md).
"""
