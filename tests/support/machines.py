"""A hypothetical machine with round figures, so that predictions for it can be computed by hand."""

import importlib.util

from scaling.core.case import DTYPES, PRECISIONS
from scaling.plan import hardware
from tests.support import tiers

BANDWIDTH, PRODUCTS, ARITHMETIC, TRANSCENDENTAL = 1e9, 8e9, 2e9, 2.5e8
KERNEL, CALL = 1e-6, 1e-5


def require_compiler(compiler):
    """Skip a test where a compiler is not installed; fail it if the tier `plan` is required."""
    if importlib.util.find_spec(tiers.PLANNERS[compiler]) is None:
        tiers.skip_or_fail("plan", f"{compiler} is not installed")


def for_each_dtype(value):
    """Map each dtype to the value, and float64 to None (unknown)."""
    return {dtype: None if dtype == "float64" else value for dtype in DTYPES}


def machine_config(**fields):
    """Return the content of a file of conf/hardware: a machine that attains its peak rates, with identical devices."""
    return {
        "name": "mine", "title": "A machine", "platform": "gpu", "device_kind": "Mine", "memory": 1e9, "bandwidth": BANDWIDTH,
        "products": {dtype: dict.fromkeys(PRECISIONS, value) for dtype, value in for_each_dtype(PRODUCTS).items()},
        "arithmetic": for_each_dtype(ARITHMETIC), "transcendental": for_each_dtype(TRANSCENDENTAL),
        "kernel_seconds": KERNEL, "call_seconds": CALL,
        "attained": [1.0, 1.0], "asking": [1.0, 1.0], "jitter": 1e-9, "stragglers": {"share": 1e-12, "slowdown": 1.5},
        "per_chip": 1, "per_host": 8, "slices": None, "most": 4096,
        "network": [
            {"shape": "switch", "devices": 8, "bandwidth": 4e8, "latency": 1e-6},
            {"shape": "tree", "devices": None, "bandwidth": 1e8, "latency": 1e-5},
        ],
        "target": {"platform_name": "CUDA"}, "sources": {},
    } | fields  # fmt: skip


def machine(**fields):
    """Return the same as a value of `hardware`."""
    return hardware.from_config(machine_config(**fields))
