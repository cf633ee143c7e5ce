"""Commands about the origin of results: `reproduce`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from laggard.cli.error_handling import handle_errors, keep_own_status
from laggard.cli.options import json_option, runs_option
from laggard.core.text.terminal_output import print_text


@click.command("reproduce")
@click.argument("source", metavar="RUN|CAMPAIGN|CRATE")
@click.argument("extra", metavar="[-- OPTIONS OF RUN]", nargs=-1)
@click.option(
    "--trust", is_flag=True, help="Let programs of a crate or foreign folder run with your rights."
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0, max=100),
    default=5.0,
    show_default=True,
    metavar="PERCENT",
    help="Difference in time that two runs of one setup may have.",
)
@runs_option
@json_option
@keep_own_status
@handle_errors
def reproduce_source(
    source: str, extra: tuple[str, ...], trust: bool, tolerance: float, runs: Path, as_json: bool
) -> int:
    """Run a run, a campaign or a crate again, and report what agrees.

    RUN is a run folder, a run's id or its beginning, or the name of a scenario, which selects its
    latest run. CAMPAIGN is a campaign's folder or name. CRATE is what `laggard export --crate`
    wrote, a folder or a zip file. Options after -- go to `laggard run`, such as `-- --on g5k`.

    Differences of versions, commits, hardware and backends come first. Losses of `allreduce` on
    the same hosts must be equal bit for bit. Everything else is compared by a test, whose power is
    reported. The exit status is 0 if the runs agree, and 1 if they do not.
    """
    from laggard.reproduce.reproduce_source import reproduce
    from laggard.reproduce.reproduction_report import format_run, judge_reproduction
    from laggard.reproduce.run_again import AgainOptions

    options = AgainOptions(runs, trusted=trust, tolerance=tolerance / 100, extra=extra)
    done = reproduce(source, options, lambda run: None if as_json else print_text(format_run(run)))
    result = judge_reproduction(done, options.tolerance)
    print_text(json.dumps(result.to_document(), indent=2) if as_json else result.text())
    return 0 if result.agrees else 1
