"""E2Clab's service classes, workflow plays and managers, run by E2Clab's own code.

Read `services.py` first, then `workflow.py` and `managers.py`, in the order in which a run uses
them. `program.py` lists for a plan what all of them would execute. This folder imports the model
and the compilation of this room and `local/provider.py`.
"""
