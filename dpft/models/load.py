"""Load a model and its tokenizer: bundled, packaged, made up, from a folder, or from the hub."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from dpft.config.errors import ConfigError, ModelError, SettingError
from dpft.config.flags import Flag, Stored, flag
from dpft.config.schema import Model
from dpft.models import hub
from dpft.models.architecture import (
    KINDS,
    ImageInput,
    ModelKind,
    draw,
    draw_head,
    finish,
    image_input,
    in_head,
    kind_of,
    of_classes,
    positions,
    suit,
    without_weights,
)
from dpft.models.families import StandIn, standin
from dpft.models.files import Files
from dpft.models.needs import Needs
from dpft.runs.folders import check_no_trial, check_whole
from dpft.runs.lineage import FILE as ANCESTRY
from dpft.runs.lineage import read_lineage

# Its bars for loading and writing a few files would break into those of the run.
disable_progress_bar()

ADAPTER = "adapter"  # the folder of an adapter, in that of its model
ADAPTER_CONFIG = "adapter_config.json"
BUNDLED = Path(__file__).resolve().parent
END = "<|endoftext|>"
_SENTENCE = "The quick brown fox jumps over the lazy dog."


class Reparametrisation(Protocol):
    """Takes gradients, norms and noise of carrier parameters, and moves others by them."""

    def moved(self) -> Mapping[str, nn.Parameter]:
        """Return the parameters that the optimizer moves and a checkpoint keeps, by name."""
        ...

    def begin(self, step: int) -> None:
        """Derive the carriers from the moved parameters and the step alone, before its forward."""
        ...

    def transfer(self) -> None:
        """Turn the carriers' noisy ``.grad`` into that of the moved parameters."""
        ...


