"""Fidelity of the emulation: measured against requested values, before and during training.

Before training, `verify_links.py` checks links with the probes in `probes/` (`compute/measure.py`
and `storage/measure.py` check hosts). During training, `monitor.py` judges a sample per second
from `sampling.py`. `live_links.py` and `prober.py` measure links for users of a running continuum.
`quietness.py` measures the machine itself, without any emulation. Modules here import the core,
the room's root modules, `compute/` and `links/`.
"""
