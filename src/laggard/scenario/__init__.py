"""Scenario folder: its files, their checks, and the plan that follows from them."""
