"""Compose Hydra's config outside ``hydra.main``, for verbs that do not run jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpft.config import conf_dir
from dpft.overrides import refusals_told


def compose(overrides: Sequence[str]) -> dict[str, Any]:
    """The resolved config for ``overrides``.

    Raises:
        ConfigError: for an override that Hydra refuses.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from omegaconf import OmegaConf

    with refusals_told(), initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = hydra_compose("config", overrides=list(overrides))
        resolved = OmegaConf.to_container(config, resolve=True)
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}
