"""Compose Hydra's config outside ``hydra.main``, for verbs that do not run jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpft.config import conf_dir
from dpft.errors import ConfigError


def compose(overrides: Sequence[str]) -> dict[str, Any]:
    """The resolved config for ``overrides``.

    Raises:
        ConfigError: for an override that Hydra refuses.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        try:
            config = hydra_compose("config", overrides=list(overrides))
            resolved = OmegaConf.to_container(config, resolve=True)
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigError(f"{error}".strip()) from error
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}
