"""Runs whose ranks each took steps of their own: who was slow, and what that cost, by the rule by
which they waited for each other.
"""
