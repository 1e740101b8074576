"""Tests of the host monitor: readings of GPUs, cores and load, and the detection of disturbed turns of sampling."""

import ctypes
import dataclasses
import json
import math
import os
import random
import subprocess
import sys
import time

import pytest

from scaling import host_monitor
from scaling.core import environment
from scaling.host_monitor import HostReading
from scaling.launcher import cores

CORE = cores.usable_cores()[0]
UUIDS = ("GPU-aaaa1111-0000", "GPU-aaaa2222-0000", "GPU-bbbb3333-0000")
TURN = 0.1  # seconds


class Nvml:
    """A fake NVML with three GPUs of different clocks. It lacks the functions `without` and cannot access the GPUs `inaccessible`."""

    def __init__(self, reasons=0, without=(), inaccessible=()):
        self._reasons, self._without, self._inaccessible = reasons, without, inaccessible

    def __getattribute__(self, name):
        if name.startswith("nvml") and name in self._without:
            raise AttributeError(name)  # as ctypes does
        return object.__getattribute__(self, name)

    def nvmlDeviceGetCount_v2(self, answer):
        return self._write(answer, len(UUIDS))

    def nvmlDeviceGetHandleByIndex_v2(self, index, answer):
        return 4 if index in self._inaccessible else self._write(answer, 0xF0 + index)

    def nvmlDeviceGetUUID(self, handle, text, size):
        text.value = UUIDS[handle.value - 0xF0].encode()
        return 0 if size >= 80 else 7

    def nvmlDeviceGetClockInfo(self, handle, kind, answer):
        return self._write(answer, {1: 1000, 2: 2000}[kind] + handle.value - 0xF0)

    def nvmlDeviceGetPowerUsage(self, handle, answer):
        return self._write(answer, 123_456)

    def nvmlDeviceGetTemperature(self, handle, sensor, answer):
        return self._write(answer, 61) if sensor == 0 else 2

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle, answer):
        return self._write(answer, self._reasons)

    def nvmlSystemGetDriverVersion(self, text, size):
        text.value = b"580.1.2"
        return 0

    def _write(self, answer, value):
        answer._obj.value = value
        return 0


