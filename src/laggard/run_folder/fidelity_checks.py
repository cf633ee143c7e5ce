"""Fidelity checks of a run, as text and as a file of the run folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from laggard.core.errors import FidelityError
from laggard.core.run_schema import FidelityCheck


def require_fidelity(folder: Path, checks: Sequence[FidelityCheck]) -> None:
    """Write `fidelity.json`, and require every check to pass.

    Raises:
        FidelityError: a check failed.
    """
    document = [check.model_dump(mode="json") for check in checks]
    (folder / "fidelity.json").write_text(json.dumps(document, indent=1) + "\n")
    failed = [check for check in checks if not check.ok]
    if failed:
        text = "\n".join(f"  {_format_check(check)}" for check in failed)
        raise FidelityError(
            f"{len(failed)} of {len(checks)} promises of the emulation are not kept:\n{text}"
        )


def _format_check(check: FidelityCheck) -> str:
    location = f"{check.src} -> {check.dst}" if check.dst else check.src
    detail = f" ({check.detail})" if check.detail else ""
    return (
        f"{check.kind} {location}: asked {check.requested:.4g} {check.unit}, measured"
        f" {check.measured:.4g}, tolerance {check.tolerance:.2g}{detail}"
    )
