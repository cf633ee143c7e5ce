"""Rounds of a verification: one emulation in a new process, between two quietness measurements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from laggard.campaign.run_subprocess import run_in_subprocess
from laggard.core.errors import InputError
from laggard.core.run_schema import FidelityCheck
from laggard.network_emulation.compute.cpu_plan import usable_cores
from laggard.network_emulation.fidelity.quietness import measure_quietness
from laggard.run_folder.fidelity_checks import load_fidelity
from laggard.scenario.load import load_scenario
from laggard.verify.verification import VerificationRound

SCENARIO = Path(str(files("laggard.experiments") / "verification"))
EMULATED_S = 12.0
"""Duration of each round in virtual seconds; the scenario's events are over after 10."""


@dataclass(frozen=True)
class VerificationOptions:
    """Options of a verification.

    Attributes:
        scenario: folder of the scenario to start
        runs: folder of the run folders
        links: link emulation: `auto`, `netem` or `userspace`
        rounds: number of quiet rounds after which the verification ends
        most_rounds: maximum number of rounds, quiet or not
    """

    scenario: Path
    runs: Path
    links: str = "auto"
    rounds: int = 3
    most_rounds: int = 6


def run_rounds(options: VerificationOptions) -> Iterator[VerificationRound]:
    """Yield rounds until enough of them were quiet.

    Raises:
        InputError: the scenario or the folder of the runs cannot be used
        KeyboardInterrupt: a signal ended the verification
    """
    # A mistake in the scenario is told before anything is measured.
    load_scenario(options.scenario, training=False)
    quiet = 0
    for _ in range(options.most_rounds):
        done = _run_round(options)
        yield done
        quiet += done.is_quiet
        if quiet >= options.rounds:
            return


def _run_round(options: VerificationOptions) -> VerificationRound:
    cores = usable_cores()
    before = measure_quietness(cores)
    # With `record`, a failed check does not end the emulation: it is a result of the verification.
    command = ("emulate", "--for", f"{EMULATED_S:g}s", "--fidelity", "record")
    ended = run_in_subprocess(
        options.scenario,
        (),
        options.runs,
        command=(*command, "--links", options.links),
        capture_errors=True,
    )
    result = ended.result or {}
    if ended.status == InputError.exit_status:
        # No other round can succeed, and the machine has not been measured.
        raise InputError(str(result.get("error") or ended.errors.strip()))
    after = measure_quietness(cores)
    folder = Path(str(result.get("folder", "")))
    checks: tuple[FidelityCheck, ...] = load_fidelity(folder) if "folder" in result else ()
    error = "" if checks else str(result.get("error") or ended.errors.strip()[-400:])
    late_ms = load_event_lateness_ms(folder) if checks else ()
    return VerificationRound(before, after, checks, late_ms, error)


def load_event_lateness_ms(folder: Path) -> tuple[float, ...]:
    """Return the delay in milliseconds from each event's requested time to its effect."""
    import pyarrow.parquet as pq

    path = folder / "events.parquet"
    rows = pq.read_table(path).to_pylist() if path.exists() else []
    return tuple(1000 * (row["effective_s"] - row["requested_s"]) for row in rows)
