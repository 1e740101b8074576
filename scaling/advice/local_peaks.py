"""Find the `Hardware` of this machine for `scaling.advise`: read conf/hardware, or measure the CPU's peaks.

The model of a GPU is read from conf/hardware. The peaks of a CPU are measured with few samples, and stored as
records in the user's cache folder. plan/calibration.py converts them to a hardware model.
"""

import contextlib
import dataclasses
import os
import statistics
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

import jax
from omegaconf import OmegaConf

from scaling.analysis.timings import pool_processes
from scaling.core import environment, run_case
from scaling.core.case import Case, Refusal, unknown_name
from scaling.core.record import Record, Writer
from scaling.core.timing import Sampling
from scaling.options import machine_peaks
from scaling.plan import calibration
from scaling.plan import hardware as machines
from scaling.plan.hardware import Hardware
from scaling.results import store
from scaling.study.compose import configuration_folder

_MOST_ATTEMPTS = 4  # maximum number of measurements of a peak while other processes use the CPU
_SAMPLING = Sampling(width=0.1, least=5, most=20, seconds=0.03, warm_up=0.005, turns=1)


def read_hardware(name: str) -> Hardware:
    """Return the hardware model in conf/hardware/NAME.yaml. Raise `Refusal` if there is no such file."""
    files = _list_files()
    if name not in [*files]:  # `name` may be a value without a hash
        raise unknown_name("hardware", name, files)
    config: Any = OmegaConf.load(files[name])
    for default in config.pop("defaults", []):  # such as base/gpu@_here_, as Hydra reads it
        if default != "_self_":
            base = files[name].parent / f"{default.partition('@')[0]}.yaml"
            config = OmegaConf.merge(OmegaConf.load(base), config)
    content: Any = OmegaConf.to_container(config)
    return machines.from_config(content)


def _list_files() -> dict[str, Path]:
    return {path.stem: path for path in sorted((configuration_folder() / "hardware").glob("*.yaml"))}


def model_this_machine(cases: Sequence[Case], cores: Sequence[int] | None) -> Hardware | None:
    """Return the hardware model of this machine, or None if conf/hardware has no model of its GPU or TPU.

    On a CPU, peak rates that limit `cases` are measured. `cores` are the cores that the process is bound to.
    """
    device = jax.devices()[0]
    if device.platform == "cpu":
        peaks = _load_or_measure_peaks(cases, cores)
        try:
            return calibration.calibrate(read_hardware("cpu"), pool_processes(peaks), bound_only=False)
        except Refusal:
            reason = next((record.text for record in peaks if record.text), "no peak is known")
            raise Refusal(f"the peak rates of this CPU cannot be measured: {reason}; try again") from None
    models = map(read_hardware, _list_files())
    return next((model for model in models if model.device_kind == device.device_kind), None)


def _load_or_measure_peaks(cases: Sequence[Case], cores: Sequence[int] | None) -> list[Record]:
    """Return one record for each peak measurement that `cases` need, from the cache or measured now.

    A peak that was measured only while other processes used the CPU is measured up to `_MOST_ATTEMPTS` times.
    """
    this_environment = environment.describe("cpu", None, os.environ, None, cores)
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ad-scaling" / "peaks"
    key, cached = _peak_key(this_environment), list[Record]()
    with contextlib.suppress(OSError, Refusal):  # the cache may be unreadable, or of a newer version
        cached = store.load(folder).records
    cached = [r for r in cached if r.status == "ok" and _peak_key(r.environment) == key]
    peaks, writer = list[Record](), Writer(folder)
    for case in machine_peaks.peak_cases(cases, "cpu"):
        records = [record for record in cached if record.case == case]
        if len(records) < _MOST_ATTEMPTS and all(record.marked for record in records):
            devices, record = jax.devices("cpu")[: case.devices], Record(case, "failed", this_environment)
            records.append(run_case.run_case(record, devices, "cpu", _SAMPLING))
            with contextlib.suppress(OSError):  # without a cache, peaks are measured again next time
                folder.mkdir(parents=True, exist_ok=True)
                writer.append(records[-1])
        best = min(records, key=lambda r: (bool(r.marked), statistics.median(r.seconds or [inf])))
        peaks.append(dataclasses.replace(best, environment=this_environment))
    return peaks


def _peak_key(fields: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the values of an environment that must match before a cached peak is used."""
    cores, versions = fields["cores"] or (), fields["versions"]
    return fields["device_kind"], fields["xla_flags"], versions["jaxlib"], len(cores)
