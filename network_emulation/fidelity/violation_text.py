"""Text of a fidelity violation."""

from __future__ import annotations

from laggard.network_emulation.fidelity.monitor import FidelityViolation


def describe_violation(violation: FidelityViolation) -> str:
    """Return a violation as a sentence."""
    part = f"{100 * violation.size:.0f} %"
    machine = violation.where or "the machine"
    return {
        "emulator late": f"the link emulator sent {part} of the packets too late",
        "frames refused": f"the receivers' devices refused {part} of the packets",
        "rate exceeded": f"{violation.where} carried {part} more than its rate",
        "cpu starved": (
            f"{violation.where} waited {violation.size:.2f} s for its core, which others used"
        ),
        "share exceeded": f"{violation.where} computed {part} more than its share",
        "cpu stolen": f"the hypervisor took {part} of the time of {violation.where}",
        "machine suspended": f"{machine} was suspended for {violation.size:.1f} s",
        "clock stepped": f"the wall clock of {machine} jumped by {violation.size:+.1f} s",
        "event late": f"a timed event changed {violation.where} {violation.size:.1f} s too late",
    }[violation.kind]
