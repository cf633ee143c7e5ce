"""Agent on a remote node: clocks, limits, processes and fidelity samples.

Read `messages.py` first for the protocol with the controller, then `main.py`. The package may
import the core, `layers_services/`, `network_emulation/`, `workloads/` and `supervision/`, but no
module of the controller outside this folder.
"""
