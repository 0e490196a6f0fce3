"""Small pieces of sentences that several sections need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Interval(Protocol):
    """A figure between its ends."""

    @property
    def value(self) -> float: ...

    @property
    def low(self) -> float: ...

    @property
    def high(self) -> float: ...


def some(names: Sequence[object], limit: int) -> str:
    """Names with commas; of many the first `limit`, and how many there are besides."""
    more = len(names) - limit
    return ", ".join(map(str, names[:limit])) + (f" and {more:,} more" if more > 0 else "")


def counted(number: int, what: str) -> str:
    """A number and what it counts, in the plural unless it is one."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def capital(text: str) -> str:
    """Its first letter as a capital one, the others as they are."""
    return text[:1].upper() + text[1:]


def signed(value: float) -> str:
    """One decimal and the sign; what rounds to nothing is no loss."""
    return f"{round(value, 1) + 0.0:+.1f}"


def interval_text(found: Interval | None) -> str:
    """A figure without a unit, never without its interval."""
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]" if found else "-"
