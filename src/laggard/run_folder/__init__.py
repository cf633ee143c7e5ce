"""Run folder: the record of a run, its tables, analysis and exports."""
