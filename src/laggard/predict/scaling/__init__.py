"""Speeds by number of workers: recorded ones, and their figure."""
