"""Uploading an exported model to the hub: the files that were shown, and no others."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import LocalTokenNotFoundError

from dpft.config.errors import ConfigError, DataError
from dpft.models.hub import refusal
from dpft.training.export import ExportPlan, export


def check_push(name: str) -> None:
    """Refuse a name that the hub does not take, and to be offline.

    Raises:
        ConfigError: saying which.
    """
    if why := refusal(name):
        raise ConfigError(
            f"{name!r} is no name on the hub ({why}); expected one such as OWNER/my-model"
        )
    if os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on"):
        raise ConfigError(
            "the hub cannot be reached, or HF_HUB_OFFLINE forbids it; type dpft export, and push "
            "from a machine that is online: hf upload OWNER/NAME FOLDER"
        )


def push(plan: ExportPlan, name: str, *, public: bool) -> str:
    """Upload what was planned, as one commit.

    Args:
        plan: of `dpft.training.export.plan_export`.
        name: of the repository, which is made if it is not there.
        public: whether anyone may read a repository that is made.

    Returns:
        Its address.

    Raises:
        DataError: if the hub refuses.
    """
    api = HfApi()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "model"
        export(plan, folder)
        try:
            repository = api.create_repo(name, private=not public, exist_ok=True)
            api.upload_folder(
                repo_id=repository.repo_id,
                folder_path=folder,
                allow_patterns=sorted(plan.sizes()),
                commit_message="Upload of a model by dpft",
            )
        except LocalTokenNotFoundError as error:
            raise ConfigError("nobody is logged in at the hub; type hf auth login") from error
        except Exception as error:  # the client raises many types; all mean the same here
            said = str(error).strip().partition("\n")[0]
            raise DataError(
                f"the hub did not take {name} ({type(error).__name__}: {said}); expected a login "
                "that may write there: type hf auth login, or give another name"
            ) from error
    return repository.url
