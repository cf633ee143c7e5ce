"""Layers and services of a scenario, and the hosts that they become.

`model.py` is the place to start: it defines `layers_services.yaml` and `workflow.yaml`.
`compile.py` turns the layers into hosts. The folders then provide these hosts:

- `local/`: namespaces in a sandbox on this machine
- `ssh/` and `g5k/`: machines reached over SSH, nodes reserved on Grid'5000
- `e2clab/`: E2Clab's services, workflow and managers on either
- `environment/`: a Python environment on remote nodes

This room imports `laggard.core` and itself, never another room.
"""
