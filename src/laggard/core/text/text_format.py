"""Text forms of numbers and counts, for sentences, tables and figures."""

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
    """Format a small number as a word, as running text needs it: `four`, `13`."""
    return _NUMBERS[count] if 0 <= count < len(_NUMBERS) else str(count)


def format_count(count: int, one: str, many: str = "") -> str:
    """Format a count with its noun in the singular or plural: `one step`, `four steps`."""
    return f"{format_number_word(count)} {one if count == 1 else many or one + 's'}"


def format_list(names: Sequence[str]) -> str:
    """Join names as a sentence lists them: `a`, `a and b`, `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def capitalize_sentence(text: str) -> str:
    """Capitalize the first letter of `text`, unless its first word is a host's name."""
    first = text.split(maxsplit=1)[0] if text.strip() else ""
    return text[:1].upper() + text[1:] if first.isalpha() else text


def format_seconds(seconds: float) -> str:
    """Format a duration for people: `0.8 s`, `41 s`, `12 min 5 s`."""
    if seconds >= 600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    if abs(seconds) >= 10:
        return f"{seconds:.0f} s"
    if abs(seconds) >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.0f} ms" if round(seconds * 1000) else "0 s"


def format_percent(share: float) -> str:
    """Format a fraction of one as a percentage: `38 %`, `6.4 %`.

    Shares that would be rounded up to 1 % become `under 1 %`, and very small ones `under 0.1 %`.
    """
    percent = 100.0 * share
    if 0 < percent < 0.1:
        return "under 0.1 %"
    # A cost of less than 1 % of the makespan is not a straggler, so the text must not say 1 %.
    if 0.95 <= percent < 1.0:
        return "under 1 %"
    return f"{percent:.0f} %" if percent >= 9.95 else f"{percent:.1f} %".replace(".0 %", " %")


def format_ratio(ratio: float) -> str:
    """Format a slowdown as `4.1x` or `12x`.

    Slowdowns under 1.2 get two decimals, because one decimal would hide the difference: `1.04x`.
    """
    if ratio >= 9.95:
        return f"{ratio:.0f}x"
    return f"{ratio:.2f}x" if ratio < 1.2 else f"{ratio:.1f}x"


def format_bytes(count: float) -> str:
    """Format an amount of data in SI units: `820 kB`, `1.24 GB`."""
    amount, units = count, ["B", "kB", "MB", "GB", "TB"]
    while abs(amount) >= 999.5 and len(units) > 1:
        amount /= 1000
        units.pop(0)
    return (
        f"{amount:.0f} {units[0]}"
        if units[0] == "B" or abs(amount) >= 99.5
        else f"{amount:.3g} {units[0]}"
    )
