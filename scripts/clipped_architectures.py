"""Clip a very small model of each architecture of tests/privacy/architectures.py; print what came.

    python scripts/clipped_architectures.py    # some three minutes; for docs/reference/models.md

It prints which modules were computed again, and for which architectures none was; a difference of
more than 1e-10 from one backward per record is an error.
"""

import re
import warnings

from dpft.report.markdown import table
from tests.privacy.architectures import ARCHITECTURES, build, clip_and_compare, with_lora


def again(forms: list[str]) -> str:
    """The modules that were computed again."""
    found = {name for form in forms for name in re.findall(r"automatic, (\w+) again", form)}
    return ", ".join(f"`{name}`" for name in sorted(found))


def page(found: dict[str, tuple[str, str]]) -> str:
    """The part of the page, of what was computed again with all parameters and with LoRA."""
    rows = [[name, *both] for name, both in found.items() if any(both)]
    fine = ", ".join(name for name, both in found.items() if not any(both))
    headings = ["architecture", "computed again: all parameters", "LoRA"]
    return f"By rules alone: {fine}.\n\n{table(headings, rows, left=3)}"


def main() -> None:
    """Print the part of the page."""
    warnings.simplefilter("ignore")
    found = {}
    for name in ARCHITECTURES:
        full, lora = build(name), with_lora(name, build(name))
        found[name] = again(clip_and_compare(full)), again(clip_and_compare(lora))
    print(page(found))


if __name__ == "__main__":
    main()
