"""Tests of machine peaks: a study measures every peak and latency that bounds its cases, and each does its work."""

import dataclasses

import pytest

from tests.support.devices import reason_to_skip, run_once  # isort: skip  # before JAX is used
import jax.numpy as jnp

from scaling.checks import rounding_check
from scaling.core import workload
from scaling.core.case import PEAKS, Case
from scaling.options import machine_peaks
from scaling.study import case_rules
from scaling.study.grid import GridCell, expand_study
from scaling.workloads import ceiling

pytestmark = pytest.mark.thin(3, "thorough")

DTYPES, PRECISIONS = ["float32", "float64", "bfloat16"], ["highest", "default"]
STUDY = {"workload": "mine", "devices": [1, 2, 4], "dtype": DTYPES, "precision": PRECISIONS}


def peak_cases(platform="cpu", **study):
    cells = expand_study({**STUDY, **study}, {})
    return machine_peaks.peak_cases([cell.case for cell in cells], platform)


def shrink(case):
    """Return the same peak with fewer values and with two points per device, or one for latencies."""
    points_per_device = 1 if case.target in ("all_reduce", "collective", "call") else 2
    return dataclasses.replace(
        case, sizes={**case.sizes, "k": min(case.sizes["k"], 24)}, points=points_per_device * case.devices
    )


def test_every_device_count_has_each_peak_at_the_dtypes_that_bound_its_cases():
    measured = {(case.target, case.devices, case.dtype, case.precision) for case in peak_cases()}
    for devices in STUDY["devices"]:
        on_devices = {(target, *rest) for target, count, *rest in measured if count == devices}
        products = {("matmul", dtype, precision) for dtype in DTYPES for precision in PRECISIONS}
        elementwise = ["transcendental", "arithmetic", "division", "reduction"]
        in_float32 = [
            "copy",
            "transpose",
            "call",
            *elementwise,
            *(["all_reduce", "collective"] if devices > 1 else []),
        ]
        others = {(target, "float32", "highest") for target in in_float32} | {
            (target, "float64", "highest") for target in elementwise
        }
        assert on_devices == products | others


def test_the_peaks_that_bound_a_case_are_measured_by_its_study():
    measured = {(case.target, case.dtype, case.precision, case.devices) for case in peak_cases()}
    for cell in expand_study(STUDY, {}):
        targets = set(PEAKS) - (set() if cell.case.devices > 1 else {"all_reduce"})
        assert {
            (t, *machine_peaks.peak_dtype_and_precision(t, cell.case), cell.case.devices) for t in targets
        } <= measured


def test_the_call_latency_is_measured_for_every_api_of_the_jax_cases():
    study = {"api": ["jit", "shard_map", "pmap"], "devices": [1, 2], "engine": ["jax", "torch"]}
    calls = {(case.api, case.devices) for case in peak_cases(**study) if case.target == "call"}
    assert calls == {("jit", 1), ("shard_map", 1), ("pmap", 1), ("shard_map", 2), ("pmap", 2)}
    assert not [case for case in peak_cases(engine="torch") if case.target == "call"]


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
@pytest.mark.parametrize("devices", [1, 2, 3, 7])
def test_a_peak_is_a_case_that_can_run_with_the_same_work_per_device(platform, devices):
    peaks = peak_cases(platform, devices=devices)
    for case in peaks:
        assert case_rules.complete(case) == case, "all fields are set"
        assert case.points % devices == 0 and reason_to_skip(case) is None
    work = [
        {
            (c.target, c.dtype, c.precision, machine_peaks.peak_work(c))
            for c in group
            if c.kind == "ceiling" and c.target != "all_reduce"
        }
        for group in (peaks, peak_cases(platform, devices=1))
    ]
    assert work[0] == work[1]
    assert min(amount for *_, amount in work[0]) >= 2**20, "a peak is not a latency"


