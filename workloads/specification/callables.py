"""Import of the user's own models and datasets, named `package.module:callable`."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable

from laggard.core.errors import InputError

CALLABLE_PATTERN = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"


def is_callable_name(name: str) -> bool:
    """Return whether `name` has the form `package.module:callable`; nothing is imported."""
    return re.match(CALLABLE_PATTERN, name) is not None


def load_callable(name: str) -> Callable[..., object]:
    """Import the callable named `package.module:callable`.

    Raises:
        InputError: the module cannot be imported, or has no such callable.
    """
    module_name, _, attribute = name.partition(":")
    try:
        found: object = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except ImportError as error:
        raise InputError(
            f"{name}: {error} — install the package, or add its folder to PYTHONPATH"
        ) from error
    except AttributeError as error:
        raise InputError(f"{name}: {error} — write it as package.module:callable") from error
    if not callable(found):
        raise InputError(
            f"{name}: this is a {type(found).__name__}, which cannot be called — name a function or"
            " a class"
        )
    return found
