"""Testbeds of real machines: planning, reservation, description, metering and release.

Read `remote_testbed.py` first: it defines the interface. The package may import the core,
`layers_services/` (inside functions, since EnOSlib is slow to import), `run_folder/` and
`scenario/`.
"""
