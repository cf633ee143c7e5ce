"""Trainings in which workers have different blocks of one model, by a plan.

`plan_executor.py` executes one step of a plan on one rank.
"""
