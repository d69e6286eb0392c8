"""Load a model and its tokenizer: bundled, packaged, made up, from a folder, or from the hub."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from dpft.config.errors import ModelError
from dpft.config.flags import Flag, Stored, flag
from dpft.config.schema import Model
from dpft.models.architecture import KINDS, ModelKind, draw, finish, kind_of, suit
from dpft.models.empty import without_weights
from dpft.models.families import FAMILIES
from dpft.models.files import Files
from dpft.models.head import draw_head, in_head, of_classes
from dpft.models.needs import Needs
from dpft.models.sizes import refuse
from dpft.runs.finished import check_whole
from dpft.runs.folders import check_no_trial
from dpft.runs.lineage import FILE as ANCESTRY
from dpft.runs.lineage import ancestry

if TYPE_CHECKING:
    from dpft.models.image_input import ImageInput
    from dpft.models.standins import StandIn

# Its bars for loading and writing a few files would break into those of the run.
disable_progress_bar()

ADAPTER = "adapter"  # the folder of an adapter, in that of its model
ADAPTER_CONFIG = "adapter_config.json"
BUNDLED = Path(__file__).resolve().parent
END = "<|endoftext|>"
_SENTENCE = "The quick brown fox jumps over the lazy dog."


class Reparametrisation(Protocol):
    """Gradients, norms and noise are of carrier parameters; what they carry moves others."""

    def moved(self) -> Mapping[str, nn.Parameter]:
        """The parameters that the optimizer moves and a checkpoint keeps, by name."""
        ...

    def begin(self, step: int) -> None:
        """Before the forward of a step: derive the carriers from the moved parameters.

        They are a function of those and of ``step`` alone, so that a resumed run repeats them.
        """
        ...

    def transfer(self) -> None:
        """After noise was added: turn the carriers' ``.grad`` into that of the moved ones."""
        ...


@dataclass(frozen=True)
class LoadedModel:
    """A model in float32, its tokenizer, and what is special about it.

    Attributes:
        model: the model.
        tokenizer: its tokenizer; None for a model of images.
        flags: what is special about it, such as drawn weights (`dpft.config.flags`).
        reparametrisation: where gradients are taken of other parameters than those that move.
        image: how a model of images wants them; None for a model of text.
        as_stored: whether the weights are those that ``model.path`` names: not if any were drawn
            (but for a new head's), or a token was added.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    flags: tuple[Stored, ...]
    reparametrisation: Reparametrisation | None = None
    image: ImageInput | None = None
    as_stored: bool = True

    @property
    def text_tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of a model of text."""
        if self.tokenizer is None:
            raise ModelError("the model has no tokenizer; expected a model of text")
        return self.tokenizer

    def digest(self, tensors: Mapping[str, str] | None = None) -> bytes:
        """SHA-256 of the weights, frozen ones among them, the buffers and the tokenizer.

        A checkpoint holds only what moves. The rest is read again where a run is continued, from a
        folder or a hub where it may have been replaced meanwhile.

        Args:
            tensors: what `tensor_digests` gave on all processes that hold a part of the model;
                None: this one holds all of it.
        """
        tensors = self.tensor_digests() if tensors is None else tensors
        found = hashlib.sha256()
        for name, _ in self._tensors():
            found.update(f"{name} {tensors[name]}\n".encode())
        found.update(self._tokenizer_content())
        return found.digest()

    @torch.no_grad()
    def tensor_digests(self) -> dict[str, str]:
        """SHA-256 of each weight and buffer that has values in this process, by name."""
        digests = {}
        for name, tensor in self._tensors():
            if not tensor.is_meta:
                plain = tensor.detach().cpu().contiguous()
                found = hashlib.sha256(f"{tuple(plain.shape)} {plain.dtype}\n".encode())
                found.update(plain.view(-1).view(torch.uint8).numpy().data)
                digests[name] = found.hexdigest()
        return digests

    def _tensors(self) -> list[tuple[str, torch.Tensor]]:
        return [*self.model.named_parameters(), *self.model.named_buffers()]

    def tokenizer_digest(self) -> str:
        """SHA-256 of all that the tokens of a text follow from."""
        return hashlib.sha256(self._tokenizer_content()).hexdigest()

    def settle_tokenizer(self) -> None:
        """Undo what calls leave in the tokenizer: where they cut and how far they padded.

        It would be saved, and tells of the records that were encoded.
        """
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
        # Which tokens begin and end a text stands outside the rules.
        special = (sorted(tokenizer.special_tokens_map.items()), tokenizer.chat_template)
        rules = "" if backend is None else backend.to_str()
        return (repr(sorted(tokenizer.get_vocab().items())) + rules + repr(special)).encode()


