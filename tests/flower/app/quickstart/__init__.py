"""Flower app of the tests: federated logistic regression with NumPy."""