def test_peaks_are_measured_if_the_study_or_one_of_its_parts_enables_them():
    assert machine_peaks.enables_peaks({"ceilings": True}) and machine_peaks.enables_peaks(
        {"parts": {"one": {}, "other": {"ceilings": True}}}
    )
    assert not machine_peaks.enables_peaks(
        {"ceilings": False, "parts": {"one": {"ceilings": None}}}
    ) and not machine_peaks.enables_peaks({})


SMALL = list(dict.fromkeys(shrink(case) for case in peak_cases()))


@pytest.mark.parametrize("case", SMALL, ids=lambda c: f"{c.target}-{c.devices}-{c.dtype}-{c.precision}")
def test_every_peak_is_correct_and_does_its_nominal_work(case):
    record = run_once(case)
    assert record.status == "ok", record.text
    assert any(record.collectives.values()) == (case.target in ("all_reduce", "collective"))
    if case.kind == "ceiling":
        counted = {
            "copy": record.argument_bytes + record.output_bytes, "matmul": record.flops, "transcendental": record.transcendentals,
            "all_reduce": record.collective_bytes, "arithmetic": record.flops - case.sizes["k"] * case.points // case.devices,
            "division": record.flops // 3, "reduction": record.flops, "transpose": record.argument_bytes + record.output_bytes,
        }  # fmt: skip
        assert machine_peaks.peak_work(case) == counted[case.target]
    if case.dtype != "bfloat16":  # which a CPU converts
        extra = 64 if case.target == "reduction" else 0  # the initial values of its sums
        assert 0 <= record.hbm_bytes - record.argument_bytes - record.output_bytes <= extra, (
            "one pass over its values"
        )


def test_no_element_of_a_peak_is_evaluated_again(monkeypatch):
    """On an accelerator, a peak has 500 million elements: if terms cancel in 1 % of them, its check takes minutes."""
    monkeypatch.setattr(rounding_check, "reevaluate_failures", lambda progress: pytest.fail("an element is"))
    terms = machine_peaks._TERMS
    for case in [case for case in peak_cases(devices=1, dtype="float32") if case.target in terms]:
        record = run_once(dataclasses.replace(case, sizes={**case.sizes, "k": 2**16}, points=1))
        assert record.status == "ok" and record.checked == {"entries": 1.0, "points": 1.0}


WRONG = {  # functions that omit work
    "copy": lambda x: x,
    "matmul": lambda x, w: x @ w.T,
    "transcendental": lambda x: ceiling._sum_terms("transcendental", 63, x) * (64 / 63),
    "arithmetic": lambda x: ceiling._sum_terms("arithmetic", 15, x) * (16 / 15),
    "division": lambda x: ceiling._sum_terms("division", 15, x) * (16 / 15),
    "reduction": lambda x: x[:-1].sum(),
    "transpose": lambda x: x,
    "all_reduce": lambda x: jnp.broadcast_to(x.sum(axis=0), x.shape),
}


@pytest.mark.parametrize("target", WRONG)
def test_a_peak_that_omits_work_is_a_wrong_answer(target, monkeypatch):
    cases = peak_cases(devices=2, dtype="float32", precision="highest")
    case = shrink(next(case for case in cases if case.target == target))
    built = workload.build(case)
    changes = {"whole_modes": {"value": WRONG[target]}} if built.whole_modes else {"function": WRONG[target]}
    monkeypatch.setattr(ceiling, "workload", lambda _: dataclasses.replace(built, **changes))
    record = run_once(case)
    assert (record.status, record.reason) in (("failed", "wrong_answer"), ("failed", "collective"))


def test_a_peak_of_any_size_can_be_requested_by_name():
    case = case_rules.complete(Case("ceiling", "transcendental", sizes={"k": 6}, points=4))
    assert (case.mode, dict(case.sizes), run_once(case).status) == ("value", {"k": 6, "terms": 1}, "ok")
    assert isinstance(GridCell(case).case, Case)
