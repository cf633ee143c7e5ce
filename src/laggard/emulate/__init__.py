"""Emulation without training, for programs of the user.

Read `emulation.py` first. `control_socket.py` connects it to the commands `laggard ssh`
(`host_shell.py`) and `laggard links` (`links_table.py`). This folder imports `run/`,
`run_folder/`, `scenario/`, the rooms `layers_services` and `network_emulation`, and
`laggard.core`.
"""
