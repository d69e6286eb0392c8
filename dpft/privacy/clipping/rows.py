"""Rows of the records in the place of parameters ``(1, ...)``, while their modules run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dpft.privacy.clipping.rules.automatic import Arguments
from dpft.privacy.clipping.trials import close, random_state_kept


class RecordRows:
    """Which modules have rows in the place of which parameters."""

    def __init__(self) -> None:
        self._replaced: list[tuple[nn.Module, str, nn.Parameter]] = []

    def put(self, module: nn.Module, local: str, rows: Tensor) -> None:
        """Give a module ``rows``, ``(B, ...)``, until its parameter is restored."""
        parameter = module._parameters[local]
        assert parameter is not None
        self._replaced.append((module, local, parameter))
        module._parameters[local] = rows  # type: ignore[assignment]

    def restore(self, module: nn.Module | None = None) -> None:
        """Give a module, or all of them, their parameters back."""
        kept = []
        for owner, local, parameter in self._replaced:
            if module is None or owner is module:
                owner._parameters[local] = parameter
            else:
                kept.append((owner, local, parameter))
        self._replaced = kept

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Within this context every module has its own parameters."""
        rows = [(module, local, module._parameters[local]) for module, local, _ in self._replaced]
        for module, local, parameter in self._replaced:
            module._parameters[local] = parameter
        try:
            yield
        finally:
            for module, local, row in rows:
                module._parameters[local] = row


def takes_rows(
    module: nn.Module, local: str, rows: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Whether a module gives each record what its own row makes of it, and nothing else.

    One that repeats the one row does not, nor one that counts the parameter's numbers, or adds its
    rows to positions. Tried without gradients: the first record is given another row, and of the
    others nothing may change.

    Args:
        module: about to be called.
        local: its parameter.
        rows: of the records, ``(B, ...)``.
        args: of the call.
        kwargs: of the call.
    """
    own = module._parameters[local]
    assert own is not None
    given, tensors = Arguments.of((args, kwargs))

    def outputs(value: Tensor) -> list[Tensor]:
        module._parameters[local] = value  # type: ignore[assignment]
        copies, named = given.filled([x.clone() for x in tensors])  # it may write to them
        with random_state_kept(rows):
            return Arguments.of(module.forward(*copies, **named))[1]

    with torch.no_grad():
        expected = outputs(own)
        try:
            found = outputs(torch.cat([own + 1, rows[1:]]))
            return [y.shape for y in found] == [y.shape for y in expected] and all(
                close(y[1:], whole[1:])
                for y, whole in zip(found, expected, strict=True)
                if y.dim() and len(y) == len(rows)
            )
        except torch.OutOfMemoryError:
            raise
        except Exception:
            return False
        finally:
            module._parameters[local] = own
