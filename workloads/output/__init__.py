"""Files that the processes of a training write."""
