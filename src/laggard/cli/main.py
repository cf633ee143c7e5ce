"""Command line of Laggard: the group of all commands.

Each command is a few lines around one function of another module, which is imported only when the
command runs.
"""

from __future__ import annotations

import logging

import click

from laggard import __version__
from laggard.cli.analysis_commands import analyze_trace, compare_runs, report_run, write_export
from laggard.cli.campaign_commands import evaluate_analysis, start_campaign, verify_machine
from laggard.cli.command_group import CommandGroup, Sections
from laggard.cli.emulate_commands import (
    emulate_scenario,
    open_shell,
    show_link_table,
    trace_program,
)
from laggard.cli.planning_commands import (
    print_model_plan,
    print_placement,
    print_recommendation,
)
from laggard.cli.predict_commands import (
    print_calibrated_share,
    print_prediction,
    print_schedules,
    print_server_knee,
    print_simulation,
)
from laggard.cli.reproduce_commands import reproduce_source
from laggard.cli.run_commands import print_runs, release_nodes, run_demo, run_scenario
from laggard.cli.scenario_commands import check_scenario, init_scenario, plan_scenario
from laggard.cli.stalls_command import print_stalls
from laggard.core.text.terminal_output import TerminalHandler

_NOISY_LOGGERS = {
    "grid5000": logging.ERROR,
    "stevedore": logging.CRITICAL,
    "urllib3": logging.ERROR,
}
"""Libraries that warn about requests that are retried, and about plug-ins that nothing here uses,
with the least level that is shown."""

EPILOG = (
    "Exit status: 0 success, 1 the run failed, 2 invalid input, 3 the emulation was out of"
    " tolerance, 130 interrupted."
)


@click.group(
    cls=CommandGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="laggard")
@click.option("-v", "--verbose", is_flag=True, help="Log the progress to standard error.")
def main(verbose: bool) -> None:
    """Train deep networks across an edge-fog-cloud continuum and find what slows them down."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, handlers=[TerminalHandler()]
    )
    if not verbose:
        for name, level in _NOISY_LOGGERS.items():
            logging.getLogger(name).setLevel(level)


_SECTIONS: Sections = {
    "Start here": (
        (run_demo, "laggard demo"),
        (init_scenario, "laggard init my-continuum"),
        (check_scenario, "laggard check my-continuum"),
        (plan_scenario, "laggard plan my-continuum --on g5k"),
        (verify_machine, "laggard verify"),
    ),
    "Run": (
        (run_scenario, "laggard run my-continuum --set workload.batch_size=64"),
        (start_campaign, "laggard campaign sweep.yaml"),
        (release_nodes, "laggard destroy"),
    ),
    "Know before you run": (
        (print_stalls, "laggard stalls my-continuum"),
        (print_prediction, "laggard predict my-continuum --workers edge=1..64"),
        (
            print_recommendation,
            "laggard recommend my-continuum --within 6h --prices g5k --workers edge=1..8",
        ),
        (print_simulation, "laggard simulate my-continuum --scale edge=1000000"),
        (print_schedules, "laggard schedule cluster.yaml --policy all"),
        (print_placement, "laggard place topology.txt --devices 4"),
        (print_model_plan, "laggard plan-model my-continuum --output plan.yaml"),
        (print_calibrated_share, "laggard calibrate my-continuum --step 120ms"),
        (print_server_knee, "laggard knee speeds.csv --workers 1..16"),
    ),
    "Emulate for your own programs": (
        (emulate_scenario, "laggard emulate my-continuum --for 10min"),
        (open_shell, "laggard ssh edge.trainer.1.1 -- python train.py"),
        (show_link_table, "laggard links"),
        (trace_program, "laggard trace torchrun --nproc-per-node 2 train.py"),
    ),
    "Analyze": (
        (report_run, "laggard report my-continuum"),
        (analyze_trace, "laggard analyze traces/ --strategy all"),
        (compare_runs, "laggard compare my-continuum quickstart"),
        (write_export, "laggard export my-continuum --format csv"),
        (reproduce_source, "laggard reproduce crate.zip"),
        (print_runs, "laggard runs"),
        (evaluate_analysis, "laggard evaluate --cases 300 --seed 7"),
    ),
}
main.add_sections(_SECTIONS)


if __name__ == "__main__":
    main()
