"""Stand-ins: architectures of the papers' families, very small, with weights that are drawn.

The tokenizer has the pieces of the bundled one, which can spell any text, and the special tokens of
the family.
"""

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

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

_PIECES = Path(__file__).resolve().parent / "tiny" / "tokenizer.json"
# Words that infilling puts in the blank, each one token as in the families' own vocabularies.
_WORDS = ("great", "terrible", "good", "bad", "yes", "no", "maybe", "Yes", "No", "Maybe")
_SPACE = "Ġ"  # how byte-level pieces write a space


@dataclass(frozen=True)
class Special:
    """Special tokens of a family.

    Attributes:
        first, last: those with the first ids, and with the last.
        roles: which token is the ``bos``, ``eos``, ``pad`` and so on.
        types: whether the model takes, of each token, which of two texts it is of.
        around: ``TemplateProcessing`` of tokenizers for one text and for two; empty for none.
    """

    first: tuple[str, ...]
    roles: Mapping[str, str | AddedToken]
    last: tuple[str, ...] = ()
    types: bool = False
    around: tuple[str, ...] = ()


@dataclass(frozen=True)
class Family:
    """A family: its ``model_type``, its settings, and its special tokens; images have none."""

    model_type: str
    settings: Mapping[str, Any]
    special: Special | None = None

    def config(self, vocabulary: int) -> Any:
        """Return the architecture, for a vocabulary of this size."""
        sizes = {} if self.special is None else {"vocab_size": vocabulary}
        return AutoConfig.for_model(self.model_type, **sizes, **self.settings)


