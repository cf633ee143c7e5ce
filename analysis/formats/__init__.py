"""Import of other tools' traces as runs, and export of runs for other tools.

Read `registry.py` first: it lists the formats that can be read. Each format has a folder with a
`trace_format.py`. `import_run/` has the parts that all readers share, and `export/` the writers.
This folder may import `tables/` of the analysis and the core.
"""
