"""Peaks of this machine: measured once if nothing disturbs them, otherwise up to four times; the best are used."""

import dataclasses
import os

import jax
import pytest

from scaling.advice import measurement
from scaling.analysis.timings import pool_processes
from scaling.core.case import Case, Refusal
from scaling.core.record import Record
from scaling.options import machine_peaks
from scaling.plan import time_model
from scaling.plan.hardware import read_hardware
from tests.support.made_up import environment

CASE = Case("linear", api="jit")


@pytest.fixture
def runs(monkeypatch, tmp_path):
    """Replace each measurement by the next pair of seconds and marks in the returned list."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pending = []

    def run_case(record, *_):
        seconds, marked = pending.pop(0)
        return dataclasses.replace(
            record,
            status="ok",
            seconds=[seconds] * 5,
            turns=[5],
            marked={"foreign_load": [0]} if marked else {},
        )

    monkeypatch.setattr(measurement.run_case, "run_case", run_case)
    return pending


def peak():
    (record,) = measurement._load_or_measure_peaks([CASE])
    return record.seconds[0]


def test_an_undisturbed_peak_is_measured_once(runs):
    runs += [(1.0, False)]
    assert [peak(), peak()] == [1.0, 1.0]


def test_a_peak_with_huge_pages_is_not_that_without(runs, monkeypatch):
    runs += [(2.0, False), (1.0, False)]
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    without = peak()
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    assert [without, peak()] == [2.0, 1.0]


def test_a_peak_of_another_version_of_the_package_is_measured_again(runs, monkeypatch):
    runs += [(2.0, False), (1.0, False)]
    first = peak()
    monkeypatch.setattr(measurement.environment, "package_hash", lambda: "changed")
    assert [first, peak()] == [2.0, 1.0]


def test_a_disturbed_peak_is_measured_again_until_one_is_not_and_the_fastest_of_them_is_used(runs):
    runs += [(3.0, True), (5.0, True), (4.0, False)]
    assert [peak(), peak(), peak(), peak()] == [3.0, 3.0, 4.0, 4.0]


def test_a_peak_on_a_busy_machine_is_measured_four_times(runs):
    runs += [(seconds, True) for seconds in (3.0, 5.0, 2.0, 4.0)]
    assert [peak() for _ in range(6)] == [3.0, 3.0, 2.0, 2.0, 2.0, 2.0]


def test_a_peak_is_measured_without_a_cache_folder_that_can_be_read(runs, monkeypatch):
    monkeypatch.setenv(
        "XDG_CACHE_HOME", "x" * 300
    )  # the system rejects this name, as it may reject a home folder
    runs += [(1.0, False)]
    assert peak() == 1.0


def test_a_cache_of_a_newer_version_is_no_cache(runs, tmp_path):
    runs += [(1.0, False)]
    (tmp_path / "ad-scaling" / "peaks").mkdir(parents=True)
    (tmp_path / "ad-scaling" / "peaks" / "newer.jsonl").write_text('{"schema": 99}\n')
    assert peak() == 1.0


def test_peaks_that_cannot_be_measured_are_refused_with_the_reason(monkeypatch):
    failed = Record(CASE, "failed", {"digest": "0"}, text="no memory is left")
    monkeypatch.setattr(measurement, "_load_or_measure_peaks", lambda cases: [failed])
    with pytest.raises(Refusal, match="the peak rates of this CPU cannot be measured: no memory is left"):
        measurement.add_rates(read_hardware("cpu"), [CASE])


def test_a_process_is_bound_if_it_has_one_core_for_each_device(monkeypatch):
    bound = set(range(jax.device_count()))
    for cores, expected in ((bound, sorted(bound)), ({0, *range(2, 99)}, None)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: cores)
        assert measurement._bound_cores() == expected


@pytest.mark.parametrize("devices", [1, 2])
def test_the_peaks_that_are_not_measured_change_no_rate(devices, monkeypatch):
    case = Case("linear", api="shard_map", devices=devices)
    every, measured = machine_peaks.peak_cases([case], "cpu"), []
    seconds = {peak: (k + 2) ** 2 * 1e-3 for k, peak in enumerate(every)}

    def load(cases):
        measured[:] = cases
        return [
            Record(peak, "ok", environment(peak, "made up"), seconds=[seconds[peak]] * 9, started_at="2026")
            for peak in cases
        ]

    monkeypatch.setattr(measurement, "_load_or_measure_peaks", load)
    found = measurement.add_rates(read_hardware("cpu"), [case])
    expected = time_model.calibrate(read_hardware("cpu"), pool_processes(load(every)), bound_only=False)
    assert found.rates == expected.rates
    measurement.add_rates(read_hardware("cpu"), [case])
    assert len(measured) < len(every)
