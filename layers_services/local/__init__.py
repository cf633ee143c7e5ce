"""Continuum on one machine: a sandbox that the kernel cleans up, with a namespace per host.

Read `sandbox.py` first, then `namespaces.py`. `launch.py` starts the workers, `provider.py`
presents the hosts to EnOSlib, and `joining.py` enters a host from outside. This folder imports
`compile.py` of this room and `laggard.core`.
"""
