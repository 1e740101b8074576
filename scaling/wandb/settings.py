"""Validate the `tracking` settings: W&B project, entity, mode, time limit, dashboard and tags.

wandb itself reads the API key, the server and the default entity.
"""

import dataclasses
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scaling.core.case import Refusal, unknown_name

MODES = ("auto", "online", "offline", "disabled")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= 64


@dataclass(frozen=True)
class TrackingSettings:
    """The settings of a publication to W&B. Raise `Refusal` if a value is invalid."""

    project: str = "ad-scaling"
    entity: str | None = None  # user or team; None for the default of the API key
    mode: str = "auto"  # "auto" is online if there is an API key, otherwise offline
    timeout: float = 20.0  # seconds to wait for the server
    dashboard: bool = True  # whether to save a W&B workspace and a W&B report
    tags: tuple[str, ...] = ()  # added to the tags of each W&B run

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise unknown_name("tracking.mode", self.mode, MODES)
        is_number = isinstance(self.timeout, int | float) and not isinstance(self.timeout, bool)
        checks = {  # field -> (whether its value is valid, valid values)
            "project": (_is_text(self.project) and not set(self.project) & set("/\\#?%:"),
                        "a name of 1 to 64 characters without / \\ # ? % :"),
            "entity": (self.entity is None or _is_text(self.entity), "a name or null"),
            "timeout": (is_number and 0 < self.timeout < math.inf, "a positive number of seconds"),
            "dashboard": (isinstance(self.dashboard, bool), "true or false"),
            "tags": (isinstance(self.tags, list | tuple) and all(map(_is_text, self.tags)),
                     "a list of words of at most 64 characters"),
        }  # fmt: skip
        for name, (is_valid, valid) in checks.items():
            if not is_valid:
                raise Refusal(f"tracking.{name} must be {valid}, not {getattr(self, name)!r}")
        object.__setattr__(self, "tags", tuple(self.tags))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "TrackingSettings":
        """Return the settings in a `tracking` config. Raise `Refusal` if a key or value is invalid.

        The environment variable WANDB_MODE overrides `mode`.
        """
        fields = {str(name): value for name, value in config.items() if name != "name"}
        names = [field.name for field in dataclasses.fields(cls)]
        for name in fields.keys() - set(names):
            if re.search("key|token|secret|passw", name, re.IGNORECASE):
                raise Refusal(f"tracking.{name}: keys come from WANDB_API_KEY, never from a config")
            raise unknown_name("key of tracking", name, names)
        if mode := os.environ.get("WANDB_MODE"):
            if mode not in MODES:
                raise unknown_name("WANDB_MODE", mode, MODES)
            fields["mode"] = mode
        return cls(**fields)
