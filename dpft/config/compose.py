"""Compose Hydra's config outside ``hydra.main``, for verbs that do not run jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dpft.config.folder import conf_dir
from dpft.config.overrides import check_flags, refusals_told


def compose(overrides: Sequence[str]) -> dict[str, Any]:
    """The resolved config for ``overrides``.

    Raises:
        ConfigError: for an override that Hydra refuses.
    """
    with initialised():
        return compose_here(overrides)


@contextmanager
def initialised() -> Iterator[None]:
    """Hydra, set up once for many calls of `compose_here`."""
    from hydra import initialize_config_dir

    # Refusals are told where they arise, so that the caller can say which of many it was.
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        yield


def compose_here(overrides: Sequence[str]) -> dict[str, Any]:
    """As `compose`, where Hydra is set up already: within `initialised`, or in one of its jobs.

    Raises:
        ConfigError: for an override that Hydra refuses.
    """
    from hydra import compose as hydra_compose
    from omegaconf import OmegaConf

    check_flags([word for word in overrides if word.startswith("=")])
    with refusals_told():
        config = hydra_compose("config", overrides=list(overrides))
        resolved = OmegaConf.to_container(config, resolve=True)
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}
