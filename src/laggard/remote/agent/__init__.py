"""Agent on a remote node: clocks, limits, processes and fidelity samples."""