def load_model(
    settings: Model,
    needs: Needs,
    seed: int,
    *,
    own: bool = False,
    weights: bool = True,
    absent: AbstractSet[str] = frozenset(),
) -> LoadedModel:
    """Load or build the model of ``conf/model``.

    Args:
        settings: ``path`` is a hub id, a folder, ``bundled:NAME``, ``package:NAME`` or
            ``random:FAMILY``; see docs/reference/models.md. ``init=scratch`` keeps the
            architecture and draws new weights; ``tied=False`` gives the output head a copy of the
            input embedding as a parameter of its own, as in the published GPT-2 runs.
        needs: what the task's objective works with.
        seed: for drawn weights, a new head's among them.
        own: whether this is what the run itself has saved, rather than the base of another.
        weights: whether it is to have its own; else, where that can be, it has room for those that
            another process sends.
        absent: names of parameters that another process holds: they are not read where the weights
            lie in safetensors files, and have zeros that take no memory.

    Raises:
        ModelError: if the model cannot be had, is of another kind, lacks weights that are not a
            new head's, or tokenizer and model do not fit.
    """
    origin = origin_of(settings, needs)
    if not own and isinstance(origin, Files):
        _check_base(Path(origin.location))
    config = origin.config()
    kind = kind_of(settings, needs, config)
    auto = kind.auto
    stored = tuple((config.id2label or {}).get(i) for i in range(config.num_labels))
    suit(config, needs, settings.dropout)
    flags = [*origin.flags]
    drawn = origin.drawn or settings.init == "scratch"
    if not own and not drawn and isinstance(origin, Files):
        _refuse_adapters(origin)
        flags += [x for x in ancestry(origin.file(ANCESTRY)) if x not in flags]
    torch.manual_seed(seed)
    empty = None if weights else without_weights(auto, config)
    if empty is not None:
        model = empty
    elif drawn:
        model = draw(auto, config)
    else:
        model, missing = origin.pretrained(auto, config, bool(needs.classes), absent)
        _check_missing(model, missing, settings, needs, kind)
        head = {name for name, _ in model.named_parameters() if of_classes(model, name)}
        if needs.classes and head - missing:
            if stored == needs.classes and not head & missing:
                flags.append(flag(Flag.PRETRAINED_HEAD))
            else:
                draw_head(model, auto, config)
    _check_dropout(model, settings)
    # A folder that came with a package has no name outside this machine.
    model.name_or_path = model.config._name_or_path = settings.path
    tokenizer, image, added = None, None, False
    if needs.kind == "image":
        from dpft.models.image_input import image_input

        image = image_input(model.config, origin.preprocessor(), settings.name)
    else:
        tokenizer, added = _tokenizer(origin, settings, kind)
        _fit(model, tokenizer, added, settings, needs)
    finish(model, settings, needs, absent)
    if settings.init == "scratch":
        flags.append(flag(Flag.RANDOM_WEIGHTS))
    stays = not drawn and not added and settings.pooling is None
    return LoadedModel(model, tokenizer, tuple(flags), image=image, as_stored=stays)


