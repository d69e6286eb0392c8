"""Models in files: a folder in ``save_pretrained`` form or the hub, and what can be read of it."""

import contextlib
import copy
import hashlib
import io
import json
import logging
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.hub import cached_file

from dpft.config.errors import ModelError
from dpft.config.flags import Stored
from dpft.config.offline import refusal
from dpft.models.hub import is_place, not_found
from dpft.runs.atomic import sha256_file

# What readers raise on a file that was cut, is another format's, or has tensors of other shapes.
_DAMAGED = (
    *(SafetensorError, json.JSONDecodeError, pickle.UnpicklingError),
    *(EOFError, LookupError, RuntimeError),
)

# `dpft.models.load` checks which weights are new; the table that transformers logs would also list
# those that a new head is meant to have. A T5 whose head is separate is no mistake either.
_HARMLESS = ("LOAD REPORT", "so we will NOT tie them")
logging.getLogger("transformers.modeling_utils").addFilter(
    lambda record: not any(text in record.getMessage() for text in _HARMLESS)
)


@dataclass(frozen=True)
class Files:
    """A folder, or a model of the hub."""

    location: str  # a folder or hub id
    name: str  # the ``model.path`` that is recorded
    gguf: str | None = None  # name of a GGUF file that holds config, weights and tokenizer
    flags: tuple[Stored, ...] = ()  # what is special about the model
    revision: str | None = None  # of the hub: a commit, a tag or a branch; None: the newest
    drawn = False  # whether weights are drawn whatever ``model.init`` says

    @property
    def on_hub(self) -> bool:
        """Return whether it is no folder, nor meant to be one."""
        return not (Path(self.location).is_dir() or is_place(self.location))

    @property
    def has_weights(self) -> bool:
        """Return whether there are pretrained weights."""
        folder = Path(self.location)
        if self.gguf is not None or not folder.is_dir():
            return True
        # Weights may be in several files, or in PyTorch's own format.
        return any(folder.glob("*.safetensors*")) or any(folder.glob("pytorch_model*"))

    def config(self) -> Any:
        """Return the architecture, as a `transformers.PreTrainedConfig`.

        Attention is that of torch where a file asks for FlashAttention: its package takes no
        float32 and joins the records of a batch, and torch has its kernels too.
        """
        config = self._load(AutoConfig.from_pretrained)
        if "flash" in str(config._attn_implementation):
            config._attn_implementation = None
        return config

    def pretrained(
        self, auto: Any, config: Any, new_head: bool, dtype: torch.dtype = torch.float32
    ) -> tuple[PreTrainedModel, frozenset[str]]:
        """Load the model, and the names of parameters that had no weights.

        Args:
            auto: the class of transformers that loads a model of the needed kind.
            config: the architecture.
            new_head: whether a head of another size than the stored one is drawn anew.
            dtype: of the weights; those of a GGUF file are in float32.
        """
        if not self.has_weights:
            raise ModelError(
                f"{self.name} has an architecture and no weights; type model.init=scratch to "
                "train it from drawn ones"
            )
        # Without the type, transformers takes the one that the file was saved in.
        how = {"config": config, "dtype": dtype, "output_loading_info": True}
        how["ignore_mismatched_sizes"] = new_head
        if self.gguf is not None:
            plain = copy.deepcopy(config)
            with contextlib.redirect_stderr(io.StringIO()):  # hides a second progress bar
                quantised, info = self._load(auto.from_pretrained, **how)
            # Marked as quantised, a model can neither be trained nor saved.
            model = auto.from_config(plain, dtype=torch.float32, trust_remote_code=False)
            model.load_state_dict(quantised.state_dict())
        else:
            model, info = self._load(auto.from_pretrained, **how)
            if getattr(model, "is_quantized", False):
                raise ModelError(
                    f"the weights of {self.name} are stored in a quantised form; expected the "
                    "model that it was made of, whose weights model.dtype=nf4 packs while LoRA "
                    "trains: give model.path its folder or hub id"
                )
        missing = {*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])}
        parameters = dict(model.named_parameters(remove_duplicate=False))
        return model, frozenset(missing & parameters.keys())

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Load the tokenizer of a model of text."""
        tokenizer: PreTrainedTokenizerBase = self._load(AutoTokenizer.from_pretrained)
        return tokenizer

    def preprocessor(self) -> Mapping[str, Any]:
        """Read ``preprocessor_config.json`` of a model of images; empty where there is none."""
        file = self.file("preprocessor_config.json")
        return {} if file is None else json.loads(file.read_text(encoding="utf-8"))

    def file(self, name: str, *, here: bool = False) -> Path | None:
        """Find a file in the model's folder or on the hub; ``here``: among the downloads alone."""
        found = cached_file(
            self.location,
            name,
            revision=self.revision,
            local_files_only=here,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
        return None if found is None else Path(found)

    def commit(self) -> str | None:
        """Return the commit of the hub that was downloaded; None for a folder."""
        config = self.file("config.json", here=True) if self.on_hub else None
        return None if config is None else config.parent.name  # .../snapshots/COMMIT/config.json

    def weights_sha256(self) -> str | None:
        """Return the SHA-256 of the file of the weights; None where none is here.

        If there are several files, it is that of their digests in hex, a line each.
        """
        names = ("model.safetensors", "pytorch_model.bin") if self.gguf is None else (self.gguf,)
        files = next(filter(None, map(self._weights, names)), [])
        digests = [sha256_file(file) for file in sorted(files)]
        if len(digests) > 1:
            return hashlib.sha256("\n".join([*digests, ""]).encode()).hexdigest()
        return digests[0] if digests else None

    def _weights(self, name: str) -> list[Path]:
        """Return the files of the weights that are here; none if they are in another form."""
        whole = self.file(name, here=True)
        if whole is not None:
            return [whole]
        index = self.file(f"{name}.index.json", here=True)
        if index is None:
            return []
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        files = [self.file(name, here=True) for name in dict.fromkeys(names)]
        return [file for file in files if file is not None]

    def _load(self, load: Any, **options: Any) -> Any:
        if self.gguf is not None:
            options["gguf_file"] = self.gguf
        options["revision"] = self.revision or "main"
        try:
            return load(self.location, trust_remote_code=False, **options)
        except _DAMAGED as error:
            raise ModelError(
                f"a file of {self.location} is damaged or not what its name says "
                f"({type(error).__name__}: {_first_line(error)}); copy or download all of it again"
            ) from error
        except ImportError as error:
            raise ModelError(
                f"{self.location} needs a package that is not here ({_first_line(error)}); "
                "expected a model of plain weights: if it is stored in a quantised form, give "
                "model.path the model that it was made of"
            ) from error
        except (OSError, ValueError) as error:
            if "trust_remote_code" in str(error):
                raise ModelError(
                    f"{self.location} brings Python code (auto_map in its JSON files), "
                    "which dpft never runs; expected a model whose architecture and tokenizer "
                    "transformers has itself: give model.path another folder or hub id"
                ) from error
            if Path(self.location).is_dir():
                raise ModelError(
                    f"folder {self.location} could not be loaded ({_first_line(error)}); expected "
                    "a model in save_pretrained form, with config.json, weights and tokenizer"
                ) from error
            raise not_found(self.location, refusal(error, "models", self.location)) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
