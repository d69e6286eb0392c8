"""Families of models, as `families.yaml` lists them: stand-ins, and sizes of published models.

A stand-in is a very small model of a family, with weights that are drawn. Its tokenizer has the
pieces of the bundled one, which can spell any text, and the special tokens of the family.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    AutoConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

import dpft.models.wrn  # noqa: F401 - makes transformers know it
from dpft.config.errors import ModelError, suggestion
from dpft.config.flags import Flag, flag

_FOLDER = Path(__file__).resolve().parent
_PIECES = _FOLDER / "tiny" / "tokenizer.json"
# Words that infilling puts in the blank, each one token as in the families' own vocabularies.
_WORDS = ("great", "terrible", "good", "bad", "yes", "no", "maybe", "Yes", "No", "Maybe")
_SPACE = "Ġ"  # how byte-level pieces write a space

_LISTED = yaml.safe_load((_FOLDER / "families.yaml").read_text(encoding="utf-8"))
STANDINS: Mapping[str, Any] = _LISTED["standins"]
SIZED: Mapping[str, str] = {
    path: family for family, table in _LISTED["sizes"].items() for path in table["models"]
}
"""Models whose architecture `sized` knows, by ``model.path``: their ``model_type``."""


def sized(path: str) -> Any:
    """Return the configuration of a model of `SIZED`, of transformers."""
    table = _LISTED["sizes"][SIZED[path]]
    sizes = dict(zip(table["columns"], table["models"][path], strict=True))
    return AutoConfig.for_model(SIZED[path], **sizes, **table.get("rest", {}))


@dataclass(frozen=True)
class StandIn:
    """The origin of a stand-in; with the methods of `dpft.models.files.Files`."""

    family: str
    flags = (flag(Flag.STAND_IN_MODEL),)
    drawn = True
    has_weights = False

    def config(self) -> Any:
        """Return the architecture, for the vocabulary of the stand-in's tokenizer."""
        family = STANDINS[self.family]
        sizes = {"vocab_size": len(self._built)} if "special" in family else {}
        return AutoConfig.for_model(family["model_type"], **sizes, **family["settings"])

    def pretrained(
        self, auto: Any, config: Any, new_head: bool, dtype: Any = None
    ) -> tuple[PreTrainedModel, frozenset[str]]:
        raise ModelError(f"random:{self.family} has no weights; they are drawn")

    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self._built

    def preprocessor(self) -> Mapping[str, Any]:
        return {}

    @cached_property
    def _built(self) -> PreTrainedTokenizerBase:
        special = STANDINS[self.family].get("special")
        if special is None:
            raise ModelError(f"random:{self.family} is a model of images; it has no tokenizer")
        return build_tokenizer(**special)


def standin(name: str) -> StandIn:
    """Return the stand-in of ``random:NAME``; raise ModelError if there is no such family."""
    if name not in STANDINS:
        raise ModelError(
            f"no stand-in {f'random:{name}'!r}{suggestion(name, STANDINS)}; expected one of "
            f"{', '.join(f'random:{known}' for known in STANDINS)}"
        )
    return StandIn(name)


def build_tokenizer(
    first: Sequence[str],
    roles: Mapping[str, str],
    last: Sequence[str] = (),
    types: bool = False,
    around: Sequence[str] = (),
) -> PreTrainedTokenizerBase:
    """Return the bundled tokenizer's pieces with special tokens, as `families.yaml` has them."""
    bundled = json.loads(_PIECES.read_text(encoding="utf-8"))
    own = {token["content"] for token in bundled["added_tokens"]}
    pieces = sorted(bundled["model"]["vocab"], key=bundled["model"]["vocab"].__getitem__)
    vocabulary = {
        token: i for i, token in enumerate([*first, *(p for p in pieces if p not in own)])
    }
    merges = [(left, right) for left, right in bundled["model"]["merges"]]
    # Each word becomes one token, by merges that come after all others.
    for word in (f"{space}{word}" for word in _WORDS for space in ("", _SPACE)):
        whole, *parts = (t.value for t in models.BPE(vocabulary, merges).tokenize(word))
        for part in parts:
            merges.append((whole, part))
            whole += part
            vocabulary.setdefault(whole, len(vocabulary))
    for token in last:
        vocabulary[token] = len(vocabulary)
    bpe = Tokenizer(models.BPE(vocabulary, merges))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    if around:
        one, two = around
        added = [(token, vocabulary[token]) for token in first if token in two]
        bpe.post_processor = processors.TemplateProcessing(one, two, added)
    named = {
        f"{role}_token": AddedToken(t, lstrip=True, special=True) if t in last else t
        for role, t in roles.items()
    }
    inputs = ["input_ids", *(["token_type_ids"] if types else []), "attention_mask"]
    tokenizer: PreTrainedTokenizerBase = PreTrainedTokenizerFast(
        tokenizer_object=bpe, model_input_names=inputs, **named
    )
    return tokenizer
