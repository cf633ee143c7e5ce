"""Trainings that something ended, and that go on with their last checkpoint in a run of their own.

Read `resume.py` first.
"""
