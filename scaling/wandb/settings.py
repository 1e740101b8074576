"""Where runs go: the settings of `tracking`, and the server and mode that the environment selects.

Only tests whether there is an API key; wandb itself reads the key.
"""

import configparser
import contextlib
import dataclasses
import math
import netrc
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from scaling.core.case import Refusal, unknown_name

MODES = ("auto", "online", "offline")
_WANDB_MODES = {
    "online": "online", "run": "online", "shared": "online", "offline": "offline",
    "dryrun": "offline", "disabled": "disabled",
}  # fmt: skip


def _is_duration(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _is_project(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[^/\\#?%:]{1,128}", value) is not None


def _are_tags(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(
        isinstance(tag, str) and 1 <= len(tag) <= 64 for tag in value
    )


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {  # field -> whether a value is valid, valid values
    "project": (_is_project, "1 to 128 characters without / \\ # ? % :"),
    "entity": (lambda value: value is None or (isinstance(value, str) and value != ""), "a name or null"),
    "timeout": (_is_duration, "a positive number of seconds"),
    "every": (_is_duration, "a positive number of seconds"),
    "dashboard": (lambda value: isinstance(value, bool), "true or false"),
    "tags": (_are_tags, "a list of words of at most 64 characters"),
}


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
        for name, (is_valid, valid) in _RULES.items():
            if not is_valid(value := getattr(self, name)):
                raise Refusal(f"tracking.{name} must be {valid}, not {value!r}")
        object.__setattr__(self, "tags", tuple(self.tags))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "TrackingSettings":
        """Return the settings of a `tracking` config; an unknown key or a bad value is a `Refusal`."""
        fields = {str(name): value for name, value in config.items() if name != "name"}
        known = [field.name for field in dataclasses.fields(cls)]
        if name := next((name for name in fields if name not in known), ""):
            if re.search("key|token|secret|passw", name, re.IGNORECASE):
                raise Refusal(
                    f"tracking.{name}: keys come from WANDB_API_KEY in the environment, never from a config"
                )
            raise unknown_name("key of tracking", name, known)
        return cls(**fields)


def select_mode(settings: TrackingSettings) -> tuple[str, tuple[str, ...]]:
    """Return online, offline or disabled, and a warning; WANDB_MODE in the environment overrides the
    settings.
    """
    variable = os.environ.get("WANDB_MODE", "").strip().lower()
    if variable in _WANDB_MODES:
        return _WANDB_MODES[variable], ()
    if variable:
        choices = ", ".join(_WANDB_MODES)
        return "offline", (f"W&B: unknown WANDB_MODE {variable!r}, so offline: choose from {choices}",)
    if settings.mode != "auto":
        return settings.mode, ()
    return ("online" if _has_key() else "offline"), ()


def _has_key() -> bool:
    """Return whether the environment or netrc has a key for the server."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        keys = netrc.netrc(os.path.expanduser(os.environ.get("NETRC") or "~/.netrc"))
    except (OSError, netrc.NetrcParseError):
        return False
    return keys.authenticators(urlsplit(base_url()).netloc) is not None


def base_url() -> str:
    """Return the address of the server: WANDB_BASE_URL, or what `wandb login --host` wrote, or that of
    W&B.
    """
    url = os.environ.get("WANDB_BASE_URL")
    if not url:
        written = configparser.ConfigParser(interpolation=None)
        folder = os.path.expanduser(os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb")
        with contextlib.suppress(OSError, configparser.Error, UnicodeError):
            written.read(os.path.join(folder, "settings"))
        url = written.get("default", "base_url", fallback=None) or "https://api.wandb.ai"
    parts = urlsplit(url.rstrip("/"))
    return parts._replace(
        netloc=parts.netloc.rpartition("@")[2]
    ).geturl()  # without a password in the address


def destination(settings: TrackingSettings, mode: str) -> dict[str, Any]:
    """Return where runs go in a mode, in the form that the ledger keeps."""
    entity = settings.entity or os.environ.get("WANDB_ENTITY") or None
    server = base_url() if mode == "online" else None
    return {"mode": mode, "entity": entity, "project": settings.project, "base_url": server}


def project_page(settings: TrackingSettings) -> str:
    """Return the address of the project for a browser."""
    where = destination(settings, "online")
    server = where["base_url"].replace("//api.wandb.ai", "//wandb.ai")
    return "/".join(part for part in (server, where["entity"], settings.project) if part)
