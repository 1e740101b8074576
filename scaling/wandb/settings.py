"""Where runs go: the settings of `tracking`, and what the environment says of the server and the key.

Knows names, addresses and whether there is a key; never the key itself, which is left to wandb.
"""

import configparser
import contextlib
import dataclasses
import math
import netrc
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from scaling.core.case import Refusal, unknown_name

MODES = ("auto", "online", "offline")
_WANDB_MODES = {
    "online": "online", "run": "online", "shared": "online", "offline": "offline", "dryrun": "offline", "disabled": "disabled",
}  # fmt: skip


@dataclass(frozen=True)
class TrackingSettings:
    """Where runs go. There is no field for an API key: it comes from WANDB_API_KEY or netrc."""

    project: str = "ad-scaling"
    entity: str | None = None  # None: the default entity of the key
    mode: str = "auto"
    timeout: float = 20.0  # seconds
    every: float = 60.0  # seconds between two publications while a study runs
    dashboard: bool = True
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise unknown_name("tracking.mode", self.mode, MODES)
        if not isinstance(self.project, str) or not re.fullmatch(r"[^/\\#?%:]{1,128}", self.project):
            raise Refusal(
                f"tracking.project must be 1 to 128 characters without / \\ # ? % :, not {self.project!r}"
            )
        if self.entity is not None and not (isinstance(self.entity, str) and self.entity):
            raise Refusal(f"tracking.entity must be a name or null, not {self.entity!r}")
        for name in ("timeout", "every"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise Refusal(f"tracking.{name} must be a positive number of seconds, not {value!r}")
        if not isinstance(self.dashboard, bool):
            raise Refusal(f"tracking.dashboard must be true or false, not {self.dashboard!r}")
        if not isinstance(self.tags, list | tuple) or not all(
            isinstance(tag, str) and 1 <= len(tag) <= 64 for tag in self.tags
        ):
            raise Refusal(
                f"tracking.tags must be a list of words of at most 64 characters, not {self.tags!r}"
            )
        object.__setattr__(self, "tags", tuple(self.tags))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "TrackingSettings":
        """The settings of a `tracking` config; an unknown key or a bad value is a `Refusal`."""
        known = [f.name for f in dataclasses.fields(cls)]
        told = {str(name): value for name, value in config.items() if name != "name"}
        for name in told:
            if name not in known:
                if re.search("key|token|secret|passw", name, re.IGNORECASE):
                    raise Refusal(
                        f"tracking.{name}: keys come from WANDB_API_KEY in the environment, never from a config"
                    )
                raise unknown_name("key of tracking", name, known)
        return cls(**told)


def mode_of(settings: TrackingSettings) -> tuple[str, tuple[str, ...]]:
    """online, offline or disabled, and what is to be said of it; WANDB_MODE in the environment wins over the settings."""
    asked = os.environ.get("WANDB_MODE", "").strip().lower()
    if asked in _WANDB_MODES:
        return _WANDB_MODES[asked], ()
    if asked:
        return "offline", (
            f"W&B: unknown WANDB_MODE {asked!r}, so offline: choose from {', '.join(_WANDB_MODES)}",
        )
    if settings.mode != "auto":
        return settings.mode, ()
    return ("online" if _has_key() else "offline"), ()


def _has_key() -> bool:
    """Whether there is a key for the server, in the environment or in netrc."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        found = netrc.netrc(os.path.expanduser(os.environ.get("NETRC") or "~/.netrc"))
        return found.authenticators(urlsplit(base_url()).netloc) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def base_url() -> str:
    """The server: WANDB_BASE_URL, or what `wandb login --host` wrote, or W&B's own."""
    told = os.environ.get("WANDB_BASE_URL")
    if not told:
        written = configparser.ConfigParser(interpolation=None)
        with contextlib.suppress(OSError, configparser.Error, UnicodeError):
            written.read(
                os.path.join(
                    os.path.expanduser(os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb"), "settings"
                )
            )
        told = written.get("default", "base_url", fallback=None) or "https://api.wandb.ai"
    parts = urlsplit(told.rstrip("/"))
    return parts._replace(
        netloc=parts.netloc.rpartition("@")[2]
    ).geturl()  # a password in the address stays out of the ledger


def entity_of(settings: TrackingSettings) -> str | None:
    """The entity that was asked for; None: that of the key."""
    return settings.entity or os.environ.get("WANDB_ENTITY") or None


def address(settings: TrackingSettings) -> str:
    """Where a person finds the project."""
    base = base_url().replace("//api.wandb.ai", "//wandb.ai")
    return "/".join(part for part in (base, entity_of(settings), settings.project) if part)


def place(settings: TrackingSettings, mode: str) -> dict[str, Any]:
    """Where runs go in this mode, as the ledger has it."""
    server = base_url() if mode == "online" else None
    return {"mode": mode, "entity": entity_of(settings), "project": settings.project, "base_url": server}
