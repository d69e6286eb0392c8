"""The records of a run. They are read before torch is imported, which takes seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpft.config.schema import Run
from dpft.privacy import Mechanism
from dpft.tasks.base import Task
from dpft.tasks.keeping import keeping_of
from dpft.tasks.objectives.base import Instance
from dpft.tasks.objectives.records import Record
from dpft.tasks.owners import Owners
from dpft.training.mechanisms import make_mechanism
from dpft.training.progress import Progress


@dataclass(frozen=True)
class Data:
    """What a task has read: records to train on, the user of each, and what is asked in the end.

    The units of privacy of its ``mechanism``, whose noise is not spread over groups yet, include
    an audit's canaries.
    """

    task: Task
    records: Sequence[Record]
    owners: Sequence[str] | None
    instances: Sequence[Instance]
    mechanism: Mechanism


def read_data(run: Run, task: Task, progress: Progress) -> Data:
    """Read the data of a run.

    Raises:
        DataError: it is missing or malformed.
        ConfigError: the batch is larger than the data, or the budget cannot be reached.
    """
    with progress.phase("reading", None) as advance:
        task.keep_in(keeping_of(run, progress.warn, progress.say), advance)
        records, owners = task.records("train"), task.owners()
    units = len(records) if owners is None else len(Owners.of(owners).names)
    mechanism = make_mechanism(run, units + run.audit.canaries)
    # What is missing at the end is reported at the beginning; and files may change meanwhile.
    instances = list(task.instances(run.decode.split))
    return Data(task, records, owners, instances, mechanism)
