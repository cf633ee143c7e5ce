"""Grid'5000: plan, request, reserve, measure and release nodes through EnOSlib.

Read `plan.py` first: it turns `layers_services.yaml` into a `G5kPlan` (`request.py`) without
querying the testbed. `reserve.py` executes the plan and `release.py` ends its jobs. `api.py` makes
all requests. This folder imports `compile.py`, `machine.py`,
`machine_description.py` and `model.py` of this room.
"""
