"""A digest of what a run starts from: it cannot be continued from another model's weights."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch

from dpft.models.load import LoadedModel


@torch.no_grad()
def digest(loaded: LoadedModel) -> bytes:
    """SHA-256 of the weights, frozen ones among them, the buffers and the tokenizer.

    A checkpoint holds only what moves. The rest is read again where a run is continued, from a
    folder or a hub where it may have been replaced meanwhile.
    """
    found = hashlib.sha256()
    tensors = [*loaded.model.named_parameters(), *loaded.model.named_buffers()]
    for name, tensor in tensors:
        plain = tensor.detach().cpu().contiguous()
        found.update(f"{name} {tuple(plain.shape)} {plain.dtype}\n".encode())
        found.update(plain.view(-1).view(torch.uint8).numpy().data)
    for part in _tokenizer(loaded):
        found.update(part)
    return found.digest()


def tokenizer_digest(loaded: LoadedModel) -> str:
    """SHA-256 of all that the tokens of a text follow from."""
    return hashlib.sha256(b"".join(_tokenizer(loaded))).hexdigest()


def _tokenizer(loaded: LoadedModel) -> Iterator[bytes]:
    tokenizer = loaded.tokenizer
    if tokenizer is None:
        return
    yield repr(sorted(tokenizer.get_vocab().items())).encode()
    backend = getattr(tokenizer, "backend_tokenizer", None)
    yield b"" if backend is None else backend.to_str().encode()
