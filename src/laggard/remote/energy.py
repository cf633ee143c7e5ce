"""What a run's nodes drew, where they are metered: asked for after they were given back, and never
a reason to fail.
"""

from __future__ import annotations

from collections.abc import Sequence

from laggard.core.errors import LaggardError
from laggard.layers_services.machine import Machine
from laggard.run_folder.journal import Journal


def record_energy(
    journal: Journal, machines: Sequence[Machine], start_s: float, end_s: float
) -> None:
    """Put the joules of metered nodes into the record; a warning where the testbed does not tell
    them.

    Args:
        journal: of the run.
        machines: on which it ran.
        start_s: Unix time at which training began.
        end_s: Unix time at which it ended.
    """
    from laggard.layers_services.g5k.energy import measure_energy, metered

    if not metered(machines):
        return
    with journal.stage("energy", "as the nodes' power meters tell"):
        try:
            journal.update(energy=measure_energy(machines, start_s, end_s))
        except LaggardError as error:
            journal.update(warnings=(*journal.record.warnings, f"energy: {error}"))