def stored_weights(settings: Model) -> str | None:
    """SHA-256 of the weights that `load_model` reads, see `Files.weights_sha256`; None if drawn."""
    origin = find(settings)
    if settings.init == "scratch" or not isinstance(origin, Files):
        return None
    return origin.weights_sha256()


def tokenizer_of(settings: Model, needs: Needs) -> PreTrainedTokenizerBase:
    """The tokenizer of a model of texts, as `load_model` has it, without the model.

    Raises:
        ModelError: as of `load_model`, but for what its weights show.
    """
    origin = find(settings)
    return _tokenizer(origin, settings, kind_of(settings, needs, origin.config()))[0]


def without_hub(settings: Model, needs: Needs, seed: int) -> LoadedModel | None:
    """The model without its weights, as `load_model` has it, unless it is on the hub.

    Returns:
        None for a model of the hub, which is not asked: of a shipped one the kind is checked.

    Raises:
        ModelError: as of `load_model`, but for what its weights show.
    """
    origin = find(settings)
    if not (isinstance(origin, Files) and origin.on_hub):
        return load_model(settings, needs, seed, weights=False)
    if settings.path in FAMILIES:
        # Of the family's defaults, which may lack what the published model has.
        config = AutoConfig.for_model(FAMILIES[settings.path], decoder_start_token_id=0)
        kind_of(settings, needs, config)
    return None


def _check_base(folder: Path) -> None:
    """Refuse what a run left if nobody may know of it, or if it is not whole any more."""
    check_no_trial(folder)
    run, name = folder.resolve().parent, folder.resolve().name
    if folder.is_dir():
        check_whole(run, (f"{name}/",))


def find(settings: Model) -> Files | StandIn:
    """Where the model comes from.

    Raises:
        ModelError: if ``model.path`` names nothing that is here, as far as is known offline.
    """
    path = settings.path
    if path == "???":
        raise ModelError(
            f"model={settings.name} has no model yet; type model.path=FOLDER or a hub id"
        )
    match path.split(":", 1):
        case ["package", name]:
            from dpft.models import packaged

            folder, typed, gguf, flags = packaged.find(name)
            return Files(str(folder), typed, gguf, flags)
        case ["random", name]:
            from dpft.models import standins

            return standins.find(name)
        case ["sizes", _]:
            raise refuse(path)
        case ["bundled", name]:
            return _bundled(settings, name)
        case _:
            return Files(path, path)


def origin_of(settings: Model, needs: Needs) -> Files | StandIn:
    """As `find`, of a model that transformers then knows, whoever wrote it."""
    if needs.kind == "image" or "wrn" in settings.path:
        import dpft.models.wrn  # noqa: F401 - makes transformers know it
    return find(settings)


def _bundled(settings: Model, name: str) -> Files:
    path, folder = settings.path, BUNDLED / name
    if folder.parent != BUNDLED or not (folder / "config.json").is_file():
        raise ModelError(
            f"no bundled model {path!r}: {folder} is not there; expected bundled:tiny, a folder, "
            "or a hub id"
        )
    files = Files(str(folder), path, flags=(flag(Flag.BUNDLED_MODEL, name=settings.name),))
    return files if files.has_weights else Files(str(folder), path)


def _check_dropout(model: PreTrainedModel, settings: Model) -> None:
    """Refuse a dropout that was asked for and that the model, by another name, does not have.

    Some models have no layers for it, and call a function with a number that a module holds.
    """
    if settings.dropout is None:
        return
    for name, module in model.named_modules():
        found = {k: v for k, v in vars(module).items() if "drop" in k and isinstance(v, float)}
        if isinstance(module, nn.Dropout):
            found["p"] = module.p
        for key, value in found.items():
            if value != settings.dropout and "layerdrop" not in key:
                raise ModelError(
                    f"model.dropout={settings.dropout}, but {name} of {type(model).__name__} has "
                    f"{key}={value}; expected a model whose dropouts have the usual names. Take "
                    "model.dropout away, or change the model's config.json"
                )


