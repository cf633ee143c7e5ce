"""The Python environment of remote nodes: facts, wheels, preparation."""
