"""What follows without any run: a name in a file of claims, and the function behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType

from dpft.reproduce.claims.comparison import Comparison, Outcome, Side
from dpft.reproduce.claims.schema import Expected

# The module of each; imported when one is asked for, since some need torch.
FUNCTIONS: Mapping[str, str] = MappingProxyType(
    {
        "square_root_rule": "accounted",
        "groups_and_guarantee": "accounted",
        "cost_of_quantiles": "accounted",
        "embedding_memory": "exact",
        "bell_numbers": "exact",
        "clippings_not_nested": "exact",
        "formula_of_peaks": "peaks",
        "where_memory_peaks": "peaks",
        "bound_rises_with_groups": "exact",
        "backward_passes": "engine",
        "scaled_loss": "engine",
    }
)


def compute(name: str) -> list[Comparison]:
    """The comparisons that the function makes."""
    module = import_module(f"dpft.reproduce.claims.{FUNCTIONS[name]}")
    function: Callable[[], list[Comparison]] = getattr(module, name)
    return function()


def computed(
    what: str, value: float, low: float | None, high: float | None, found: str = ""
) -> Comparison:
    """A number that must lie in a range.

    Args:
        what: what the number is.
        value: the number.
        low: of the range; None: no bound.
        high: of the range.
        found: the number in words, where it needs some.
    """
    from dpft.reproduce.claims.contrast import in_words
    from dpft.reproduce.claims.judging import in_range

    expected = Expected("ratio", low, high)
    same = low is not None and high is not None and high - low < 1e-6
    words = f"{low:g}" if same else in_words(expected)
    return Comparison(
        side=Side.COMPUTED,
        what=what,
        expected=words.removeprefix("a ratio of "),
        outcome=in_range(value, expected, 0.0),
        found=found or f"{value:.6g}",
        numbers={"value": value},
    )


def shown(what: str, is_so: bool, expected: str, found: str) -> Comparison:
    """Something that is so or is not."""
    outcome = Outcome.HOLDS if is_so else Outcome.FAILS
    return Comparison(Side.COMPUTED, what, expected, outcome, found)
