"""Files that a scenario file names: traces, lives of machines, maps of clients, plans."""
