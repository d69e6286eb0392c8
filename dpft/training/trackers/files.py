"""Trackers that write files of one's own."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from io import StringIO
from typing import IO, Any

from dpft.runs.atomic import write_atomic
from dpft.training.trackers.base import Begun, Tracker


class CSV(Tracker):
    """``track.csv``: a line a step; evaluations are columns. Scores are in the record."""

    def begin(self, run: Begun) -> None:
        self._path = run.folder / "track.csv"
        self._file: IO[str] | None = None
        self._names: list[str] = []
        if self._path.is_file():
            first, *rows = self._rows() or [[]]
            self._names = first[1:]
            if self._names:
                self._open([first, *(row for row in rows if row and int(row[0]) <= run.start)])

    def step(self, step: int, values: Mapping[str, float]) -> None:
        new = [name for name in values if name not in self._names]
        if self._file is None or new:
            rows = [] if self._file is None else self._rows()[1:]
            self.end()
            self._names += new
            padding = [""] * len(new)
            self._open([["step", *self._names], *([*row, *padding] for row in rows)])
        assert self._file is not None
        csv.writer(self._file).writerow([step, *(values.get(name, "") for name in self._names)])
        self._file.flush()

    def scores(self, split: str, values: Mapping[str, float]) -> None:
        pass

    def end(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _rows(self) -> list[list[str]]:
        return list(csv.reader(StringIO(self._path.read_text(encoding="utf-8"))))

    def _open(self, rows: list[list[str]]) -> None:
        text = StringIO()
        csv.writer(text).writerows(rows)
        write_atomic(self._path, text.getvalue())
        self._file = self._path.open("a", encoding="utf-8", newline="")


class TensorBoard(Tracker):
    """``tensorboard/``: type ``tensorboard --logdir RUNS``."""

    def begin(self, run: Begun) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        writer: Any = SummaryWriter  # which says that its writer of files is None
        self._writer = writer(
            str(run.folder / "tensorboard"), purge_step=run.start + 1 if run.start else None
        )
        lines = (f"    {name}: {value}" for name, value in run.settings.items())
        self._writer.add_text("settings", "\n".join(lines))
        # For the table of runs, which has settings beside the scores: what `add_hparams` writes,
        # but here, and not in a run of its own.
        plain = {k: v for k, v in run.settings.items() if isinstance(v, bool | int | float | str)}
        _, settings, _ = hparams(plain, {})
        self._writer.file_writer.add_summary(settings)

    def step(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def scores(self, split: str, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(f"{split}/{name}", value, 0)

    def end(self) -> None:
        self._writer.close()
