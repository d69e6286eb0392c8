"""Uploading an exported model to the hub: the files that were shown, and no others."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import LocalTokenNotFoundError, RepositoryNotFoundError
from huggingface_hub.utils import filter_repo_objects  # type: ignore[attr-defined]

from dpft.config.errors import ConfigError, DataError, DpftError
from dpft.config.offline import is_offline
from dpft.models.hub import refusal
from dpft.training.export import ExportPlan, export

# What makes a model for those who load it by name. `from_pretrained` puts an adapter that an
# earlier upload left on the weights of this one, and the card would not tell of it.
MODEL_FILES = (
    "*.safetensors",
    "*.safetensors.index.json",
    "*.bin",
    "*.bin.index.json",
    "*.gguf",
    "adapter_config.json",
    "config.json",
    "generation_config.json",
    "dpft.json",
    "preprocessor_config.json",
    "processor_config.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "spiece.model",
    "sentencepiece*",
)


def check_push(name: str) -> None:
    """Refuse a name that the hub does not take, and to be offline.

    Raises:
        ConfigError: saying which.
    """
    if why := refusal(name):
        raise ConfigError(
            f"{name!r} is no name on the hub ({why}); expected one such as OWNER/my-model"
        )
    if is_offline():
        raise ConfigError(
            "the hub cannot be reached, or HF_HUB_OFFLINE forbids it; type dpft export, and push "
            "from a machine that is online: hf upload OWNER/NAME FOLDER"
        )


def push(plan: ExportPlan, name: str, *, public: bool) -> str:
    """Upload what was planned, and remove what an earlier upload left of another model.

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
    with tempfile.TemporaryDirectory() as made, _in_our_words(name):
        folder = Path(made) / "model"
        export(plan, folder)
        repository = api.create_repo(name, private=not public, exist_ok=True)
        api.upload_folder(
            repo_id=repository.repo_id,
            folder_path=folder,
            allow_patterns=sorted(plan.sizes()),
            delete_patterns=list(MODEL_FILES),
            commit_message="Upload of a model by dpft",
        )
    return str(repository.url)


def left_over(plan: ExportPlan, name: str) -> list[str]:
    """Files of an earlier upload that `push` removes, for they would be taken for this model's.

    Args:
        plan: what is uploaded.
        name: of the repository; one that is not there yet has none.

    Raises:
        DataError: if the hub refuses.
    """
    api = HfApi()
    with _in_our_words(name):
        owned = name if "/" in name else f"{api.whoami()['name']}/{name}"
        try:
            held = api.list_repo_files(owned)
        except RepositoryNotFoundError:
            return []
    new = plan.sizes().keys()
    return sorted(
        file for file in filter_repo_objects(held, allow_patterns=[*MODEL_FILES]) if file not in new
    )


@contextmanager
def _in_our_words(name: str) -> Iterator[None]:
    try:
        yield
    except DpftError:
        raise
    except LocalTokenNotFoundError as error:
        raise ConfigError("nobody is logged in at the hub; type hf auth login") from error
    except Exception as error:  # the client raises many types; all mean the same here
        said = str(error).strip().partition("\n")[0]
        raise DataError(
            f"the hub did not take {name} ({type(error).__name__}: {said}); expected a login "
            "that may write there: type hf auth login, or give another name"
        ) from error