@dataclass(frozen=True)
class LoadedModel:
    """A model in float32, its tokenizer, and what is special about it."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None  # None for a model of images
    flags: tuple[Stored, ...]  # what is special about the model, such as drawn weights
    # Where gradients are taken of other parameters than those that move.
    reparametrisation: Reparametrisation | None = None
    image: ImageInput | None = None  # for a model of images
    # Whether the weights are those that ``model.path`` names: not if any were drawn (except a new
    # head's), or a token was added.
    as_stored: bool = True

    @property
    def text_tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of a model of text."""
        if self.tokenizer is None:
            raise ModelError("the model has no tokenizer; expected a model of text")
        return self.tokenizer

    def wrapped(self, wrap: Callable[[nn.Module], nn.Module]) -> LoadedModel:
        """Put one of peft's wrappers around the model."""
        with warnings.catch_warnings():
            # peft 0.21 asks every model for an attribute that transformers 5 has renamed.
            warnings.filterwarnings("ignore", ".is_gradient_checkpointing. is deprecated")
            return replace(self, model=cast(PreTrainedModel, wrap(self.model)))

    def digest(self) -> bytes:
        """Return the SHA-256 of the weights, the buffers and the tokenizer.

        A checkpoint holds only what moves. The rest is read again where a run is continued, and may
        have been replaced meanwhile.
        """
        whole = hashlib.sha256()
        for name, tensor in [*self.model.named_parameters(), *self.model.named_buffers()]:
            plain = tensor.detach().cpu().contiguous()
            found = hashlib.sha256(f"{tuple(plain.shape)} {plain.dtype}\n".encode())
            found.update(plain.view(-1).view(torch.uint8).numpy().data)
            whole.update(f"{name} {found.hexdigest()}\n".encode())
        whole.update(self._tokenizer_content())
        return whole.digest()

    def tokenizer_digest(self) -> str:
        """Return the SHA-256 of all that the tokens of a text follow from."""
        return hashlib.sha256(self._tokenizer_content()).hexdigest()

    def settle_tokenizer(self) -> None:
        """Undo what calls leave in the tokenizer and would be saved: lengths of records."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is not None:
            backend.no_truncation()
            backend.no_padding()

    def _tokenizer_content(self) -> bytes:
        tokenizer = self.tokenizer
        if tokenizer is None:
            return b""
        self.settle_tokenizer()
        backend = getattr(tokenizer, "backend_tokenizer", None)
        rules = "" if backend is None else backend.to_str()
        # The rules do not say which tokens begin and end a text.
        special = (sorted(tokenizer.special_tokens_map.items()), tokenizer.chat_template)
        return (repr(sorted(tokenizer.get_vocab().items())) + rules + repr(special)).encode()


def load_model(
    settings: Model,
    needs: Needs,
    seed: int,
    *,
    own: bool = False,
    weights: bool = True,
) -> LoadedModel:
    """Load or build the model of ``conf/model``.

    Args:
        settings: see docs/reference/models.md.
        needs: what the task's objective works with.
        seed: for drawn weights, a new head's among them.
        own: whether this is what the run itself has saved, rather than the base of another.
        weights: whether they are loaded; else, where that is possible, there is room for those that
            another process sends.

    Raises:
        ModelError: if the model cannot be had, is of another kind, lacks weights that are not a
            new head's, or tokenizer and model do not fit.
    """
    origin = find(settings)
    if not own and isinstance(origin, Files):
        folder = Path(origin.location)
        check_no_trial(folder)
        if folder.is_dir():
            check_whole(folder.resolve().parent, (f"{folder.resolve().name}/",))
    config = origin.config()
    kind = kind_of(settings, needs, config)
    auto = kind.auto
    stored = tuple((config.id2label or {}).get(i) for i in range(config.num_labels))
    suit(config, needs, settings.dropout)
    flags = [*origin.flags]
    drawn = origin.drawn or settings.init == "scratch"
    if not own and not drawn and isinstance(origin, Files):
        _refuse_adapters(origin)
        flags += [x for x in read_lineage(origin.file(ANCESTRY)) if x not in flags]
    torch.manual_seed(seed)
    empty = None if weights else without_weights(auto, config)
    if empty is not None:
        model = empty
    elif drawn:
        model = draw(auto, config)
    else:
        dtype = torch.float32 if settings.dtype == "float32" else torch.bfloat16
        model, missing = origin.pretrained(auto, config, bool(needs.classes), dtype)
        _check_missing(model, missing, settings, needs, kind)
        head = {name for name, _ in model.named_parameters() if of_classes(model, name)}
        if needs.classes and head - missing:
            if stored == needs.classes and not head & missing:
                flags.append(flag(Flag.PRETRAINED_HEAD))
            else:
                draw_head(model, auto, config)
    check_dropout(model, settings.dropout)
    # A folder that came with a package has no name outside this machine.
    model.name_or_path = model.config._name_or_path = settings.path
    tokenizer, image, added = None, None, False
    if needs.kind == "image":
        image = image_input(model.config, origin.preprocessor(), settings.name)
    else:
        tokenizer, added = _tokenizer(origin, settings, kind)
        _fit(model, tokenizer, added, settings, needs)
    finish(model, settings, needs)
    if settings.init == "scratch":
        flags.append(flag(Flag.RANDOM_WEIGHTS))
    stays = not drawn and not added and settings.pooling is None
    return LoadedModel(model, tokenizer, tuple(flags), image=image, as_stored=stays)


def check_dropout(model: PreTrainedModel, rate: float | None) -> None:
    """Raise ModelError if a dropout of the model has another rate than the one that is set.

    Some models call the function with a number that a module holds, and have no layer for it.
    """
    for name, module in model.named_modules() if rate is not None else ():
        found = {k: v for k, v in vars(module).items() if "drop" in k and isinstance(v, float)}
        if isinstance(module, nn.Dropout):
            found["p"] = module.p
        for key, value in found.items():
            if value != rate and "layerdrop" not in key:
                raise ModelError(
                    f"model.dropout is {rate}, but {name} of {type(model).__name__} has "
                    f"{key}={value}; expected a model whose dropouts have the usual names: leave "
                    "model.dropout out, or change the model's config.json"
                )


def check_room(settings: Model, needs: Needs, longest: int | None, prefix: int = 0) -> None:
    """Raise ConfigError if a model has no positions for so many tokens behind a prefix."""
    config = find(settings).config()
    room = positions(kind_of(settings, needs, config), config)
    if room is None:
        return
    room -= prefix
    if prefix and room < 2:
        raise SettingError("adapt.length", prefix, f"at most {room + prefix - 2} for this model")
    if longest is not None and longest > room:
        smaller = f", or an adapt.length below {prefix}" if prefix else ""
        raise ConfigError(
            f"task.max_length is {longest}, but the model has positions for {room} tokens; type "
            f"task.max_length={room}{smaller}"
        )


def stored_weights(settings: Model) -> dict[str, str | None]:
    """Return digest and revision of the weights that `load_model` reads; empty if drawn."""
    origin = find(settings)
    if settings.init == "scratch" or not isinstance(origin, Files):
        return {}
    return {"weights_sha256": origin.weights_sha256(), "hub_revision": origin.commit()}


def tokenizer_of(settings: Model, needs: Needs) -> PreTrainedTokenizerBase:
    """Return the tokenizer that `load_model` gives a model of text, without the model."""
    origin = find(settings)
    return _tokenizer(origin, settings, kind_of(settings, needs, origin.config()))[0]


def find(settings: Model) -> Files | StandIn:
    """Return where the model comes from.

    Raises:
        ModelError: if ``model.path`` names nothing that is here, as far as is known offline.
    """
    path = settings.path
    if path == "???":
        raise ModelError(
            f"model={settings.name} has no model yet; type model.path=FOLDER or a hub id"
        )
    hub.check_model(settings)
    match path.split(":", 1):
        case ["package", name]:
            folder, typed, gguf, flags = hub.find(name)
            return Files(str(folder), typed, gguf, flags)
        case ["random", name]:
            return standin(name)
        case ["bundled", name]:
            folder = BUNDLED / name
            if folder.parent != BUNDLED or not (folder / "config.json").is_file():
                raise ModelError(
                    f"no bundled model {path!r}: {folder} is not there; expected bundled:tiny, a "
                    "folder, or a hub id"
                )
            files = Files(str(folder), path)
            special = (flag(Flag.BUNDLED_MODEL, name=settings.name),)
            return replace(files, flags=special) if files.has_weights else files
        case _:
            return Files(path, path, revision=settings.revision)


def holds_prefix(config: Path | None) -> bool:
    """Return whether this ``adapter_config.json`` of peft is of a prefix."""
    if config is None or not config.is_file():
        return False
    kind: str = json.loads(config.read_text(encoding="utf-8"))["peft_type"]
    return kind == "PREFIX_TUNING"


def _refuse_adapters(origin: Files) -> None:
    """Raise ModelError for an adapter, which transformers would put on the weights silently."""
    if origin.file(ADAPTER_CONFIG):
        raise ModelError(
            f"{origin.location} holds a model and {ADAPTER_CONFIG}, an adapter that would be put "
            "on its weights unseen; expected one of them: give model.path the model alone, without "
            "the files adapter_*, or merge the two first"
        )
    if holds_prefix(origin.file(f"{ADAPTER}/{ADAPTER_CONFIG}")):
        raise ModelError(
            f"{origin.location} holds a base model as it was before prefix tuning, and what "
            "was trained in adapter/; expected a model whose weights were trained: a prefix cannot "
            "be trained further. Give model.path the base model itself"
        )


def _check_missing(
    model: PreTrainedModel, missing: frozenset[str], settings: Model, needs: Needs, kind: ModelKind
) -> None:
    """Raise ModelError for weights that the files lack and transformers drew, except a head's."""
    lacking = sorted(name for name in missing if not (needs.classes and in_head(model, name)))
    if lacking:
        some = ", ".join(lacking[:3]) + (", ..." if len(lacking) > 3 else "")
        raise ModelError(
            f"{settings.path} has no weights for {len(lacking)} parameters of a "
            f"{type(model).__name__} ({some}); expected a checkpoint of a "
            f"{kind.name}: type model.path=FOLDER or a hub id of another, or "
            "model.init=scratch to draw all weights"
        )