_GPT = {"n_embd": 64, "n_layer": 2, "n_head": 4}
_BLOCKS = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_ENCODER = {
    **_BLOCKS,
    "intermediate_size": 128,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
_NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
_END = "<|endoftext|>"
_ROBERTA = Special(
    ("<s>", "<pad>", "</s>", "<unk>"),
    {
        **{"bos": "<s>", "eos": "</s>", "sep": "</s>", "cls": "<s>", "unk": "<unk>"},
        **{"pad": "<pad>", "mask": AddedToken("<mask>", lstrip=True, special=True)},
    },
    last=("<mask>",),
    around=("<s> $A </s>", "<s> $A </s> </s> $B </s>"),
)
FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "gpt2": Family(
            "gpt2",
            {**_GPT, **_NO_DROPOUT, "n_positions": 1024, "bos_token_id": 0, "eos_token_id": 0},
            Special((_END,), {"bos": _END, "eos": _END}),
        ),
        # Its vocabulary has no end token: `dpft.models.load` adds one, as to the published model.
        "openai-gpt": Family(
            "openai-gpt",
            {**_GPT, **_NO_DROPOUT, "n_positions": 512},
            Special(("<unk>",), {"unk": "<unk>"}),
        ),
        # As SmolLM2: two key-value heads for four, a tied head.
        "llama": Family(
            "llama",
            {
                **{**_BLOCKS, "intermediate_size": 176, "num_key_value_heads": 2},
                **{"max_position_embeddings": 2048, "tie_word_embeddings": True},
                **{"bos_token_id": 1, "eos_token_id": 2},
            },
            Special(("<unk>", "<s>", "</s>"), {"unk": "<unk>", "bos": "<s>", "eos": "</s>"}),
        ),
        "bert": Family(
            "bert",
            {**_ENCODER, "max_position_embeddings": 512, "pad_token_id": 0},
            Special(
                ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
                {name: f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")},
                types=True,
                around=("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),
            ),
        ),
        "roberta": Family(
            "roberta",
            {
                # 512 and two: positions are counted from one after the padding's, which is 1.
                **{**_ENCODER, "max_position_embeddings": 514, "type_vocab_size": 1},
                **{"layer_norm_eps": 1e-5, "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2},
            },
            _ROBERTA,
        ),
        # As the first T5: one table for encoder, decoder and, scaled, head; no limit of positions.
        "t5": Family(
            "t5",
            {
                **{"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4},
                **{"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
                "dropout_rate": 0.0,
            },
            Special(
                ("<pad>", "</s>", "<unk>"),
                {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"},
                around=("$A </s>", "$A </s> $B </s>"),
            ),
        ),
        "bart": Family(
            "bart",
            {
                **{"encoder_layers": 2, "decoder_layers": 2, "d_model": 64},
                **{"encoder_attention_heads": 4, "decoder_attention_heads": 4},
                **{"encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "dropout": 0.0},
                **{"max_position_embeddings": 1024, "bos_token_id": 0, "pad_token_id": 1},
                **{"eos_token_id": 2, "decoder_start_token_id": 2},
            },
            _ROBERTA,  # whose tokens it has
        ),
        "vit": Family("vit", {**_ENCODER, "image_size": 32, "patch_size": 8}),
        "wrn": Family("wide_resnet", {"depth": 10, "width": 1}),
    }
)


@dataclass(frozen=True)
class StandIn:
    """The origin of a stand-in; with the methods of `dpft.models.files.Files`."""

    family: Family
    name: str
    flags = (flag(Flag.STAND_IN_MODEL),)
    drawn = True
    has_weights = False

    def config(self) -> Any:
        return self.family.config(0 if self.family.special is None else len(self._built))

    def pretrained(
        self, auto: Any, config: Any, new_head: bool, absent: AbstractSet[str] = frozenset()
    ) -> tuple[PreTrainedModel, frozenset[str]]:
        raise ModelError(f"{self.name} has no weights; they are drawn")

    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self._built

    def preprocessor(self) -> Mapping[str, Any]:
        return {}

    @cached_property
    def _built(self) -> PreTrainedTokenizerBase:
        special = self.family.special
        if special is None:
            raise ModelError(f"{self.name} is a model of images; it has no tokenizer")
        return build_tokenizer(special)


def find(name: str) -> StandIn:
    """The stand-in of ``random:FAMILY``.

    Raises:
        ModelError: if there is no such family.
    """
    path = f"random:{name}"
    if name not in FAMILIES:
        raise ModelError(
            f"no stand-in {path!r}{suggestion(name, FAMILIES)}; expected one of "
            f"{', '.join(f'random:{known}' for known in FAMILIES)}"
        )
    return StandIn(FAMILIES[name], path)


def build_tokenizer(special: Special) -> PreTrainedTokenizerBase:
    """The bundled tokenizer's pieces with the special tokens of a family."""
    bundled = json.loads(_PIECES.read_text(encoding="utf-8"))
    own = {token["content"] for token in bundled["added_tokens"]}
    pieces = sorted(bundled["model"]["vocab"], key=bundled["model"]["vocab"].__getitem__)
    vocabulary = {token: i for i, token in enumerate(special.first)}
    for piece in pieces:
        if piece not in own:
            vocabulary[piece] = len(vocabulary)
    merges = [(left, right) for left, right in bundled["model"]["merges"]]
    for word in _WORDS:
        _learn(word, vocabulary, merges)
        _learn(_SPACE + word, vocabulary, merges)
    for token in special.last:
        vocabulary[token] = len(vocabulary)
    bpe = Tokenizer(models.BPE(vocabulary, merges))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    if special.around:
        one, two = special.around
        added = [(token, vocabulary[token]) for token in special.first if token in two]
        bpe.post_processor = processors.TemplateProcessing(one, two, added)
    inputs = ["input_ids", *(["token_type_ids"] if special.types else []), "attention_mask"]
    tokenizer: PreTrainedTokenizerBase = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        model_input_names=inputs,
        **{f"{role}_token": token for role, token in special.roles.items()},
    )
    return tokenizer


def _learn(word: str, vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> None:
    """Make ``word`` one token, by merges that come after all others."""
    parts: Sequence[str] = [t.value for t in models.BPE(vocabulary, merges).tokenize(word)]
    whole = parts[0]
    for part in parts[1:]:
        merges.append((whole, part))
        whole += part
        vocabulary.setdefault(whole, len(vocabulary))
