"""Error of a model's own validator, with its place and its correction."""

from __future__ import annotations

from pydantic_core import PydanticCustomError

from laggard.core.edits import Correction, KeyPath

ERROR_SUBKEY = "at"
"""Context key of a `PydanticCustomError`; its value is the key path below the model."""
CORRECTION = "correction"
"""Context key of a `PydanticCustomError`; its value is the correction, with key paths below the
model."""


def broken_rule(rule: str, correction: Correction | str, at: KeyPath = ()) -> PydanticCustomError:
    """Return the error of a validator; it is also a `ValueError`.

    Args:
        rule: the rule that the value breaks.
        correction: the advice; its edits have key paths below the validated value.
        at: key path of the problem below the validated value.
    """
    advice = correction if isinstance(correction, Correction) else Correction(correction)
    details = {"rule": rule, "fix": advice.text, ERROR_SUBKEY: at, CORRECTION: advice}
    return PydanticCustomError("broken_rule", "{rule} — {fix}", details)