@pytest.fixture
def install(monkeypatch):
    """Return a function that replaces NVML by a fake library or None."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install_library(library, visible=None):
        monkeypatch.setattr(host_monitor, "_nvml_library", lambda: library)
        host_monitor._gpus.cache_clear()
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    yield install_library
    host_monitor._gpus.cache_clear()


def clocks():
    return [gpu["sm_mhz"] - 1000 for gpu in host_monitor.read_host("gpu", None)["gpus"]]


def test_a_gpu_reading_has_clocks_power_and_temperature_with_units(install):
    install(Nvml())
    first = host_monitor.read_host("gpu", None)["gpus"][0]
    assert first == {"sm_mhz": 1000, "memory_mhz": 2000, "watts": 123.456, "celsius": 61, "throttle": []}


@pytest.mark.parametrize(
    ("reasons", "throttle"),
    [(0x0, []), (0x1, []), (0x2, []), (0x10, []), (0x100, []), (0x113, []), (0x4, ["power_cap"]), (0x8, ["hardware_slowdown"]),
     (0x20, ["thermal"]), (0x40, ["hardware_thermal"]), (0x80, ["power_brake"]), (0x25, ["power_cap", "thermal"])],
)  # fmt: skip
def test_only_power_and_thermal_limits_count_as_throttling_of_a_gpu(install, reasons, throttle):
    install(Nvml(reasons))
    assert host_monitor.read_host("gpu", None)["gpus"][1]["throttle"] == throttle
    assert ("throttled" in host_monitor.find_disturbances(host_monitor.read_counters("gpu", None))) == bool(
        throttle
    )
    assert "throttled" not in host_monitor.find_disturbances(host_monitor.read_counters("cpu", None))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_turn_that_starts_or_ends_throttled_is_marked(install, when):
    install(Nvml(0x4 if when == "before" else 0x0))
    started = host_monitor.read_counters("gpu", None)
    install(Nvml(0x4 if when == "after" else 0x0))
    assert "throttled" in host_monitor.find_disturbances(started)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [(None, [0, 1, 2]), ("", []), ("-1", []), ("2,0", [2, 0]), (" 1 , 2", [1, 2]), ("0,9,1", [0]), ("0,-1,1", [0]),
     (UUIDS[1], [1]), (f"{UUIDS[2]},{UUIDS[0]}", [2, 0]), ("GPU-bbbb", [2]), ("GPU-aaaa", []), ("NoDevFiles", []),
     ("MIG-aaaa", [])],
)  # fmt: skip
def test_only_gpus_in_cuda_visible_devices_are_read_in_its_order(install, visible, expected):
    install(Nvml(), visible)
    assert clocks() == expected


def test_an_inaccessible_gpu_has_no_index_which_agrees_with_cuda(install):
    install(Nvml(inaccessible=[1]), "1")
    assert clocks() == [2]


@pytest.mark.parametrize(
    ("without", "field", "expected"),
    [(["nvmlDeviceGetCurrentClocksEventReasons"], "throttle", None), (["nvmlDeviceGetPowerUsage"], "watts", None),
     (["nvmlDeviceGetClockInfo"], "memory_mhz", None), (["nvmlDeviceGetTemperature"], "celsius", None),
     (["nvmlDeviceGetUUID"], "sm_mhz", 1000)],
)  # fmt: skip
def test_a_value_that_nvml_lacks_is_none_and_the_others_are_read(install, without, field, expected):
    install(Nvml(0x4), "0")
    complete = host_monitor.read_host("gpu", None)["gpus"][0]
    install(Nvml(0x4, without), "0")
    partial = host_monitor.read_host("gpu", None)["gpus"][0]
    assert partial[field] == expected
    assert {name for name in complete if complete[name] != partial[name]} <= {field, "sm_mhz"}


@pytest.mark.parametrize(
    "library", [None, object(), Nvml(without=["nvmlDeviceGetCount_v2", "nvmlSystemGetDriverVersion"])]
)
def test_without_nvml_there_are_no_gpus_no_driver_and_no_exception(install, library):
    install(library)
    assert host_monitor.read_host("gpu", None)["gpus"] == []
    assert environment.describe("gpu", "H200", {}, None, None)["driver"] is None
    assert "throttled" not in host_monitor.find_disturbances(host_monitor.read_counters("gpu", None))


@pytest.mark.parametrize("status", [None, 0, 9])
def test_an_nvml_that_is_missing_or_fails_to_initialize_is_none(monkeypatch, status):
    class Library:
        def __init__(self, name):
            if status is None:
                raise OSError(name)

        def nvmlInit_v2(self):
            return status

    monkeypatch.setattr(ctypes, "CDLL", Library)
    assert isinstance(host_monitor._nvml_library.__wrapped__(), Library) == (status == 0)


def test_readings_are_json_values_and_on_a_cpu_only_of_the_bound_cores(install):
    install(Nvml())
    on_cpu = host_monitor.read_host("cpu", [CORE])
    assert set(on_cpu) == {"load", "core_mhz", "governor", "siblings"} and len(on_cpu["core_mhz"]) == 1
    on_gpu = host_monitor.read_host("gpu", None)
    assert json.loads(json.dumps(on_gpu, allow_nan=False)) == on_gpu


@pytest.fixture
def hardware_threads(monkeypatch):
    """Let the cores 0 to 3 be the hardware threads (0, 2) and (1, 3) of two physical cores, of which 2 and 3 are busy."""
    files = {"/proc/stat": "".join(f"cpu{core} 5 0 0 {90 * (core < 2)} 0 0 0 0 0 0\n" for core in range(4))}
    for core, text in enumerate(("0,2", "1,3", "0,2", "1,3")):
        files[f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"] = text
    monkeypatch.setattr(environment, "read_text", files.get)
    host_monitor._sibling_threads.cache_clear()
    yield
    host_monitor._sibling_threads.cache_clear()


@pytest.mark.parametrize(
    ("bound_to", "siblings"),
    [([0, 1], None), ([0, 1, 2], [[0, 2]]), ([0, 1, 2, 3], [[0, 2], [1, 3]]), (None, None)],
)
def test_a_reading_names_the_devices_on_hardware_threads_of_one_core(hardware_threads, bound_to, siblings):
    assert host_monitor.read_host("cpu", bound_to)["siblings"] == siblings


def test_the_other_hardware_threads_of_a_core_are_monitored_too(hardware_threads):
    reading = host_monitor.read_counters("cpu", [0])
    assert (reading.bound_to, reading.core_count) == ((0,), 2)
    assert reading.idle_seconds == pytest.approx(90 * host_monitor._TICK_SECONDS)


@pytest.mark.parametrize(
    ("files", "mhz"),
    [({"cpu1/cpufreq/scaling_cur_freq": "2400000", "cpu3/cpufreq/scaling_cur_freq": "<unknown>"}, [2400.0, None]),
     ({}, [None, None])],
)  # fmt: skip
def test_the_clock_of_each_bound_core_is_read_or_none(monkeypatch, files, mhz):
    monkeypatch.setattr(
        environment,
        "read_text",
        lambda path: next((files[end] for end in files if path.endswith(end)), None),
    )
    assert host_monitor.read_host("cpu", [1, 3])["core_mhz"] == mhz


def disturbances(monkeypatch, cores=1, bound=True, wall=0.1, own=0.0, idle=0.0, stolen=0.0, slowdowns=0):
    """Return the disturbances of a turn with these differences between its start and end."""
    numbers = tuple(range(cores))
    start = HostReading("cpu", numbers if bound else None, cores, 100.0, 7.0, 50.0, 900.0, 5, False)
    end = dataclasses.replace(
        start, idle_seconds=100.0 + idle, stolen_seconds=7.0 + stolen, process_seconds=50.0 + own, clock_seconds=900.0 + wall,
        slowdowns=5 + slowdowns,
    )  # fmt: skip
    monkeypatch.setattr(host_monitor, "read_counters", lambda platform, bound_to: end)
    return host_monitor.find_disturbances(start)


@pytest.mark.parametrize("cores", [1, 2, 16])
def test_rounded_idle_time_of_an_undisturbed_core_is_not_foreign_load(monkeypatch, cores):
    for wall in (0.003, 0.03, 0.3, 3.0):
        own = 0.5 * wall * cores
        rounded = math.floor((wall * cores - own) / 0.01) * 0.01
        assert disturbances(monkeypatch, cores, wall=wall, own=own, idle=rounded) == []
        assert disturbances(monkeypatch, cores, wall=wall, own=wall * cores) == []


def test_idle_time_rounded_on_each_core_rarely_looks_like_foreign_load(monkeypatch):
    draw, cores, marked = random.Random(7), 16, 0
    for _ in range(1000):
        phases = [draw.random() for _ in range(cores)]  # the fraction of a quantum lost by rounding so far
        quanta = sum(math.floor(phase + 2.5) for phase in phases)
        marked += bool(disturbances(monkeypatch, cores, wall=0.05, own=0.025 * cores, idle=0.01 * quanta))
    assert marked <= 20


def test_a_bound_process_is_disturbed_if_others_use_a_tenth_of_one_core(monkeypatch):
    for bound in (1, 2, 16):
        assert disturbances(monkeypatch, bound, wall=1.0, own=bound - 0.15) == ["foreign_load"]
        assert disturbances(monkeypatch, bound, wall=1.0, own=bound - 0.05) == []


def test_an_unbound_process_is_disturbed_if_others_use_a_tenth_of_all_cores(monkeypatch):
    assert disturbances(monkeypatch, 16, bound=False, wall=1.0, own=1.0, idle=14.0) == []
    assert disturbances(monkeypatch, 16, bound=False, wall=1.0, own=1.0, idle=13.0) == ["foreign_load"]


def test_stolen_time_is_foreign_load_and_counts_once(monkeypatch):
    assert disturbances(monkeypatch, wall=0.1, own=0.1, stolen=0.02) == ["foreign_load"]
    assert disturbances(monkeypatch, wall=0.1, own=0.08, stolen=0.02) == ["foreign_load"]
    assert disturbances(monkeypatch, wall=1.0, own=0.94, stolen=0.06) == []  # not counted twice


def test_a_thermal_slowdown_of_the_processor_counts_as_throttling(monkeypatch):
    assert disturbances(monkeypatch, own=0.1, slowdowns=1) == ["throttled"]


def test_a_turn_in_which_a_cgroup_uses_up_its_cpu_quota_counts_as_throttled(monkeypatch, tmp_path):
    """Linux stops the process until the next period, so that its core is idle."""
    monkeypatch.setattr(environment, "cgroup_folders", lambda: [tmp_path / "job", tmp_path])
    (tmp_path / "cpu.stat").write_text("usage_usec 8\nnr_periods 9\nnr_throttled 2\nthrottled_usec 5\n")
    started = host_monitor.read_counters("cpu", [CORE])
    assert "throttled" not in host_monitor.find_disturbances(started)
    (tmp_path / "cpu.stat").write_text("usage_usec 8\nnr_periods 12\nnr_throttled 3\nthrottled_usec 6\n")
    assert "throttled" in host_monitor.find_disturbances(started)


def test_a_sandbox_without_cpu_counters_is_never_disturbed(monkeypatch):
    real = environment.read_text
    for stat in (None, "", "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0 0 0\n"):
        monkeypatch.setattr(
            environment,
            "read_text",
            lambda path, stat=stat: stat if path == "/proc/stat" else real(path),
        )
        started = host_monitor.read_counters("cpu", [CORE])
        time.sleep(0.05)
        assert (started.core_count, host_monitor.find_disturbances(started)) == (0, [])


BUSY_TURNS = """
import os, sys, threading, time
from scaling import host_monitor
core, turn, turns, threads = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
os.sched_setaffinity(0, [core])

