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
    """Return the hardware model with a name, or None if `hardware` is None or a CPU, which is this machine."""
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
    described = environment.describe("cpu", None, os.environ, None, cores)
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ad-scaling" / "peaks"
    loaded = store.load(folder).records if folder.is_dir() else []
    measured = [r for r in loaded if r.status == "ok" and _is_comparable(r.environment, described)]
    wanted, writer = machine_peaks.peak_cases(cases, "cpu"), Writer(folder)
    chosen = list[Record]()
    for case in wanted:
        records = [record for record in measured if record.case == case]
        if all(record.marked for record in records):  # none, or all of them disturbed
            devices = jax.devices("cpu")[: case.devices]
            records += [run_case.run_case(Record(case, "failed", described), devices, "cpu", _SAMPLING)]
            with contextlib.suppress(OSError):  # without a cache, peaks are measured again next time
                folder.mkdir(parents=True, exist_ok=True)
                writer.append(records[-1])
        chosen.append(dataclasses.replace(_least_disturbed(records), environment=described))
    return chosen


def _least_disturbed(records: Sequence[Record]) -> Record:
    """Return the fastest record that is not marked as disturbed, or the fastest one if all are marked."""
    return min(records, key=lambda record: (bool(record.marked), statistics.median(record.seconds or [inf])))


def _is_comparable(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    keys = [
        (each["device_kind"], each["xla_flags"], each["versions"]["jaxlib"], len(each["cores"] or ()))
        for each in (one, other)
    ]
    return keys[0] == keys[1]
