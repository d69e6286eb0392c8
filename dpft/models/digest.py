"""A digest of what a run starts from: it cannot be continued from another model's weights."""

from __future__ import annotations

import hashlib

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
    if loaded.tokenizer is not None:
        found.update(repr(sorted(loaded.tokenizer.get_vocab().items())).encode())
        backend = getattr(loaded.tokenizer, "backend_tokenizer", None)
        found.update(b"" if backend is None else backend.to_str().encode())
    return found.digest()
