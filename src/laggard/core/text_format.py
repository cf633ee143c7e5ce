"""How numbers and counts are said: in sentences, tables and figures alike."""

from __future__ import annotations

from collections.abc import Sequence

_NUMBERS = (
    "no",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
)


def format_number_word(count: int) -> str:
    """A small number as a word, as running text has it: `four`, `13`."""
    return _NUMBERS[count] if 0 <= count < len(_NUMBERS) else str(count)


def format_count(count: int, one: str, many: str = "") -> str:
    """`one step`, `four steps`: a count with its noun in the right number."""
    return f"{format_number_word(count)} {one if count == 1 else many or one + 's'}"


def format_list(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def capitalize_sentence(text: str) -> str:
    """`text` with its first letter large, unless it begins with a host's name."""
    first = text.split(maxsplit=1)[0] if text.strip() else ""
    return text[:1].upper() + text[1:] if first.isalpha() else text


def format_seconds(seconds: float) -> str:
    """A duration as a reader says it: `0.8 s`, `41 s`, `12 min 5 s`."""
    if seconds >= 600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    if abs(seconds) >= 10:
        return f"{seconds:.0f} s"
    if abs(seconds) >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.0f} ms" if round(seconds * 1000) else "0 s"


def format_percent(share: float) -> str:
    """A share of one as `38 %`, `6.4 %`, `under 1 %` where it would be rounded up to that, or
    `under 0.1 %`.
    """
    percent = 100.0 * share
    if 0 < percent < 0.1:
        return "under 0.1 %"
    if 0.95 <= percent < 1.0:  # what costs less than 1 % is no straggler
        return "under 1 %"
    return f"{percent:.0f} %" if percent >= 9.95 else f"{percent:.1f} %".replace(".0 %", " %")


def format_ratio(ratio: float) -> str:
    """A slowdown as `4.1x`, `12x`; two decimals where one would say `1.0x` or `1.1x`."""
    if ratio >= 9.95:
        return f"{ratio:.0f}x"
    return f"{ratio:.2f}x" if ratio < 1.2 else f"{ratio:.1f}x"


def format_bytes(count: float) -> str:
    """An amount of data in SI units: `820 kB`, `1.24 GB`."""
    amount, units = count, ["B", "kB", "MB", "GB", "TB"]
    while abs(amount) >= 999.5 and len(units) > 1:
        amount /= 1000
        units.pop(0)
    return (
        f"{amount:.0f} {units[0]}"
        if units[0] == "B" or abs(amount) >= 99.5
        else f"{amount:.3g} {units[0]}"
    )
