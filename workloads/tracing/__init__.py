"""The trace: spans of every phase of every step, and the state of every connection, streamed while
training runs.
"""
