"""``conf/track``: where a run's figures can be watched. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dpft.config.errors import ConfigError
from dpft.config.flags import Flag, Stored, flag

SERVICES = ("wandb", "mlflow", "trackio")


@dataclass(frozen=True)
class Track:
    """A tracker; what leaves ``private/`` is what the guarantee covers, unless it is asked for.

    Attributes:
        name: of the tracker.
        project: of a service, under which runs stand together.
        private: whether losses, norms and numbers of records are tracked too: noiseless figures of
            private records.
        upload_private: whether those may go to a service, which others may read.
    """

    name: Literal["none", "csv", "tensorboard", "wandb", "mlflow", "trackio"] = "none"
    project: str = "dpft"
    private: bool = False
    upload_private: bool = False

    def __post_init__(self) -> None:
        if self.private and self.name in SERVICES and not self.upload_private:
            raise ConfigError(
                f"track.private=true with track={self.name}, which others may read: losses and "
                "norms are computed from private records without noise. Type "
                "track=tensorboard for a folder of your own, or track.upload_private=true"
            )
        if self.upload_private and not (self.private and self.name in SERVICES):
            raise ConfigError(
                f"track.upload_private=true with track={self.name} and track.private="
                f"{str(self.private).lower()}; expected track.private=true and one of "
                f"{', '.join(SERVICES)}"
            )

    def flags(self) -> list[Stored]:
        """Return what is special about a run that is tracked so."""
        return [flag(Flag.TRACKED_PRIVATELY, service=self.name)] if self.upload_private else []
