"""Clip a very small model of each architecture of tests/privacy/architectures.py; print a table.

    python scripts/clipped_architectures.py    # some three minutes; for docs/reference/models.md

A cell says which modules were computed again, or that no one was; a difference of more than 1e-10
from one backward per record is an error.
"""

import re
import warnings

from tests.privacy.architectures import ARCHITECTURES, build, clip_and_compare, with_lora


def cell(forms: list[str]) -> str:
    """The modules that were computed again."""
    again = {found for form in forms for found in re.findall(r"automatic, (\w+) again", form)}
    return "exact: " + ", ".join(f"`{name}`" for name in sorted(again)) if again else "exact"


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    print("| architecture | all parameters | LoRA on |\n|---|---|---|")
    for name, architecture in ARCHITECTURES.items():
        full = cell(clip_and_compare(build(name)))
        lora = cell(clip_and_compare(with_lora(name, build(name))))
        targets = ", ".join(f"`{target}`" for target in architecture.targets)
        print(f"| {name} | {full} | {targets}: {lora} |", flush=True)


if __name__ == "__main__":
    main()
