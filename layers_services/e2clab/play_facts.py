"""Detection of Ansible plays that do not use the facts that Ansible gathers about hosts.

Ansible gathers facts before every play by default. This takes longer than most tasks of a
workflow, and E2Clab repeats it for every play and stage. A play that cannot access facts gives the
same result without them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from laggard.layers_services.e2clab.play_tasks import iterate_texts

_TASK_LISTS = ("prepare", "launch", "finalize", "tasks", "pre_tasks", "post_tasks", "handlers")
_PLAY_KEYWORDS = frozenset(
    {"hosts", "depends_on", "name", "any_errors_fatal", "environment", "ignore_errors",
     "ignore_unreachable", "no_log",
     "order", "remote_user", "serial", "tags", "throttle", "vars", "become", "become_user"}
)  # fmt: skip
_TASK_KEYWORDS = frozenset(
    {"args", "async", "become", "become_user", "changed_when", "delay", "delegate_to",
     "environment", "failed_when",
     "ignore_errors", "loop", "loop_control", "name", "no_log", "notify", "poll", "register",
     "retries", "run_once",
     "tags", "throttle", "timeout", "until", "vars", "when", "with_items"}
)  # fmt: skip
# Modules that neither read facts nor load text from outside the play, as `template` does.
# A module that is not listed here counts as one that sees facts.
_BLIND_MODULES = frozenset(
    {"assert", "command", "copy", "debug", "fail", "fetch", "file", "find", "get_url", "git",
     "lineinfile", "pause",
     "ping", "pip", "raw", "script", "set_fact", "shell", "slurp", "stat", "synchronize",
     "tempfile", "unarchive",
     "wait_for", "wait_for_connection"}
)  # fmt: skip
_SEES_FACTS = re.compile(r"ansible_|hostvars|\bvars\b|lookup|query|\bq\(")


def can_see_facts(play: Mapping[str, object], *others: object) -> bool:
    """Return whether facts could change the result of a play; True if this is uncertain.

    Args:
        play: a play of `workflow.yaml`, with its tasks by stage or under `tasks`
        others: further values that may be substituted into the play's text
    """
    known = {*_PLAY_KEYWORDS, *_TASK_LISTS}
    if not known.issuperset(play):
        return True
    if any(_SEES_FACTS.search(text) for text in iterate_texts([play, *others])):
        return True
    return not all(_is_blind(task) for name in _TASK_LISTS for task in _to_sequence(play.get(name)))


def _is_blind(task: object) -> bool:
    if not isinstance(task, Mapping):
        return False
    modules = {str(key).removeprefix("ansible.builtin.") for key in task} - _TASK_KEYWORDS
    return modules <= _BLIND_MODULES


def _to_sequence(value: object) -> Sequence[object]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()
