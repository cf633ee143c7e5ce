"""Fidelity checks of a run, as text and as a file of the run folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from laggard.core.errors import FidelityError
from laggard.core.files.input_files import read_json
from laggard.core.files.output_files import write_json
from laggard.core.run_schema import FidelityCheck

FIDELITY_FILE = "fidelity.json"


FidelityPolicy = Literal["require", "record"]
"""Effect of a failed check before training.

`require` ends the run. `record` lets it train, and ends it as unfaithful afterwards.
"""


def record_fidelity(folder: Path, checks: Sequence[FidelityCheck], policy: FidelityPolicy) -> None:
    """Write `fidelity.json`, and apply the policy.

    Raises:
        FidelityError: a check failed, and the policy is `require`.
    """
    document = [check.model_dump(mode="json") for check in checks]
    write_json(folder / FIDELITY_FILE, document)
    if policy == "require":
        _require_all(checks)


def require_recorded_fidelity(folder: Path) -> None:
    """Require that every check of a run's `fidelity.json` has passed.

    Raises:
        FidelityError: a check failed.
    """
    _require_all(load_fidelity(folder))


def load_fidelity(folder: Path) -> tuple[FidelityCheck, ...]:
    """Read the fidelity checks of a run; there are none if it ended before they were made."""
    path = folder / FIDELITY_FILE
    if not path.exists():
        return ()
    return TypeAdapter(tuple[FidelityCheck, ...]).validate_python(read_json(path))


def _require_all(checks: Sequence[FidelityCheck]) -> None:
    failed = [check for check in checks if not check.ok]
    if failed:
        text = "\n".join(f"  {_format_check(check)}" for check in failed)
        raise FidelityError(
            f"{len(failed)} of {len(checks)} fidelity checks failed, so the emulation is not within"
            " its tolerances — run again while no other program uses the machine, or reduce the"
            f" scenario's rates or CPU shares:\n{text}"
        )


def _format_check(check: FidelityCheck) -> str:
    location = f"{check.src} -> {check.dst}" if check.dst else check.src
    detail = f" ({check.detail})" if check.detail else ""
    return (
        f"{check.kind} {location}: requested {check.requested:.4g} {check.unit}, measured"
        f" {check.measured:.4g}, tolerance {check.tolerance:.2g}{detail}"
    )