def _tokenizer(
    origin: Files | StandIn, settings: Model, kind: ModelKind
) -> tuple[PreTrainedTokenizerBase, bool]:
    """Return the tokenizer, and whether it was given an end token, as the first GPT's is."""
    tokenizer = origin.tokenizer()
    added = kind is KINDS["causal"] and tokenizer.eos_token_id is None
    if added:
        tokenizer.add_special_tokens({"eos_token": END})
    for name in kind.tokens:
        if getattr(tokenizer, f"{name}_token_id") is None:
            raise ModelError(f"the tokenizer of {settings.path} has no {name} token; expected one")
    # As transformers makes one of a folder without its files: a budget would be spent on nothing.
    ids = tokenizer.encode(_SENTENCE, add_special_tokens=False)
    if all(i == tokenizer.unk_token_id for i in ids):
        raise ModelError(
            f"the tokenizer of {settings.path} knows no token of {_SENTENCE!r}; expected "
            "one that spells text: are its files (tokenizer.json, or vocab.txt, or "
            "vocab.json with merges.txt) in the folder?"
        )
    return tokenizer, added


def _fit(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    added: bool,
    settings: Model,
    needs: Needs,
) -> None:
    """Give an end token that was ``added`` its embedding, and check that all tokens have one."""
    embeddings: Any = model.get_input_embeddings()
    rows = embeddings.num_embeddings
    if added and len(tokenizer) == rows + 1:
        with torch.no_grad():  # the mean of all others, which is no draw
            model.resize_token_embeddings(rows + 1, mean_resizing=False)
            for module in {model.get_input_embeddings(), model.get_output_embeddings()}:
                module.weight[rows] = module.weight[:rows].mean(0)
    elif len(tokenizer) > rows:
        raise ModelError(
            f"the tokenizer of {settings.path} has {len(tokenizer)} tokens for {rows} "
            "embeddings; expected at most as many"
        )
    if added:
        model.config.eos_token_id = tokenizer.eos_token_id
    if needs.kind == "causal" and model.generation_config is not None:
        # Of a base for chats, the tokenizer may name another end token than its generation_config.
        generation: Any = model.generation_config
        known = generation.eos_token_id
        ends = known if isinstance(known, list) else [] if known is None else [known]
        if tokenizer.eos_token_id not in ends:
            ends = [*ends, tokenizer.eos_token_id]
            generation.eos_token_id = ends if len(ends) > 1 else ends[0]
