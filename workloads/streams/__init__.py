"""Training data that arrives task by task, and buffers of old samples (rehearsal).

Read `task_stream.py` first. Which sample is trained, kept or drawn at which step is a pure function
of seed and sizes, so that every rank knows it about all others without a message.
"""