def holds_prefix(config: Path | None) -> bool:
    """Whether this ``adapter_config.json`` of peft is of a prefix."""
    if config is None or not config.is_file():
        return False
    kind: str = json.loads(config.read_text(encoding="utf-8"))["peft_type"]
    return kind == "PREFIX_TUNING"


def _refuse_adapters(origin: Files) -> None:
    """Refuse files of a model and an adapter, of which one would be left behind, or both be used.

    transformers puts an adapter that lies beside a model on its weights, without a word.
    """
    if origin.file(ADAPTER_CONFIG):
        raise ModelError(
            f"{origin.location} holds a model and {ADAPTER_CONFIG}, an adapter that would be put "
            "on its weights unseen; expected one of them: give model.path the model alone, without "
            "adapter_* beside it, or merge the two first"
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
    """Refuse weights that transformers drew because the files had none, but for a new head's.

    Training would go on, and nothing would show that the model was not the pretrained one.
    """
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
    """The tokenizer, and whether it was given an end token.

    The first GPT was published without one, and a model that cannot end a text cannot be trained
    to write texts.
    """
    tokenizer = origin.tokenizer()
    added = kind is KINDS["causal"] and tokenizer.eos_token_id is None
    if added:
        tokenizer.add_special_tokens({"eos_token": END})
    for name in kind.tokens:
        if getattr(tokenizer, f"{name}_token_id") is None:
            raise ModelError(f"the tokenizer of {settings.path} has no {name} token; expected one")
    _check_spelling(tokenizer, settings)
    return tokenizer, added


def _check_spelling(tokenizer: PreTrainedTokenizerBase, settings: Model) -> None:
    """Refuse a tokenizer that knows no word, as transformers makes of a folder without its files.

    A budget would be spent on records of unknown tokens.
    """
    ids = tokenizer.encode(_SENTENCE, add_special_tokens=False)
    if all(i == tokenizer.unk_token_id for i in ids):
        raise ModelError(
            f"the tokenizer of {settings.path} knows no token of {_SENTENCE!r}; expected "
            "one that spells text: are its files (tokenizer.json, or vocab.txt, or "
            "vocab.json with merges.txt) in the folder?"
        )


def _fit(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    added: bool,
    settings: Model,
    needs: Needs,
) -> None:
    """Give an end token that was ``added`` its embedding, and check that all tokens have one.

    A model that writes texts ends them at the tokenizer's end token, for others too.
    """
    embeddings: Any = model.get_input_embeddings()
    rows = embeddings.num_embeddings
    if added and len(tokenizer) == rows + 1:
        _add_row(model)
    elif len(tokenizer) > rows:
        raise ModelError(
            f"the tokenizer of {settings.path} has {len(tokenizer)} tokens for {rows} "
            "embeddings; expected at most as many"
        )
    if added:
        model.config.eos_token_id = tokenizer.eos_token_id
    if needs.kind == "causal" and model.generation_config is not None:
        _end(model.generation_config, tokenizer)


def _end(generation: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """Have whoever loads the saved model end texts where it is trained to, and where its base did.

    The tokenizer of a base for chats may name another end token than its generation_config.
    """
    known = generation.eos_token_id
    ends = known if isinstance(known, list) else [] if known is None else [known]
    if tokenizer.eos_token_id not in ends:
        ends = [*ends, tokenizer.eos_token_id]
        generation.eos_token_id = ends if len(ends) > 1 else ends[0]


@torch.no_grad()
def _add_row(model: Any) -> None:
    """One more token, with the mean of all others as its embedding.

    The mean is no draw, and a token there is neither likely nor unlikely anywhere.
    """
    rows = model.get_input_embeddings().num_embeddings
    model.resize_token_embeddings(rows + 1, mean_resizing=False)
    for module in {model.get_input_embeddings(), model.get_output_embeddings()}:
        module.weight[rows] = module.weight[:rows].mean(0)
