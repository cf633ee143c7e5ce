"""Run on machines reached by SSH: Grid'5000 nodes or any others."""
