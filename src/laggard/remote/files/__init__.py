"""Files on their way: those that a workload names to the nodes, and checkpoints from them."""
