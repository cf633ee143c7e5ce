"""Training of deep networks across an edge-fog-cloud continuum, and detection of stragglers.

Read `ARCHITECTURE.md` first. This package is the application: it composes the rooms `core`,
`layers_services`, `network_emulation`, `workloads` and `analysis`, which import only the core and
themselves.
"""

__version__ = "0.1.0"
