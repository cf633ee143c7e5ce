"""Column of texts that repeat, as positions in a list of distinct texts.

A trace has millions of events and thousands of names. An array of text of a fixed width would take
more memory than the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from laggard.analysis.tables.columns import BoolArray, TextArray

_BLOCK = 1 << 16
"""Number of words that are converted to one array at a time."""


class EncodedText:
    """Column of texts with the behavior of an array of text.

    Functions of NumPy that treat every text by itself, such as `np.char.startswith`, are computed
    once for each distinct text.

    Args:
        codes: positions in `words`, [N].
        words: distinct texts.
    """

    def __init__(self, codes: npt.NDArray[np.int32], words: Sequence[str]) -> None:
        self.codes = codes
        self.words = words

    def __len__(self) -> int:
        return len(self.codes)

    def __iter__(self) -> Iterator[str]:
        return map(self.words.__getitem__, self.codes.tolist())

    def __getitem__(self, rows: Any) -> Any:  # noqa: ANN401  # like an array's
        """Return one text, or the column of the rows that a mask, slice or index array selects."""
        codes = self.codes[rows]
        return (
            EncodedText(codes, self.words) if isinstance(codes, np.ndarray) else self.words[codes]
        )

    def __eq__(self, other: object) -> BoolArray:  # type: ignore[override]  # like an array's
        """Return a mask of the rows that equal a text, [N]."""
        equal: BoolArray = np.equal(cast("Any", self), cast("Any", other))
        return equal

    def __ne__(self, other: object) -> BoolArray:  # type: ignore[override]  # like an array's
        """Return a mask of the rows that differ from a text, [N]."""
        return ~(self == other)

    __hash__ = None  # type: ignore[assignment]  # like an array's

    def tolist(self) -> list[str]:
        """Return all texts; equal ones are the same object."""
        return list(self)

    def matches(self, predicate: Callable[[str], bool]) -> BoolArray:
        """Return a mask of the rows whose texts fulfill a condition, [N]."""
        used, places = np.unique(self.codes, return_inverse=True)
        found = np.array([predicate(self.words[code]) for code in used.tolist()], dtype=np.bool_)
        return found[places]

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> TextArray:
        """Return a plain array, which is as wide as the longest text in it."""
        return np.array(self.tolist(), dtype=dtype or np.str_)

    def __array_ufunc__(  # NumPy's protocol
        self,
        function: np.ufunc,
        method: str,
        *inputs: Any,  # noqa: ANN401
        **options: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Compute a function of each distinct text, and distribute the results to the rows."""
        if method != "__call__" or any(np.ndim(each) for each in inputs if each is not self):
            plain = [np.asarray(each) if each is self else each for each in inputs]
            return getattr(function, method)(*plain, **options)
        blocks = [
            function(
                *(
                    np.array(self.words[at : at + _BLOCK], dtype=np.str_) if each is self else each
                    for each in inputs
                ),
                **options,
            )
            for at in range(0, len(self.words), _BLOCK)
        ]
        return np.concatenate(blocks)[self.codes] if blocks else np.zeros(0, dtype=np.bool_)
