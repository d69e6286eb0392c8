"""BERTScore and BLEURT as GEM runs them, where their weights are to be had.

The weights are named by a folder or a hub id. Where they are not named, cannot be loaded or are of
another kind, the score is None and the signature says why: never is another model taken instead.

Source: Zhang et al., ICLR 2020, "BERTScore: Evaluating Text Generation with BERT"; Sellam et al.,
ACL 2020, "BLEURT: Learning Robust Metrics for Text Generation".
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoTokenizer,
    BertForSequenceClassification,
    DistilBertModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from dpft.tasks.views import blocks

# What BERTScore's authors chose for distilbert-base-uncased, counted from 1 after the embeddings.
BERTSCORE_LAYER = 5
# Tokens that bleurt-base-128 reads of reference and prediction together.
BLEURT_LENGTH = 128
_ITEMS_AT_ONCE = 32


@dataclass(frozen=True)
class Absent:
    """Stands for a score that cannot be computed."""

    reason: str

    @property
    def signature(self) -> str:
        return f"not computed ({self.reason})"

    def score(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> None:
        return None


@dataclass(frozen=True)
class Weights:
    """A model that scores, and what is written down of it.

    Attributes:
        name: folder or hub id, as it was given.
        model: in evaluation mode, in float32.
        tokenizer: its tokenizer.
        digest: SHA-256 (16 hex) of all its parameters and their names.
    """

    name: str
    model: Any
    tokenizer: PreTrainedTokenizerBase
    digest: str

    @property
    def signature(self) -> str:
        versions = f"transformers:{transformers.__version__}|torch:{torch.__version__}"
        return f"{self.name}|sha256:{self.digest}|{versions}"


@dataclass(frozen=True)
class BERTScore:
    """Greedy matching of tokens by cosine similarity; no idf weights, no rescaling.

    The special tokens are not matched themselves, but others may be matched to them, as in the
    authors' package. Precision, recall and F1 are each the best over an item's references.
    """

    weights: Weights

    @property
    def signature(self) -> str:
        how = f"layer:{BERTSCORE_LAYER}|idf:no|rescaled:no|refs:max of P, R, F1 apart"
        return f"F1|{how}|{self.weights.signature}"

    def score(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
        scores = self.items(predictions, references)
        return sum(f1 for _, _, f1 in scores) / len(scores)

    def items(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]]
    ) -> list[tuple[float, float, float]]:
        """Precision, recall and F1 of each item."""
        out = []
        for run in blocks(zip(predictions, references, strict=True), _ITEMS_AT_ONCE):
            vectors = self._vectors({text.strip() for p, refs in run for text in (p, *refs)})
            for prediction, refs in run:
                found = [match(vectors[prediction.strip()], vectors[ref.strip()]) for ref in refs]
                precisions, recalls, f1s = zip(*found, strict=True)
                out.append((max(precisions), max(recalls), max(f1s)))
        return out

    @torch.no_grad()
    def _vectors(self, texts: set[str]) -> dict[str, Tensor]:
        """Unit vectors of each text's tokens, special ones included: ``(T, d)``."""
        ordered = sorted(texts)
        encoded = self.weights.tokenizer(
            ordered,
            padding=True,
            truncation=True,
            max_length=self.weights.model.config.max_position_embeddings,
            return_tensors="pt",
        ).to(self.weights.model.device)
        mask = encoded["attention_mask"]
        hidden = self.weights.model(encoded["input_ids"], attention_mask=mask).last_hidden_state
        unit = torch.nn.functional.normalize(hidden, dim=-1)
        lengths = mask.sum(1).tolist()
        return {text: unit[i, : lengths[i]] for i, text in enumerate(ordered)}


def match(prediction: Tensor, reference: Tensor) -> tuple[float, float, float]:
    """Precision, recall and F1 of one prediction and one reference.

    Args:
        prediction: unit vectors of its tokens, ``(T, d)``, the first and last of special tokens.
        reference: the same, ``(S, d)``.

    Returns:
        Zeros if one of them has no other tokens.
    """
    if min(len(prediction), len(reference)) <= 2:
        return 0.0, 0.0, 0.0
    similarity = prediction @ reference.T
    precision = float(similarity[1:-1].amax(1).mean())
    recall = float(similarity[:, 1:-1].amax(0).mean())
    total = precision + recall
    return precision, recall, 2 * precision * recall / total if total else 0.0


@dataclass(frozen=True)
class BLEURT:
    """A regression on reference and prediction; the mean over references, then over items."""

    weights: Weights

    @property
    def signature(self) -> str:
        return f"refs:mean|max_length:{BLEURT_LENGTH}|{self.weights.signature}"

    def score(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
        scores = self.items(predictions, references)
        return sum(scores) / len(scores)

    def items(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
        """The score of each item."""
        out = []
        for run in blocks(zip(predictions, references, strict=True), _ITEMS_AT_ONCE):
            flat = iter(self._ratings([(ref, p) for p, refs in run for ref in refs]))
            out += [sum(next(flat) for _ in refs) / len(refs) for _, refs in run]
        return out

    @torch.no_grad()
    def _ratings(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        encoded = self.weights.tokenizer(
            [reference for reference, _ in pairs],
            [prediction for _, prediction in pairs],
            padding=True,
            truncation="longest_first",
            max_length=BLEURT_LENGTH,
            return_token_type_ids=True,  # not every tokenizer gives them unasked
            return_tensors="pt",
        ).to(self.weights.model.device)
        ratings: list[float] = self.weights.model(**encoded).logits[:, 0].tolist()
        return ratings


# One of each is kept, since a score and its signature are asked for one after the other.
@lru_cache(maxsize=1)
def load_bertscore(name: str | None) -> BERTScore | Absent:
    """BERTScore with the weights of `distilbert-base-uncased`."""
    loaded = _load(name, "task.bertscore", DistilBertModel, "distilbert", BERTSCORE_LAYER)
    if isinstance(loaded, Absent):
        return loaded
    # Layers beyond the one whose output is used.
    loaded.model.transformer.layer = loaded.model.transformer.layer[:BERTSCORE_LAYER]
    return BERTScore(loaded)


@lru_cache(maxsize=1)
def load_bleurt(name: str | None) -> BLEURT | Absent:
    """BLEURT with the weights of `bleurt-base-128` as a BERT with one output."""
    loaded = _load(name, "task.bleurt", BertForSequenceClassification, "bert", 1)
    if isinstance(loaded, Absent):
        return loaded
    if loaded.model.config.num_labels != 1:
        return Absent(f"{name} has {loaded.model.config.num_labels} outputs; expected one")
    return BLEURT(loaded)


def _load(name: str | None, setting: str, cls: Any, kind: str, layers: int) -> Weights | Absent:
    if name is None:
        return Absent(f"{setting} is null")
    from dpft.config.offline import stay_offline_if_unreachable

    stay_offline_if_unreachable()
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
        if config.model_type != kind or config.num_hidden_layers < layers:
            return Absent(
                f"{name} is a {config.model_type} of {config.num_hidden_layers} layers; expected a "
                f"{kind} of {layers} or more"
            )
        model, report = cls.from_pretrained(
            name,
            trust_remote_code=False,
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
        )
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # other scores are not lost because of these weights
        return Absent(f"{name} could not be loaded: {type(error).__name__}")
    if report["missing_keys"]:
        # They would be random numbers.
        return Absent(f"{name} lacks weights, such as {min(report['missing_keys'])}")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Weights(name, model.eval().to(device), tokenizer, _digest(model))


def _digest(model: PreTrainedModel) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
