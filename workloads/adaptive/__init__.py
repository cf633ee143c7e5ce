"""How `adaptive` decides: from what ranks measure while they train, by pure functions."""
