"""Validation of a parsed file by a model, with located problems and corrections that were tried.

A correction is suggested only if the file, with its edits applied, has fewer errors. So no advice
leads to another error of the same file.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import TYPE_CHECKING, TypeVar

from laggard.core.corrections.broken_rules import CORRECTION, ERROR_SUBKEY
from laggard.core.corrections.model_fields import (
    find_models_at,
    list_examples_at,
    list_field_names,
    list_places,
)
from laggard.core.corrections.pydantic_words import describe_rule, propose_values, show_value
from laggard.core.edits import (
    Correction,
    Edit,
    KeyPath,
    YamlValue,
    apply_edits,
    remove_key,
    rename_key,
    write_value,
)
from laggard.core.errors import Problem, ScenarioError
from laggard.core.yaml_source import YamlSource, format_key_value

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails

MAX_TRIALS = 200
"""Most corrections of one file that are tried. Later problems get their first one, untried."""

_MAX_TRIED_ERRORS = 10_000
"""Most errors that all trials of a file may list together; a trial lists most of the file's."""

_SEE_TEMPLATE = "compare it with the same file of a folder that `laggard init` writes"
_AUTHORED = ("value_error", "missing_hosts")
"""Types of errors with a message of Laggard's models, "rule — fix"."""
_WRITE = re.compile(r'write (?:for example )?(?:"([^"]*)"|([^\s;,]+))')
_SUCH_AS = re.compile(r"(.+), such as (\S+)", re.DOTALL)

Model = TypeVar("Model", bound="BaseModel")


def validate_model(source: YamlSource, model: type[Model], value: YamlValue = None) -> Model:
    """Validate the source's value, or `value` if given, as an instance of `model`.

    Raises:
        ScenarioError: the model reports errors; each becomes a located problem.
    """
    from pydantic import ValidationError

    written = source.value if value is None else value
    try:
        return model.model_validate(written)
    except ValidationError as error:
        trials = _Trials(model, written, error.errors(include_url=False))
        findings = list(_list_findings(source, model, error))
        raise ScenarioError(tuple(_build_problems(source, findings, trials))) from error


@dataclass(frozen=True)
class _Finding:
    """Error of a model, in the words of scenario files.

    Attributes:
        key: key path of the problem.
        rule: the rule that the value breaks.
        proposals: corrections, the best first.
        shown: value in the message.
        error: type and location of the error.
        missing: key path of the missing key; None for another problem.
    """

    key: KeyPath
    rule: str
    proposals: tuple[Correction, ...]
    shown: str
    error: tuple[str, tuple[str | int, ...]] = ("", ())
    missing: KeyPath | None = None


