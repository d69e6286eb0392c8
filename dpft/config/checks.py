"""Checks that several groups of settings share."""

from __future__ import annotations

from collections.abc import Collection

from dpft.config.errors import ConfigError, suggestion

HUGE = 1e30  # products with larger numbers overflow in float32


def positive(name: str, value: float | None, at_most: float | None = None) -> None:
    """Refuse a number that is zero or less, or too large; None passes."""
    if value is not None and not value > 0:
        raise ConfigError(f"{name} is {value}; expected a number > 0")
    if value is not None and at_most is not None and value > at_most:
        raise ConfigError(f"{name} is {value}; expected a number of at most {at_most:g}")


def check_seed(name: str, value: int) -> None:
    """Refuse a seed that a random generator has no room for."""
    if not 0 <= value < 2**63:
        raise ConfigError(f"{name} is {value}; expected 0 or more, below 2^63")


def is_other_size(count: int, published: int) -> bool:
    """Whether so many records are not the published set.

    Copies of one differ by some: empty or damaged ones, planted canaries.
    """
    return abs(count - published) > 0.02 * published


def one_of(name: str, value: str, known: Collection[str]) -> None:
    """Refuse what is not in ``known``, with the nearest name."""
    if value not in known:
        raise ConfigError(
            f"{name} is {value!r}; expected one of {', '.join(known)}{suggestion(value, known)}"
        )
