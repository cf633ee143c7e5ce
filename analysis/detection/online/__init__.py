"""Stragglers while the run goes on: told of one step after the other, it says who has become slow,
in what, since when, and when it is over.
"""
