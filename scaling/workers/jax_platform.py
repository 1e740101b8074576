"""Find the default platform and devices of JAX on this host without importing JAX into this process."""

import functools
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from typing import Any

from scaling.core.case import Refusal
from scaling.core.environment import last_line

_PLATFORMS = {"cuda": "gpu", "rocm": "gpu"}  # backends of JAX that this package calls gpu


def find_platform() -> str:
    """Return the default platform of JAX on this host, such as "cpu", "gpu", or "tpu".

    The environment variable JAX_PLATFORMS determines the platform. If it is not set, the platform is "cpu"
    unless an accelerator plugin is installed. If a plugin is installed, JAX is started in another process to
    query the platform.
    """
    requested = os.environ.get("JAX_PLATFORMS", "").split(",")[0].strip()
    if requested:
        return _PLATFORMS.get(requested, requested)
    installed = (distribution.name or "" for distribution in importlib.metadata.distributions())
    has_plugin = any(re.match(r"jax-(cuda|rocm)|libtpu", name) for name in installed)
    return find_devices()["platform"] if has_plugin else "cpu"


@functools.cache
def find_devices() -> dict[str, Any]:
    """Start JAX in another process, and return a description of its default devices. The result is cached.

    Returns:
        A dict with "platform" (cpu, gpu, or tpu), "device_kind" (model of the first device), and "devices"
        (number of devices).
    Raises:
        Refusal: If JAX cannot start.
    """
    code = "import jax, json; d = jax.devices(); print(json.dumps([d[0].platform, d[0].device_kind, len(d)]))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    try:
        name, kind, devices = json.loads(process.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        reason = f"JAX cannot start a backend: {last_line(process.stderr)}"
        raise Refusal(f"{reason}; JAX_PLATFORMS=cpu runs on the CPU") from None
    return {"platform": _PLATFORMS.get(name, name), "device_kind": kind, "devices": devices}
