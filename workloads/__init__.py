"""What the workers run: models, data, the training loop, strategies and the tracing of every phase
of every step.
"""
