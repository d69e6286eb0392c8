"""A task: reviews with one to five stars, a line each, and what is asked of a model about them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpft.config.errors import DataError
from dpft.tasks.base import SPLITS
from dpft.tasks.classification import Classification, Row
from dpft.tasks.sources import Dataset, Form, text_lines


def read_reviews(path: Path) -> list[Row]:
    """Rows of a file with lines such as ``4<TAB>A film to see twice``."""
    rows = []
    for number, line in enumerate(text_lines(path, "lines of STARS, a tab and a text"), 1):
        if not line:
            continue
        stars, tab, text = line.partition("\t")
        if stars not in ("1", "2", "3", "4", "5") or not tab or not text:
            raise DataError(f"{path}, line {number}: got {line[:60]!r}; expected STARS<TAB>TEXT")
        rows.append(Row((text,), int(int(stars) > 3)))
    return rows


def write_sample(folder: Path, seed: int) -> None:
    """Generated reviews, so that ``task.source=sample`` tries everything without data."""
    words = {1: "dull", 2: "long", 4: "warm", 5: "bright"}
    for offset, split in enumerate(SPLITS):
        lines = [
            f"{stars}\tA {word} film, seen {number + offset + seed} times."
            for number in range(20)
            for stars, word in words.items()
        ]
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Reviews(Classification):
    """Is a review one of more than three stars?"""

    name = "reviews"
    classes = ("worse", "better")
    texts = 1
    dataset = Dataset(
        forms=(Form({split: f"{split}.tsv" for split in SPLITS}, read_reviews),),
        hub=None,
        write_sample=write_sample,
    )
    record_is = "one review"

    def details(self, split: str) -> Sequence[str]:
        """What ``dpft data check reviews`` says of a split."""
        better = sum(row.label for row in self.rows(split))
        return [f"{better} with more than three stars"]
