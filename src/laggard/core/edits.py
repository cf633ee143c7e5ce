"""Edits of a parsed YAML file, and the correction that consists of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date

YamlScalar = None | bool | int | float | str | date
"""Scalar of either version of YAML. Dates, and keys other than text, exist in YAML 1.1 only."""

KeyPath = tuple[YamlScalar, ...]
YamlValue = YamlScalar | list["YamlValue"] | dict[YamlScalar, "YamlValue"]


@dataclass(frozen=True)
class Edit:
    """Change of the value at one key path.

    Attributes:
        key: key path in the file; in a list, the position after the last one appends.
        value: new value.
        removes: True to remove the key instead.
    """

    key: KeyPath
    value: YamlValue = None
    removes: bool = False

    def below(self, parent: KeyPath) -> Edit:
        """Return the same edit of a value at `parent`."""
        return Edit((*parent, *self.key), self.value, self.removes)


@dataclass(frozen=True)
class Correction:
    """Advice that removes a problem.

    Attributes:
        text: advice in words.
        edits: the same advice as edits of the file, in order; empty if a program cannot apply it.
    """

    text: str
    edits: tuple[Edit, ...] = ()


def write_value(key: KeyPath, value: YamlValue, text: str) -> Correction:
    """Return the correction that writes one value."""
    return Correction(text, (Edit(key, value),))


def remove_key(key: KeyPath, text: str = "remove it") -> Correction:
    """Return the correction that removes one key."""
    return Correction(text, (Edit(key, removes=True),))


def rename_key(key: KeyPath, name: str, value: YamlValue, text: str) -> Correction:
    """Return the correction that gives the value at `key` another name."""
    return Correction(text, (Edit(key, removes=True), Edit((*key[:-1], name), value)))


def apply_edits(value: YamlValue, edits: Iterable[Edit]) -> YamlValue:
    """Return a copy of `value` with the edits applied in order.

    Raises:
        LookupError: the place of an edit does not exist and cannot be created.
    """
    for edit in edits:
        value = _apply_edit(value, edit.key, edit)
    return value


def _apply_edit(value: YamlValue, key: KeyPath, edit: Edit) -> YamlValue:
    if not key:
        return None if edit.removes else edit.value
    part, below = key[0], key[1:]
    if value is None:
        value = [] if part == 0 else {}
    if isinstance(value, dict):
        if edit.removes and not below:
            return {name: inner for name, inner in value.items() if name != part}
        return {**value, str(part): _apply_edit(value.get(str(part)), below, edit)}
    if isinstance(value, list) and isinstance(part, int) and part <= len(value):
        return _edit_list(value, part, below, edit)
    raise LookupError(part)


def _edit_list(
    value: Sequence[YamlValue], part: int, below: KeyPath, edit: Edit
) -> list[YamlValue]:
    rest = value[part + 1 :]
    if edit.removes and not below:
        return [*value[:part], *rest]
    inner = value[part] if part < len(value) else None
    return [*value[:part], _apply_edit(inner, below, edit), *rest]
