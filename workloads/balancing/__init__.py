"""Batches shared out by speed: what a rank's steps cost, what allocation makes the slowest step
short, and its exchange.
"""
