"""Process of the parameter server.

`parameter_server.py` serves a training by the strategy's rule, and `model_keeper.py` has the model.
"""