def spin(until):
    while time.perf_counter() < until:
        pass

for _ in range(turns):
    began, own, stolen = time.perf_counter(), time.process_time(), host_monitor.read_counters("cpu", [core]).stolen_seconds
    started = host_monitor.read_counters("cpu", [core])
    until = time.perf_counter() + turn
    others = [threading.Thread(target=spin, args=(until,)) for _ in range(threads - 1)]
    for other in others:
        other.start()
    spin(until)
    for other in others:
        other.join()
    marked = "foreign_load" in host_monitor.find_disturbances(started)
    lost = time.perf_counter() - began - (time.process_time() - own)
    print(int(marked), max(lost, host_monitor.read_counters("cpu", [core]).stolen_seconds - stolen))
"""


def busy_turns(threads=1, turns=12):
    """Keep one core busy; return for each turn whether it is marked and an upper bound of the foreign share."""
    command = [sys.executable, "-c", BUSY_TURNS, str(CORE), str(TURN), str(turns), str(threads)]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.split()
    return [mark == "1" for mark in output[::2]], [float(foreign) / TURN for foreign in output[1::2]]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_busy_process_does_not_disturb_itself(threads):
    """Turns in which another process used the core are recognized by their lost time and ignored."""
    marks, foreign = busy_turns(threads)
    assert not any(mark for mark, share in zip(marks, foreign, strict=True) if share < 0.08)


def test_a_busy_loop_on_the_same_core_marks_nearly_every_turn():
    code = f"import os\nos.sched_setaffinity(0, [{CORE}])\nwhile os.getppid() == {os.getpid()}: pass"
    loop = subprocess.Popen([sys.executable, "-c", code])
    try:
        time.sleep(0.3)  # until it has started
        marks, _ = busy_turns()
    finally:
        loop.kill()
        loop.wait()
    assert sum(marks) >= 0.9 * len(marks)