class _Trials:
    """Trials of corrections on one file."""

    def __init__(
        self, model: type[BaseModel], value: YamlValue, errors: Sequence[ErrorDetails]
    ) -> None:
        self._model = model
        self._value = value
        self._errors = errors
        self._left = min(MAX_TRIALS, _MAX_TRIED_ERRORS // max(1, len(errors)))

    def choose(self, finding: _Finding) -> Correction:
        """Return the first proposal that removes an error of the file, and adds none.

        Other errors of the file may hide that a correction is right. Then the first proposal is
        returned after which the file does not have more errors, and as the last resort a text.
        """
        harmless: Correction | None = None
        for proposal in finding.proposals:
            if self._left <= 0:
                return proposal
            errors = self._list_errors(proposal)
            if errors is None or finding.error in {(each["type"], each["loc"]) for each in errors}:
                continue
            completed = self._complete(proposal, errors)
            if completed is not None:
                return completed
            if len(errors) == len(self._errors) and harmless is None:
                harmless = proposal
        texts = (proposal for proposal in finding.proposals if not proposal.edits)
        return harmless or next(texts, Correction(_SEE_TEMPLATE))

    def _complete(self, proposal: Correction, errors: Sequence[ErrorDetails]) -> Correction | None:
        """Return the proposal if it removes an error, with what it makes necessary."""
        before = len(self._errors)
        if len(errors) < before:
            return proposal
        known = {(each["type"], each["loc"]) for each in self._errors}
        new = [each for each in errors if (each["type"], each["loc"]) not in known]
        if len(new) != 1 or CORRECTION not in new[0].get("ctx", {}):
            return None
        needed = _get_correction(new[0], tuple(new[0]["loc"]))
        whole = Correction(f"{proposal.text}, and {needed.text}", (*proposal.edits, *needed.edits))
        left = self._list_errors(whole)
        return whole if left is not None and len(left) < before else None

    def _list_errors(self, proposal: Correction) -> Sequence[ErrorDetails] | None:
        """Return the errors of the corrected file; None if the edits cannot be applied."""
        from pydantic import ValidationError

        if not proposal.edits:
            return None
        self._left -= 1
        try:
            self._model.model_validate(apply_edits(self._value, proposal.edits))
        except ValidationError as error:
            return error.errors(include_url=False)
        except LookupError:
            return None
        return ()


def _get_correction(details: ErrorDetails, parent: KeyPath) -> Correction:
    """Return the correction of a validator, whose edits are relative to the validated value."""
    advice: Correction = details["ctx"][CORRECTION]
    return Correction(advice.text, tuple(edit.below(parent) for edit in advice.edits))


def _build_problems(
    source: YamlSource, findings: Sequence[_Finding], trials: _Trials
) -> Iterator[Problem]:
    chosen = [(finding, trials.choose(finding)) for finding in findings]
    renamed = {
        edit.key
        for finding, correction in chosen
        for edit in correction.edits
        if finding.missing is None and not edit.removes
    }
    for finding, correction in chosen:
        # A misspelled key is one problem, not an unknown key and a missing one.
        if finding.missing in renamed:
            continue
        problem = source.locate_problem(finding.key, finding.rule, correction, finding.shown)
        place = source.positions.get((*finding.key, "#key"))
        if finding.rule == "unknown key" and place is not None and problem.line:
            problem = replace(problem, line=place[0], column=place[1])
        yield problem


def _list_findings(
    source: YamlSource, model: type[BaseModel], error: ValidationError
) -> Iterator[_Finding]:
    seen: set[KeyPath] = set()
    for details in error.errors(include_url=False):
        finding = _describe(source, model, details)
        finding = replace(finding, error=(details["type"], details["loc"]))
        text, value = source.readings.get(finding.key), source.at(finding.key)
        # Text that YAML 1.1 reads as another type surprises; a plain number does not.
        if text is not None and (text != str(value) or isinstance(value, date)):
            quoted = _add_quotes(finding.key, text, value)
            finding = replace(finding, proposals=(quoted, *finding.proposals))
        # The members of a union report one error each for the same value.
        if finding.key not in seen or finding.missing is not None:
            yield finding
        if len(details["loc"]) > len(finding.key):
            seen.update(finding.key[:i] for i in range(1, len(finding.key) + 1))


def _describe(source: YamlSource, model: type[BaseModel], details: ErrorDetails) -> _Finding:
    context = details.get("ctx", {})
    below = context.get(ERROR_SUBKEY, ())
    kind = details["type"]
    whole = kind in ("extra_forbidden", "missing")
    key = (*_find_written_key(source, details["loc"], whole=whole), *below)
    if kind == "extra_forbidden":
        unknown = tuple(_correct_unknown_key(source, model, details["loc"], key))
        return _Finding(key, "unknown key", unknown, str(key[-1]) or '""')
    if kind == "missing":
        return _describe_missing(model, details, key)
    shown = format_key_value(key, source.at(key)) or "the file"
    if CORRECTION in context:
        advice = _get_correction(details, key[: len(key) - len(below)])
        return _Finding(key, context["rule"], (advice, Correction(advice.text)), shown)
    if kind in _AUTHORED:
        rule, _, fix = details["msg"].removeprefix("Value error, ").partition(" — ")
        if fix:
            named = _WRITE.match(fix)
            written = [write_value(key, named[1] or named[2], fix)] if named is not None else []
            return _Finding(key, rule, (*written, Correction(fix)), shown)
        example = _SUCH_AS.fullmatch(rule)
        rule = rule if example is None else example[1]
        examples = (
            *list_examples_at(model, details["loc"]),
            *(example.groups()[1:] if example else ()),
        )
        return _Finding(key, rule, tuple(_write_example(key, each) for each in examples), shown)
    proposals = tuple(_correct_value(model, details, key))
    return _Finding(key, describe_rule(details), proposals, shown)


def _add_quotes(key: KeyPath, text: str, value: YamlValue) -> Correction:
    """Return the correction of unquoted text that YAML 1.1 reads as another type."""
    read = value.isoformat(" ") if isinstance(value, datetime) else str(value).lower()
    kind = "value" if value is None or isinstance(value, bool) else "number"
    kind = "date" if isinstance(value, date) else kind
    advice = f'E2Clab reads {text} as the {kind} {read}; write "{text}", with the quotes'
    return write_value(key, text, advice)


def _describe_missing(model: type[BaseModel], details: ErrorDetails, key: KeyPath) -> _Finding:
    name, parent = details["loc"][-1], key[:-1]
    shown = format_key_value(parent, None) or "the file"
    examples = tuple(list_examples_at(model, details["loc"]))
    if isinstance(name, int):
        rule, written = f"this list must have at least {name + 1} entries", "an entry, such as {}"
    else:
        rule, written = f"`{name}` is missing", f"`{name}: {{}}`"
    added = [write_value(key, each, f"add {written.format(show_value(each))}") for each in examples]
    return _Finding(parent, rule, (*added, Correction("add it")), shown, missing=key)


def _correct_value(
    model: type[BaseModel], details: ErrorDetails, key: KeyPath
) -> Iterator[Correction]:
    """Yield corrections of a value that breaks one of pydantic's rules, the best first."""
    near = [write_value(key, each, f"write {show_value(each)}") for each in propose_values(details)]
    examples = [_write_example(key, each) for each in list_examples_at(model, details["loc"])]
    # A value at the very bound is rarely meant, nor a number as text, so examples come first.
    likely = details["type"].startswith(("greater_than", "less_than", "string_type"))
    yield from (*examples, *near) if likely else (*near, *examples)
    if details["loc"] and key:
        what = "this entry" if isinstance(key[-1], int) else "it"
        yield remove_key(key, f"remove {what}")
        if len(key) > 1 and isinstance(key[-1], int):
            yield remove_key(key[:-1], f"remove `{key[-2]}`")
    if not key:
        yield write_value((), None, "leave the file empty")
    yield Correction(_SEE_TEMPLATE)


def _write_example(key: KeyPath, value: YamlValue) -> Correction:
    return write_value(key, value, f"write for example {show_value(value)}")


def _correct_unknown_key(
    source: YamlSource, model: type[BaseModel], location: tuple[str | int, ...], key: KeyPath
) -> Iterator[Correction]:
    """Yield corrections of an unknown key: another place, the nearest known key, or its removal."""
    name, value = str(key[-1]), source.at(key)
    allowed = sorted(
        {each for inner in find_models_at(model, location[:-1]) for each in list_field_names(inner)}
    )
    places = _list_other_places(source, model, key)
    inside = [place for place in places if place[: len(key) - 1] == key[:-1]]
    yield from (_move_key(key, place, value) for place in inside)
    written = source.at(key[:-1])
    siblings = set(written) if isinstance(written, dict) else set()
    free = [each for each in allowed if each not in siblings]
    for near in difflib.get_close_matches(_simplify(name), free, n=3):
        yield rename_key(key, near, value, f"did you mean `{near}`?")
    yield from (_move_key(key, place, value) for place in places if place not in inside)
    if name in allowed:
        # The key exists, but in another variant of a union than the one that the other keys select.
        for other in sorted(map(str, siblings - {name})):
            text = f"remove `{other}`, which excludes it, or remove this key"
            yield remove_key((*key[:-1], other), text)
        yield remove_key(key, "remove this key, or the other keys that exclude it")
    keys = f"the keys are {', '.join(allowed)}; " if allowed else ""
    yield remove_key(key, f"{keys}remove this one")


def _list_other_places(source: YamlSource, model: type[BaseModel], key: KeyPath) -> list[KeyPath]:
    """Return the free places in which the model has the last part of `key`, the nearest first."""
    found = []
    for place in dict.fromkeys(list_places(model, str(key[-1]))):
        # In the lists on the way, the entry that contains the key is meant, or else the first one.
        nearest = list(place)
        for i, part in enumerate(place):
            if (
                part == 0
                and i < len(key)
                and isinstance(key[i], int)
                and nearest[:i] == list(key[:i])
            ):
                nearest[i] = key[i]
        parent = source.at(tuple(nearest[:-1]))
        if isinstance(parent, dict) and key[-1] not in parent:
            found.append(tuple(nearest))
    return sorted(found, key=len)


def _move_key(key: KeyPath, place: KeyPath, value: YamlValue) -> Correction:
    names = [str(part) for part in place[:-1] if isinstance(part, str)]
    entry = "an entry of " if isinstance(place[-2], int) else ""
    text = f"write it under {entry}`{'.'.join(names)}:`" if names else "write it at the top level"
    return Correction(text, (Edit(key, removes=True), Edit(place, value)))


def _simplify(name: str) -> str:
    return name.lower().replace("-", "_").replace(" ", "_")


def _find_written_key(source: YamlSource, location: Sequence[str | int], *, whole: bool) -> KeyPath:
    """Convert a pydantic location to a key path, without the union tags between the keys.

    With `whole`, the last part is kept even if the file does not contain it.
    """
    key: KeyPath = ()
    for i, part in enumerate(location):
        parent = source.at(key)
        known = (isinstance(parent, dict) and part in parent) or (
            isinstance(parent, list) and isinstance(part, int)
        )
        if known or (whole and i == len(location) - 1):
            key = (*key, part)
    return key
