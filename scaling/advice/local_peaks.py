"""Hardware model of a GPU or of this CPU for an `Advice`, from conf/hardware and from measured CPU peaks.

The peaks are measured with few samples, and stored as records in the user's cache folder. A peak that was
measured while other processes used the CPU is measured again for the next advice. plan/calibration.py
converts the peaks to rates.
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
import yaml

from scaling.analysis.timings import pool_processes
from scaling.core import environment, run_case
from scaling.core.case import Case, unknown_name
from scaling.core.record import Record, Writer
from scaling.core.timing import Sampling
from scaling.options import machine_peaks
from scaling.plan import calibration
from scaling.plan import hardware as machines
from scaling.plan.hardware import Hardware
from scaling.results import store
from scaling.study.compose import configuration

_SAMPLING = Sampling(width=0.1, least=5, most=20, seconds=0.03, warm_up=0.005, turns=1)


def read_hardware(name: str) -> Hardware:
    """Return the hardware model in conf/hardware/NAME.yaml. Raise `Refusal` if there is no such file."""
    files = {path.stem: path for path in sorted((configuration() / "hardware").glob("*.yaml"))}
    if name not in files:
        raise unknown_name("hardware", name, files)
    return machines.from_config(yaml.safe_load(files[name].read_text()))


def find_other_machine(hardware: Hardware | str | None) -> Hardware | None:
    """Return the model of another machine, given its name, or None for this machine (None or a CPU)."""
    if not isinstance(hardware, Hardware | None):
        hardware = read_hardware(hardware)
    return None if hardware is None or hardware.platform == "cpu" else hardware


def model_this_machine(cases: Sequence[Case], cores: Sequence[int] | None) -> Hardware | None:
    """Return the hardware model of this machine, or None if conf/hardware has no model of its device.

    On a CPU, peaks are measured for the device counts and dtypes of `cases`. `cores` are the processor cores
    that this process is bound to, or None.
    """
    device = jax.devices()[0]
    if device.platform == "cpu":
        timings = pool_processes(_load_or_measure_peaks(cases, cores))
        return calibration.calibrate(read_hardware("cpu"), timings, bound_only=False)
    known = (read_hardware(path.stem) for path in (configuration() / "hardware").glob("*.yaml"))
    return next((hardware for hardware in known if hardware.device_kind == device.device_kind), None)


def _load_or_measure_peaks(cases: Sequence[Case], cores: Sequence[int] | None) -> list[Record]:
    here = environment.describe("cpu", None, os.environ, None, cores)
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ad-scaling" / "peaks"
    loaded = store.load(folder).records if folder.is_dir() else []
    stored = [r for r in loaded if r.status == "ok" and _processor(r.environment) == _processor(here)]
    chosen, writer = list[Record](), Writer(folder)
    for case in machine_peaks.peak_cases(cases, "cpu"):
        records = [record for record in stored if record.case == case]
        if all(record.marked for record in records):  # none, or all of them disturbed
            devices = jax.devices("cpu")[: case.devices]
            records += [run_case.run_case(Record(case, "failed", here), devices, "cpu", _SAMPLING)]
            with contextlib.suppress(OSError):  # without a cache, peaks are measured again next time
                folder.mkdir(parents=True, exist_ok=True)
                writer.append(records[-1])
        best = min(records, key=lambda r: (bool(r.marked), statistics.median(r.seconds or [inf])))
        chosen.append(dataclasses.replace(best, environment=here))
    return chosen


def _processor(described: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what must be equal in two environments, so that their peaks can be compared."""
    cores, versions = described["cores"] or (), described["versions"]
    return described["device_kind"], described["xla_flags"], versions["jaxlib"], len(cores)
