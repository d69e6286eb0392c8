"""What a model says of its training by runs before: in memory, or in the files that it is from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers.utils.hub import cached_file

from dpft.config.flags import Flag, Stored, flag
from dpft.integrations.transformers.spending import Spending
from dpft.runs import lineage

# Where a model that was trained in this process keeps what it says of itself.
_SAID = "_dpft_descent"


def ancestry(model: Any, folder: Path) -> Sequence[Stored]:
    """What a model says of its own training: as it was left in memory, or in its files.

    Args:
        model: of a peft model it is the base that is asked, for what it does not have itself.
        folder: of the run that begins; a model that it trained before goes on there.
    """
    trained_in, before, after = getattr(model, _SAID, (None, (), ()))
    if trained_in is not None:
        return tuple(before if trained_in == folder.absolute() else after)
    name = getattr(model, "name_or_path", None)
    try:
        found = name and cached_file(
            name,
            lineage.FILE,
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
    except (OSError, ValueError):  # a name of one's own, which neither a folder nor the hub has
        found = None
    file = Path(found) if found else None
    flags = lineage.ancestry(file)
    if _adapter_has_moved(model):  # loaded by peft, which does not keep where it was
        flags = (*flags, flag(Flag.TRAINED_ON_UNKNOWN))
    if file and file.parent.name.startswith("checkpoint-"):
        # Of this very run, which goes on from it: the run's own flag is the last.
        return flags[:-1] if file.absolute().parent.parent == folder.absolute() else flags
    return flags


def _adapter_has_moved(model: Any) -> bool:
    """Whether a LoRA is not as new ones are made, which change nothing until they are trained."""
    configs = (getattr(model, "peft_config", None) or {}).values()
    # Others begin with what they take out of the base.
    if not all(getattr(c, "init_lora_weights", None) in (True, "gaussian") for c in configs):
        return False
    return any(".lora_B." in name and bool(p.any()) for name, p in model.named_parameters())


def mark(model: Any, spending: Spending) -> None:
    """Let a model say in memory what its files would: another trainer may take it from here."""
    if spending.steps_spent:
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        setattr(inner, _SAID, (spending.folder, spending.ancestry, tuple(spending.descent())))
