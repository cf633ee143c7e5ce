"""Recommendation of machines: the cheapest way to train within a budget of time and cost."""
