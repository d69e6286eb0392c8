"""The records of a run. They are read before torch is imported, which takes seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpft.config.schema import Run
from dpft.tasks.base import Task
from dpft.tasks.keeping import Keeping, keeping_of
from dpft.tasks.objectives.base import Instance
from dpft.tasks.objectives.records import Record
from dpft.tasks.owners import Owners
from dpft.training.mechanisms import make_mechanism
from dpft.training.progress import Progress


@dataclass(frozen=True)
class Data:
    """What a run trains on and is scored on.

    Attributes:
        task: which has read it.
        keeping: where the readings of large files are kept, if anywhere.
        records: trained on.
        owners: the user of each record, where users are the units of privacy.
        size: how many units of privacy there are, an audit's canaries among them.
        instances: what the model is asked in the end.
    """

    task: Task
    keeping: Keeping | None
    records: Sequence[Record]
    owners: Sequence[str] | None
    size: int
    instances: Sequence[Instance]


def read_data(run: Run, task: Task, progress: Progress) -> Data:
    """Read the data of a run, and refuse settings that its size does not admit.

    Raises:
        DataError: it is missing or malformed.
        ConfigError: the batch is larger than the data, or the budget cannot be reached.
    """
    keeping = keeping_of(run, progress.warn, progress.say)
    with progress.phase("reading", None) as advance:
        task.keep_in(keeping, advance)
        records, owners = task.records("train"), task.owners()
    units = len(records) if owners is None else len(Owners.of(owners).names)
    size = units + run.audit.canaries
    make_mechanism(run, size)
    # What is missing at the end is reported at the beginning; and files may change meanwhile.
    instances = list(task.instances(run.decode.split))
    return Data(task, keeping, records, owners, size, instances)
