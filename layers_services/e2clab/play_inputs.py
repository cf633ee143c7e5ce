"""Files of this machine that the plays of `workflow.yaml` read, checked before anything starts.

E2Clab's second argument is a folder with these files, the artifacts. Plays name it as
`{{ artifacts_dir }}`, and in `prepare` and `launch` as `{{ working_dir }}` too.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from laggard.core.errors import Problem, ScenarioError
from laggard.core.yaml_source import KeyPath, YamlScalar, YamlSource, YamlValue
from laggard.layers_services.e2clab import workflow_env
from laggard.layers_services.e2clab.play_tasks import iterate_plays, iterate_tasks, iterate_texts

_SOURCE_KEYS = {
    "assemble": "src",
    "copy": "src",
    "import_tasks": "file",
    "include_tasks": "file",
    "include_vars": "file",
    "script": "cmd",
    "synchronize": "src",
    "template": "src",
    "unarchive": "src",
}
"""Modules that read a file of this machine, and the argument that names it."""

_NEEDED_VARIABLE = re.compile(r"\{\{\s*(env_\w+)\s*\}\}")
"""Variable of a set that stands alone, and so has no default."""
_THIS_MACHINE = frozenset({"localhost", "127.0.0.1"})
_WRITES_HERE = frozenset({"fetch", "ansible.builtin.fetch", "local_action"})
_VARIABLE = re.compile(r"\{\{\s*(artifacts_dir|working_dir|scenario_dir)\s*\}\}")


@dataclass(frozen=True)
class PlayInputs:
    """Inputs of the plays that the command line gives.

    Attributes:
        artifacts: absolute path of the folder with the plays' files, `{{ artifacts_dir }}`.
        app_conf: set of variables of `workflow_env.yaml` that the plays see; None for none.
    """

    artifacts: Path
    app_conf: str | None = None


@dataclass(frozen=True)
class _SourceFile:
    """File that a task reads: its place in the workflow, and its path as written."""

    key: KeyPath
    stage: str
    text: str


def find_input_problems(source: YamlSource, scenario: Path, inputs: PlayInputs) -> list[Problem]:
    """Return one problem for each input of the plays that does not exist.

    A file counts as missing only if that is certain. Its path must have no other variables than
    those of folders. Its task must not be conditional, and no task that writes on this machine may
    name the file.

    Args:
        source: source of `workflow.yaml`.
        scenario: folder of the scenario.
        inputs: what the command line gives the plays.
    """
    problems: list[Problem] = []
    if not inputs.artifacts.is_dir():
        state = "is not a folder" if inputs.artifacts.exists() else "does not exist"
        fix = "give the folder with the files of the plays, or omit --artifacts"
        rule = f"the folder of artifacts {state}"
        problems.append(Problem(str(inputs.artifacts), 0, 0, "", rule, fix))
    try:
        problems += _find_variable_problems(source, scenario / workflow_env.FILE, inputs.app_conf)
    except ScenarioError as error:
        problems.extend(error.problems)
    written = "\n".join(_list_written_here(source))
    for file in _list_source_files(source):
        problem = _check_file(source, file, scenario.absolute(), inputs.artifacts, written)
        problems += [] if problem is None else [problem]
    return problems


def _find_variable_problems(source: YamlSource, file: Path, app_conf: str | None) -> list[Problem]:
    """Return a problem if no set of variables is chosen, and plays need one.

    Raises:
        ScenarioError: the chosen set does not exist, or the file is not valid.
    """
    if app_conf is not None:
        workflow_env.variables_of(file, app_conf)
        return []
    sets = workflow_env.load_sets(file) if file.exists() else {}
    names = {f"env_{name}" for variables in sets.values() for name in variables}
    for each in iterate_tasks(source, ("launch", "finalize")):
        texts = "\n".join(iterate_texts(each.task))
        missing = names & set(_NEEDED_VARIABLE.findall(texts))
        if missing:
            rule = f"the variable is one of {workflow_env.FILE}, and no set of it is chosen"
            fix = f"choose one of its sets, such as --app-conf {next(iter(sets))}"
            return [source.locate_problem(each.key, rule, fix, value=min(missing))]
    return []


def _check_file(
    source: YamlSource, file: _SourceFile, scenario: Path, artifacts: Path, written: str
) -> Problem | None:
    folders = {"artifacts_dir": artifacts, "scenario_dir": scenario}
    if file.stage in {"prepare", "launch"}:
        folders["working_dir"] = artifacts
    path = _VARIABLE.sub(lambda match: str(folders.get(match[1], match[0])), file.text)
    name = Path(path).name
    if "{{" in path or "{%" in path or not name or name in written:
        return None
    if not Path(path).is_absolute():
        return _check_relative(source, file, path, folders)
    if Path(path).exists():
        return None
    folder = "the scenario's folder" if artifacts == scenario else str(artifacts)
    fix = f"put it into {folder}, or name the folder that has it with --artifacts"
    if not _VARIABLE.search(file.text):
        fix = "correct the path"
    return source.locate_problem(file.key, f"the play needs the file {path}, which is missing", fix)


def _check_relative(
    source: YamlSource, file: _SourceFile, path: str, folders: Mapping[str, Path]
) -> Problem:
    """Refuse a path that depends on the folder in which the command was started."""
    names = [name for name, folder in folders.items() if (folder / path).exists()]
    variable = names[0] if names else "artifacts_dir"
    better = f"{{{{ {variable} }}}}/{path}"
    fix = f'write "{better}"' + ("" if names else ", and put the file there")
    rule = "the path must not depend on the folder in which the command was started"
    return source.locate_problem(file.key, rule, fix)


def _list_source_files(source: YamlSource) -> Iterator[_SourceFile]:
    for i, play in iterate_plays(source):
        files = play.get("vars_files")
        for j, file in enumerate(files if isinstance(files, list) else []):
            if isinstance(file, str):
                yield _SourceFile((i, "vars_files", j), "vars_files", file)
    for each in iterate_tasks(source):
        if any("when" in part or part.get("ignore_errors") for part in each.chain):
            continue
        for module, value in each.task.items():
            argument = _SOURCE_KEYS.get(str(module).removeprefix("ansible.builtin."))
            if argument is not None:
                key = (*each.key, str(module))
                yield from _list_argument_files(key, each.stage, argument, value)


def _list_written_here(source: YamlSource) -> Iterator[str]:
    """Yield the texts of all tasks that run on this machine, or fetch files to it."""
    for each in iterate_tasks(source):
        is_here = each.target in _THIS_MACHINE or any(
            part.get("connection") == "local" for part in each.chain
        )
        if is_here or not _WRITES_HERE.isdisjoint(each.task):
            yield from iterate_texts(each.task)


def _list_argument_files(
    key: KeyPath, stage: str, argument: str, value: YamlValue
) -> Iterator[_SourceFile]:
    if isinstance(value, dict):
        text = value.get(argument)
        if isinstance(text, str) and not _may_be_remote(argument, value):
            yield _SourceFile((*key, argument), stage, _first_word(text, argument))
    elif isinstance(value, str) and argument != "src":
        yield _SourceFile(key, stage, _first_word(value, argument))
    elif isinstance(value, str):
        words = dict(word.split("=", 1) for word in _split(value) if "=" in word)
        if "src" in words and not _may_be_remote(argument, words):
            yield _SourceFile(key, stage, words["src"])


def _may_be_remote(
    argument: str, values: Mapping[YamlScalar, YamlValue] | Mapping[str, str]
) -> bool:
    """Return whether the source may be on the host: `remote_src`, or `mode: pull`."""
    if argument != "src":
        return False
    return bool(values.get("remote_src")) or values.get("mode") == "pull"


def _first_word(text: str, argument: str) -> str:
    """Return the program of a command line; other arguments are a path as a whole."""
    return (_split(text) or [text])[0] if argument == "cmd" else text


def _split(text: str) -> list[str]:
    """Split a command line into words; a template is one word."""
    joined = re.sub(r"\{\{\s*(\w+)\s*\}\}", r"{{\1}}", text)
    with suppress(ValueError):
        return shlex.split(joined)
    return []
