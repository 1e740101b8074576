"""Validate the `tracking` settings: the W&B project, entity and mode, time limits and tags.

wandb itself reads the API key, the server and the default entity.
"""

import dataclasses
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from scaling.core.case import Refusal, unknown_name

MODES = ("auto", "online", "offline")
_MODES_OF_WANDB = ("online", "offline", "disabled")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= 64


def _is_duration(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


# (field, whether a value is valid, valid values)
_RULES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("project", lambda value: _is_text(value) and not set(value) & set("/\\#?%:"),
     "a name of 1 to 64 characters without / \\ # ? % :"),
    ("entity", lambda value: value is None or _is_text(value), "a name or null"),
    ("timeout", _is_duration, "a positive number of seconds"),
    ("every", _is_duration, "a positive number of seconds"),
    ("dashboard", lambda value: isinstance(value, bool), "true or false"),
    ("tags", lambda value: isinstance(value, list | tuple) and all(map(_is_text, value)),
     "a list of words of at most 64 characters"),
)  # fmt: skip


@dataclass(frozen=True)
class TrackingSettings:
    """The W&B project and entity, the mode, the time limits and the tags of a publication."""

    project: str = "ad-scaling"
    entity: str | None = None  # user or team; None for the default of the API key
    mode: str = "auto"  # "auto" is online if there is an API key, otherwise offline
    timeout: float = 20.0  # seconds to wait for the server
    every: float = 60.0  # seconds between publications while a study is running
    dashboard: bool = True
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.mode not in (*MODES, "disabled"):
            raise unknown_name("tracking.mode", self.mode, MODES)
        for name, is_valid, valid in _RULES:
            if not is_valid(value := getattr(self, name)):
                raise Refusal(f"tracking.{name} must be {valid}, not {value!r}")
        object.__setattr__(self, "tags", tuple(self.tags))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "TrackingSettings":
        """Return the settings of a `tracking` config. Raise `Refusal` if a key or value is invalid.

        The environment variable WANDB_MODE overrides the mode of the config.
        """
        fields = {str(name): value for name, value in config.items() if name != "name"}
        known = [field.name for field in dataclasses.fields(cls)]
        for name in fields.keys() - set(known):
            if re.search("key|token|secret|passw", name, re.IGNORECASE):
                raise Refusal(f"tracking.{name}: keys come from WANDB_API_KEY, never from a config")
            raise unknown_name("key of tracking", name, known)
        if mode := os.environ.get("WANDB_MODE"):
            if mode not in _MODES_OF_WANDB:
                raise unknown_name("WANDB_MODE", mode, _MODES_OF_WANDB)
            fields["mode"] = mode
        return cls(**fields)
