"""Find the hardware model of this machine.

The model of a GPU or TPU is read from conf/hardware. The peak rates of a CPU are measured with few samples,
and stored as records in the user's cache folder. plan/time_model.py converts the records to a hardware
model.
"""

import contextlib
import dataclasses
import os
import statistics
from collections.abc import Iterable, Mapping
from math import inf
from pathlib import Path
from typing import Any

import jax
from omegaconf import OmegaConf

from scaling.analysis.timings import pool_processes
from scaling.core import environment, run_case
from scaling.core.case import Case, Refusal, check_names
from scaling.core.record import Record, Writer
from scaling.core.timing import Sampling
from scaling.options import machine_peaks
from scaling.plan import time_model
from scaling.plan.compile_pool import RecordFields
from scaling.plan.hardware import Hardware, from_config
from scaling.results import store
from scaling.study.compose import configuration_folder

_MAX_PEAK_MEASUREMENTS = 4  # maximum number of measurements of a peak while other processes use the CPU
_PEAK_SAMPLING = Sampling(width=0.1, least=5, most=20, seconds=0.03, warm_up=0.005, turns=1)
_PEAK_OF_WORK = {  # kind of work of a library kernel -> target of the benchmark of its peak rate
    "products": "matmul", "divisions": "division", "transcendentals": "transcendental",
    "reductions": "reduction", "turned": "transpose",
}  # fmt: skip


def read_hardware(name: str) -> Hardware:
    """Return the hardware model in conf/hardware/NAME.yaml, or raise `Refusal` if there is none."""
    files = {path.stem: path for path in sorted((configuration_folder() / "hardware").glob("*.yaml"))}
    check_names("hardware", [name], [*files])  # lists, because `name` may not be hashable
    config: Any = OmegaConf.load(files[name])
    for default in config.pop("defaults", []):  # such as base/gpu@_here_, as Hydra reads it
        if default != "_self_":
            base = files[name].parent / f"{default.partition('@')[0]}.yaml"
            config = OmegaConf.merge(OmegaConf.load(base), config)
    fields: Any = OmegaConf.to_container(config)
    return from_config(fields)


def find_model() -> Hardware | None:
    """Return the `Hardware` of this machine, or None if conf/hardware does not describe its GPU or TPU.

    For a CPU, the rates are empty. Call `add_rates` to add them.
    """
    device = jax.devices()[0]
    if device.platform == "cpu":
        return read_hardware("cpu")
    paths = sorted((configuration_folder() / "hardware").glob("*.yaml"))
    models = (read_hardware(path.stem) for path in paths)
    return next((model for model in models if model.device_kind == device.device_kind), None)


def bound_cores() -> list[int] | None:
    """Return the CPU cores of this process if it is bound to one core per JAX device, otherwise None."""
    bound = sorted(os.sched_getaffinity(0))
    return bound if jax.default_backend() == "cpu" and len(bound) == jax.device_count() else None


def add_rates(model: Hardware, fields: Mapping[Case, RecordFields]) -> Hardware:
    """Return a copy of `model` with the peak rates of this CPU, from the cache or from a measurement.

    `fields` contains the record fields of each compiled case. Only peak rates that limit these cases are
    measured. Raise `Refusal` if the rates cannot be measured.
    """
    peaks = _load_or_measure(_needed_peaks(fields))
    try:
        return time_model.calibrate(model, pool_processes(peaks), bound_only=False)
    except Refusal:
        reason = next((record.text for record in peaks if record.text), "no peak is known")
        raise Refusal(f"the peak rates of this CPU cannot be measured: {reason}; try again") from None


def _needed_peaks(fields: Mapping[Case, RecordFields]) -> list[Case]:
    """Return the benchmark cases that measure the peak rates needed for predictions.

    `fields` maps each compiled case to its record fields, which describe its kernels and collectives.
    """
    kernels = [kernel for case_fields in fields.values() for kernel in case_fields.get("kernels", ())]
    messages = [message for case_fields in fields.values() for message in case_fields.get("messages", ())]
    work = {name for kernel in kernels if not kernel.get("operations") for name in kernel}
    targets = {"copy", "arithmetic", "call", *(peak for name, peak in _PEAK_OF_WORK.items() if name in work)}
    targets |= {"all_reduce", "collective"} if any(message["group"] > 1 for message in messages) else set()
    most_bytes = max((kernel.get("bytes", 0) for kernel in kernels), default=0)
    needed_peaks, copied_bytes = list[Case](), dict[int, int]()  # number of devices -> bytes of the last copy
    for case in machine_peaks.peak_cases(list(fields), "cpu"):  # with copies in ascending order of the bytes
        if case.target == "copy":
            if copied_bytes.get(case.devices, -1) < most_bytes:
                needed_peaks.append(case)
            copied_bytes[case.devices] = machine_peaks.peak_work(case)
        elif case.target in targets:
            needed_peaks.append(case)
    return needed_peaks


def _load_or_measure(cases: Iterable[Case]) -> list[Record]:
    """Return a record of each peak benchmark, from the cache or from a new measurement."""
    this_environment = environment.describe("cpu", None, os.environ, None, bound_cores())
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ad-scaling" / "peaks"
    key, cached_records = _peak_key(this_environment), list[Record]()
    with contextlib.suppress(OSError, Refusal):  # the cache may be unreadable, or of a newer version
        cached_records = store.load(folder).records
    usable_records = [r for r in cached_records if r.status == "ok" and _peak_key(r.environment) == key]
    peaks, writer = list[Record](), Writer(folder)
    for case in cases:
        records = [record for record in usable_records if record.case == case]
        if len(records) < _MAX_PEAK_MEASUREMENTS and all(record.marked for record in records):
            devices, record = jax.devices("cpu")[: case.devices], Record(case, "failed", this_environment)
            records.append(run_case.run_case(record, devices, "cpu", _PEAK_SAMPLING))
            with contextlib.suppress(OSError):  # without a cache, peaks are measured again next time
                folder.mkdir(parents=True, exist_ok=True)
                writer.append(records[-1])
        best_record = min(records, key=lambda r: (bool(r.marked), statistics.median(r.seconds or [inf])))
        peaks.append(dataclasses.replace(best_record, environment=this_environment))
    return peaks


def _peak_key(fields: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the parts of the environment `fields` that affect the peak rates, as a cache key."""
    cores, versions = fields["cores"] or (), fields["versions"]
    settings = fields["xla_flags"], fields["glibc_tunables"], fields["source"]
    return fields["device_kind"], *settings, versions["jaxlib"], len(cores)
