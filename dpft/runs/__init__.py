"""The run directory: configuration, ledger, checkpoints, record and card of one run.

A run may be killed at any moment and continued by the same command, to the same weights and the
same ledger, bit for bit. ``docs/reference/runs.md`` describes the files and what may be published.
"""

from dpft.config.errors import (
    START_OVER,
    CheckpointError,
    LedgerError,
    LedgerMismatchError,
    NoiseKeyLostError,
    RecordError,
    RunError,
    RunLockedError,
    RunMismatchError,
)
from dpft.runs import checkpoint
from dpft.runs.atomic import disk_report, fsync_tree
from dpft.runs.checkpoint import Checkpoint, load_private_state, save_private_state
from dpft.runs.directory import RunDirectory
from dpft.runs.environment import environment
from dpft.runs.folders import (
    check_whole,
    damages,
    is_finished,
    read_marker,
    replacing,
)
from dpft.runs.identity import config_hash
from dpft.runs.ledger import (
    Ledger,
    check_ledger,
    key_fingerprint,
    keyed_fingerprint,
    made_at_the_end,
    read_ledger,
    run_key,
)
from dpft.runs.lineage import base_model
from dpft.runs.log import NORMS, MetricsLog, norms_of, read_norms
from dpft.runs.record import SCHEMA_VERSION, RunRecord, read_record, update_record, write_record

__all__ = [
    "NORMS", "SCHEMA_VERSION", "START_OVER", "Checkpoint", "CheckpointError", "Ledger",
    "LedgerError", "LedgerMismatchError", "MetricsLog", "NoiseKeyLostError",
    "RecordError", "RunDirectory", "RunError", "RunLockedError", "RunMismatchError", "RunRecord",
    "base_model", "check_ledger", "check_whole", "checkpoint", "config_hash", "damages",
    "disk_report", "environment", "fsync_tree", "is_finished", "key_fingerprint",
    "keyed_fingerprint", "load_private_state", "made_at_the_end", "norms_of", "read_ledger",
    "read_marker", "read_norms", "read_record", "replacing", "run_key", "save_private_state",
    "update_record", "write_record",
]  # fmt: skip
