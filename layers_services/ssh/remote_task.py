"""One Ansible task on many nodes at once, and the answer of every node.

Tasks are `raw`: no module is copied, and the node needs no Python for Ansible. Five such tasks
take as long as one module task, so callers combine all commands for a node into one.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from laggard.core.errors import DeploymentError
from laggard.core.node_values import escape_lines
from laggard.layers_services.ssh.host_keys import explain_refusal

if TYPE_CHECKING:
    from enoslib import Roles

_MOST_SHOWN = 300
_SSH_TAKES_LEAVE = re.compile(r"(Shared c|C)onnection to \S+ closed\.")


def run_on_nodes(roles: Roles, commands: Mapping[str, str], purpose: str) -> Mapping[str, str]:
    """Run one shell command per node, on all nodes at once.

    Args:
        roles: EnOSlib's roles, with all nodes
        commands: command by node name (its alias); it is passed to the login shell unchanged, so
            quote external values
        purpose: purpose of the command for error messages, such as `querying node facts`

    Returns:
        Output of each node, standard output and error together, with plain line ends.

    Raises:
        DeploymentError: some nodes could not be reached, or their commands failed; the message
            names all of them with their output
    """
    from ansible.errors import AnsibleError
    from ansible.utils.unsafe_proxy import wrap_var
    from enoslib import actions
    from enoslib.errors import EnosError

    nodes = {str(node.alias): node for node in roles.all()}
    # Marked as unsafe, in Ansible's terms, so that braces in a command are not a template.
    variables = {
        "laggard_commands": {name: wrap_var(command) for name, command in commands.items()}
    }
    play = actions(
        roles=[nodes[name] for name in commands], extra_vars=variables, on_error_continue=True
    )
    try:
        with _enter_workspace(), play:
            play.raw("{{ laggard_commands[inventory_hostname] }}", task_name=purpose)
    except (EnosError, AnsibleError) as error:
        raise DeploymentError(f"{purpose}: Ansible failed to run: {error!r}") from error
    answers = {
        str(result.host): (str(result.status), dict(result.payload)) for result in play.results
    }
    failed = {name: _format_failure(*answers.get(name, ("NO ANSWER", {}))) for name in commands}
    said = [f"  {name}: {reason}" for name, reason in failed.items() if reason is not None]
    if said:
        fix = "check that `ssh` can connect with the same user, key and gateway"
        hint = (
            f"\n{fix}"
            if any(answers.get(name, ("", {}))[0] == "UNREACHABLE" for name in commands)
            else ""
        )
        raise DeploymentError(
            f"{purpose} failed on {len(said)} of {len(commands)} nodes:\n" + "\n".join(said) + hint
        )
    return {name: _format_payload(answers[name][1]) for name in commands}


def _format_failure(status: str, payload: Mapping[str, object]) -> str | None:
    if status == "OK":
        return None
    if status == "UNREACHABLE":
        said = str(payload.get("msg", ""))
        if refusal := explain_refusal(said):
            return f"cannot be reached: {refusal}"
        reason = said.strip().splitlines() or ["no answer"]
        return f"cannot be reached: {_shorten_text(reason[-1])}"
    printed = _format_payload(payload).strip() or str(payload.get("msg", ""))
    return f"{status.lower()}, exit status {payload.get('rc', 'unknown')}: {_shorten_text(printed)}"


def _format_payload(payload: Mapping[str, object]) -> str:
    both = "\n".join(str(payload[key]) for key in ("stdout", "stderr") if payload.get(key))
    return "\n".join(line for line in both.splitlines() if not _SSH_TAKES_LEAVE.fullmatch(line))


def _shorten_text(text: str) -> str:
    """Return the end of a text, where the reason usually is, on one line."""
    line = " | ".join(part.strip() for part in text.splitlines() if part.strip())
    line = escape_lines(line[-10 * _MOST_SHOWN :])
    return line if len(line) <= _MOST_SHOWN else f"...{line[-_MOST_SHOWN:]}"


@contextmanager
def _enter_workspace() -> Iterator[Path]:
    """Change to a writable folder while EnOSlib runs, because it writes its playbooks there."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="laggard-ansible-") as name:
        os.chdir(name)
        try:
            yield Path(name)
        finally:
            os.chdir(before)
