"""BERTScore and BLEURT as GEM runs them, where their weights are available.

The weights are named by a folder or a hub id. Where they are not named, cannot be loaded or are of
another kind, the score is None and the signature says why: no other model is taken instead.

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

    signature: str

    def score(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> None:
        return None


@dataclass(frozen=True)
class BERTScore:
    """Greedy matching of tokens by cosine similarity; no idf weights, no rescaling.

    The special tokens are not matched themselves, but others may be matched to them, as in the
    authors' package. Precision, recall and F1 are each the best over an item's references.
    """

    model: Any
    tokenizer: PreTrainedTokenizerBase
    signature: str

    def score(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
        scores = self.items(predictions, references)
        return sum(f1 for _, _, f1 in scores) / len(scores)

    def items(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]]
    ) -> list[tuple[float, float, float]]:
        """Return precision, recall and F1 of each item."""
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
        """Return unit vectors of each text's tokens, special ones included: ``(T, d)``."""
        ordered = sorted(texts)
        encoded = self.tokenizer(
            ordered,
            padding=True,
            truncation=True,
            max_length=self.model.config.max_position_embeddings,
            return_tensors="pt",
        ).to(self.model.device)
        mask = encoded["attention_mask"]
        hidden = self.model(encoded["input_ids"], attention_mask=mask).last_hidden_state
        unit = torch.nn.functional.normalize(hidden, dim=-1)
        lengths = mask.sum(1).tolist()
        return {text: unit[i, : lengths[i]] for i, text in enumerate(ordered)}


def match(prediction: Tensor, reference: Tensor) -> tuple[float, float, float]:
    """Return precision, recall and F1 of one prediction and one reference.

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

    model: Any
    tokenizer: PreTrainedTokenizerBase
    signature: str

    def score(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
        scores = self.items(predictions, references)
        return sum(scores) / len(scores)

    @torch.no_grad()
    def items(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
        """Return the score of each item."""
        out = []
        for run in blocks(zip(predictions, references, strict=True), _ITEMS_AT_ONCE):
            pairs = [(ref, prediction) for prediction, refs in run for ref in refs]
            encoded = self.tokenizer(
                [reference for reference, _ in pairs],
                [prediction for _, prediction in pairs],
                padding=True,
                truncation="longest_first",
                max_length=BLEURT_LENGTH,
                return_token_type_ids=True,  # not every tokenizer gives them unasked
                return_tensors="pt",
            ).to(self.model.device)
            ratings = iter(self.model(**encoded).logits[:, 0].tolist())
            out += [sum(next(ratings) for _ in refs) / len(refs) for _, refs in run]
        return out


# One of each is kept, since a score and its signature are asked for one after the other.
@lru_cache(maxsize=1)
def load_bertscore(name: str | None) -> BERTScore | Absent:
    """Return BERTScore with the weights of `distilbert-base-uncased`."""
    how = f"F1|layer:{BERTSCORE_LAYER}|idf:no|rescaled:no|refs:max of P, R, F1 apart"
    loaded = _load(name, "task.bertscore", DistilBertModel, "distilbert", BERTSCORE_LAYER)
    if isinstance(loaded, str):
        return Absent(f"not computed ({loaded})")
    model, tokenizer, weights = loaded
    # Layers beyond the one whose output is used.
    model.transformer.layer = model.transformer.layer[:BERTSCORE_LAYER]
    return BERTScore(model, tokenizer, f"{how}|{weights}")


@lru_cache(maxsize=1)
def load_bleurt(name: str | None) -> BLEURT | Absent:
    """Return BLEURT with the weights of `bleurt-base-128` as a BERT with one output."""
    loaded = _load(name, "task.bleurt", BertForSequenceClassification, "bert", 1)
    if isinstance(loaded, str):
        return Absent(f"not computed ({loaded})")
    model, tokenizer, weights = loaded
    if model.config.num_labels != 1:
        return Absent(f"not computed ({name} has {model.config.num_labels} outputs; expected one)")
    return BLEURT(model, tokenizer, f"refs:mean|max_length:{BLEURT_LENGTH}|{weights}")


def _load(
    name: str | None, setting: str, cls: Any, kind: str, layers: int
) -> tuple[Any, PreTrainedTokenizerBase, str] | str:
    """Return model, tokenizer and the signature of the weights, or why there are none."""
    if name is None:
        return f"{setting} is null"
    from dpft.config.offline import stay_offline_if_unreachable

    stay_offline_if_unreachable()
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
        if config.model_type != kind or config.num_hidden_layers < layers:
            return (
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
        return f"{name} could not be loaded: {type(error).__name__}"
    if report["missing_keys"]:
        # They would be random numbers.
        return f"{name} lacks weights, such as {min(report['missing_keys'])}"
    digest = hashlib.sha256()
    for key, tensor in sorted(model.state_dict().items()):
        digest.update(key.encode() + tensor.cpu().contiguous().numpy().tobytes())
    versions = f"transformers:{transformers.__version__}|torch:{torch.__version__}"
    signature = f"{name}|sha256:{digest.hexdigest()[:16]}|{versions}"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return model.eval().to(device), tokenizer, signature
