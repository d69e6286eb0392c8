"""BERTScore and BLEURT as GEM runs them, where their weights are available.

The weights are named by a folder or a hub id. Where they are not named, cannot be loaded or are of
another kind, the score is None and the signature says why: no other model is taken instead.

Source: Zhang et al., ICLR 2020, "BERTScore: Evaluating Text Generation with BERT"; Sellam et al.,
ACL 2020, "BLEURT: Learning Robust Metrics for Text Generation".
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, BertForSequenceClassification, DistilBertModel

from dpft.tasks.views import blocks

# What BERTScore's authors chose for distilbert-base-uncased, counted from 1 after the embeddings.
BERTSCORE_LAYER = 5
# Tokens that bleurt-base-128 reads of reference and prediction together.
BLEURT_LENGTH = 128
_ITEMS_AT_ONCE = 32


@dataclass(frozen=True)
class Weights:
    """A model with its tokenizer; neither where the score cannot be computed."""

    signature: str  # of the weights, or why there are none
    model: Any = None
    tokenizer: Any = None

    def encoded(self, *texts: list[str], length: int, **options: Any) -> Any:
        """Return padded tokens of texts, or of pairs of texts, on the model's device."""
        how = {"padding": True, "truncation": "longest_first", "max_length": length, **options}
        return self.tokenizer(*texts, return_tensors="pt", **how).to(self.model.device)


@torch.no_grad()
def bertscore(
    weights: Weights, predictions: Sequence[str], references: Sequence[Sequence[str]]
) -> float | None:
    """Return the mean F1 of greedy matching by cosine similarity; no idf weights, no rescaling.

    The special tokens are not matched themselves, but others may be matched to them, as in the
    authors' package. F1 is the best over an item's references.
    """
    if weights.model is None:
        return None
    scores = []
    for run in blocks(zip(predictions, references, strict=True), _ITEMS_AT_ONCE):
        texts = sorted({text.strip() for p, refs in run for text in (p, *refs)})
        encoded = weights.encoded(texts, length=weights.model.config.max_position_embeddings)
        mask = encoded["attention_mask"]
        hidden = weights.model(encoded["input_ids"], attention_mask=mask).last_hidden_state
        # Unit vectors of each text's tokens, special ones included: (T, d).
        unit, lengths = torch.nn.functional.normalize(hidden, dim=-1), mask.sum(1).tolist()
        vectors = {text: unit[i, : lengths[i]] for i, text in enumerate(texts)}
        scores += [
            max(match(vectors[prediction.strip()], vectors[ref.strip()]) for ref in refs)
            for prediction, refs in run
        ]
    return sum(scores) / len(scores)


def match(prediction: Tensor, reference: Tensor) -> float:
    """Return F1 of one prediction and one reference; 0 if one has no other than special tokens."""
    if min(len(prediction), len(reference)) <= 2:
        return 0.0
    similarity = prediction @ reference.T
    precision = float(similarity[1:-1].amax(1).mean())
    recall = float(similarity[:, 1:-1].amax(0).mean())
    total = precision + recall
    return 2 * precision * recall / total if total else 0.0


@torch.no_grad()
def bleurt(
    weights: Weights, predictions: Sequence[str], references: Sequence[Sequence[str]]
) -> float | None:
    """Return a regression on reference and prediction: mean over references, then over items."""
    if weights.model is None:
        return None
    scores: list[float] = []
    for run in blocks(zip(predictions, references, strict=True), _ITEMS_AT_ONCE):
        pairs = [(ref, prediction) for prediction, refs in run for ref in refs]
        first, second = map(list, zip(*pairs, strict=True))
        # Not every tokenizer gives types unasked.
        encoded = weights.encoded(first, second, length=BLEURT_LENGTH, return_token_type_ids=True)
        ratings = iter(weights.model(**encoded).logits[:, 0].tolist())
        scores += [sum(next(ratings) for _ in refs) / len(refs) for _, refs in run]
    return sum(scores) / len(scores)


# One of each is kept, since a score and its signature are asked for one after the other.
@lru_cache(maxsize=1)
def load_bertscore(name: str | None) -> Weights:
    """Return the weights of `distilbert-base-uncased`."""
    how = f"F1|layer:{BERTSCORE_LAYER}|idf:no|rescaled:no|refs:max of P, R, F1 apart"
    found = _load(name, "task.bertscore", DistilBertModel, "distilbert", BERTSCORE_LAYER, how)
    if found.model is not None:  # layers beyond the one whose output is used
        found.model.transformer.layer = found.model.transformer.layer[:BERTSCORE_LAYER]
    return found


@lru_cache(maxsize=1)
def load_bleurt(name: str | None) -> Weights:
    """Return the weights of `bleurt-base-128` as a BERT with one output."""
    how = f"refs:mean|max_length:{BLEURT_LENGTH}"
    return _load(name, "task.bleurt", BertForSequenceClassification, "bert", 1, how)


def _load(name: str | None, setting: str, cls: Any, kind: str, layers: int, how: str) -> Weights:
    if name is None:
        return Weights(f"not computed ({setting} is null)")
    from dpft.config.offline import stay_offline_if_unreachable

    stay_offline_if_unreachable()
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
        if config.model_type != kind or config.num_hidden_layers < layers:
            return Weights(
                f"not computed ({name} is a {config.model_type} of {config.num_hidden_layers} "
                f"layers; expected a {kind} of {layers} or more)"
            )
        if kind == "bert" and config.num_labels != 1:
            return Weights(f"not computed ({name} has {config.num_labels} outputs; expected one)")
        how_loaded = {"config": config, "dtype": torch.float32, "output_loading_info": True}
        model, report = cls.from_pretrained(name, trust_remote_code=False, **how_loaded)
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # other scores are not lost because of these weights
        return Weights(f"not computed ({name} could not be loaded: {type(error).__name__})")
    if lacking := report["missing_keys"]:  # they would be random numbers
        return Weights(f"not computed ({name} lacks weights, such as {min(lacking)})")
    digest = hashlib.sha256()
    for key, tensor in sorted(model.state_dict().items()):
        digest.update(key.encode() + tensor.cpu().contiguous().numpy().tobytes())
    versions = f"transformers:{transformers.__version__}|torch:{torch.__version__}"
    signature = f"{how}|{name}|sha256:{digest.hexdigest()[:16]}|{versions}"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Weights(signature, model.eval().to(device), tokenizer)
