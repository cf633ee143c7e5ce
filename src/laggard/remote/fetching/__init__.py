"""Files that come home from the nodes: checkpoints during a training, and all data after it."""
