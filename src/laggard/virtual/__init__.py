"""Trainings in virtual time: clients train for real, and what they take is computed.

Read `run_virtual.py` first. The clients of a round train one after another on one model, so that a
training may have thousands of them. How long each computes follows from measured steps on this
machine and its host's share of a core; messages take the planned links (`core/simulation`).
"""
