"""Import of other tools' traces as runs, and export of runs for other tools.

Read `registry.py` first: it lists the formats that can be read. Each format has a folder with a
`trace_format.py`. `import_run/` and `trace_json/` have the parts that readers share, `export/` the
writers, and `refused_inputs.py` the files that are known but not read.
This folder may import `tables/` of the analysis and the core.
"""
