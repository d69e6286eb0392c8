"""``conf/evaluate``: looks at held-out records while a run trains. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from dpft.config.checks import Count
from dpft.config.errors import ConfigError, DataError


@dataclass(frozen=True)
class Evaluate:
    """When the model is asked of held-out records, of which, and what is chosen by it.

    Attributes:
        every: steps between evaluations, or ``epoch``: expected passes; None: there are none.
        split: of the task.
        file: in place of the split.
        max_records: most records, spread evenly over the split or file; None: all.
        best: the figure by which weights are chosen, the lowest loss or the highest accuracy; None:
            the last ones are kept.
        public: whether figures of these records may be published, and are not private.
    """

    every: Count | Literal["epoch"] | None = None
    split: Literal["dev", "test"] = "dev"
    file: str | None = None
    max_records: Count | None = None
    best: Literal["loss", "accuracy"] | None = None
    public: bool = False

    def __post_init__(self) -> None:
        if self.every is None:
            for field in fields(self):
                value = getattr(self, field.name)
                if value != field.default:
                    raise ConfigError(
                        f"evaluate.{field.name} is {value}, which has no effect without "
                        "evaluate.every; type evaluate.every=epoch, or a number of steps"
                    )
        if self.file is not None and self.split != "dev":
            raise ConfigError(
                f"got evaluate.split={self.split} beside evaluate.file={self.file}; expected one "
                "of them"
            )

    @property
    def where(self) -> str:
        """Which records are asked of: a split's name, or ``file``."""
        return self.split if self.file is None else "file"

    def check_file(self) -> None:
        """Refuse a file that is not there.

        Raises:
            DataError: naming it.
        """
        if self.file is not None and not Path(self.file).exists():
            raise DataError(
                f"evaluate.file={self.file} does not exist; expected records in the form of the "
                "task, or type evaluate.split=dev"
            )

    def steps_between(self, epoch: int) -> int:
        """``every`` as a number of steps, of which an epoch has so many."""
        return epoch if self.every == "epoch" else self.every or 0
