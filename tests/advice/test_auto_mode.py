"""mode=auto: each case chooses its mode by compiling alone, is checked, and is compared with the fastest mode."""

import pytest

from scaling.advice import advisor, measurement
from scaling.analysis import findings
from scaling.cli.main import main
from scaling.core.case import Case
from scaling.core.modes import HESSIAN
from scaling.launcher.schedule import PreflightResult
from scaling.plan import plan_study
from scaling.study import case_rules
from tests.support import ceilings, made_up
from tests.support.devices import run_once

WIDE = {"workload": "linear", "points": 8, "sizes": {"p": 64, "o": 2}}  # many inputs, few outputs
TALL = {"workload": "residual", "points": 64, "wrt": "m"}  # one input, many outputs


@pytest.fixture(autouse=True)
def made_up_peaks(monkeypatch):
    peaks = lambda cases: [r for n in {c.devices for c in cases} for r in ceilings.all_of(n)]  # noqa: E731
    monkeypatch.setattr(measurement, "_load_or_measure_peaks", peaks)


def run(**fields):

    case = case_rules.complete(Case(**{"mode": "auto", "api": "jit"} | fields))
    return run_once(case)


@pytest.mark.parametrize("layout", [
    {}, {"api": "shard_map", "devices": 2}, {"api": "shard_map", "split": "both", "mesh": "1x2", "devices": 2},
])  # fmt: skip
def test_a_case_records_the_mode_that_it_chose_and_is_checked(layout):
    record = run(**WIDE, **layout)
    assert record.status == "ok" and record.error <= record.tolerance, record.text
    assert record.case.mode == "auto" and record.chosen["mode"] in ("jacrev", "grad_of_sum", "vmap_grad")


def test_forward_mode_is_chosen_for_one_input():
    assert run(**TALL).chosen["mode"] == "jacfwd"


@pytest.mark.parametrize("target", ["hessian", "hvp", "laplacian"])
def test_a_mode_of_second_derivatives_is_chosen(target):
    record = run(workload="residual", points=8, wrt="d", variant="scalar", target=target)
    assert record.status == "ok" and record.error <= record.tolerance, record.text
    assert record.chosen["mode"] in (*HESSIAN, "forward_laplacian")


def test_what_auto_chooses_cannot_be_set():
    unused = case_rules.unused_fields(Case("linear", mode="auto", chunk=4, block=2, api="jit"))
    assert {name: reason for name, (reason, *_) in unused.items()} == dict.fromkeys(
        ("chunk", "block"), "with mode=auto, which chooses it"
    )


def test_a_machine_without_known_rates_is_skipped(monkeypatch):
    monkeypatch.setattr(advisor, "find_model", lambda device: None)
    record = run(**WIDE)
    assert (record.status, record.reason) == ("skipped", "not_offered") and "conf/hardware" in record.text


def test_a_function_that_no_mode_can_differentiate_is_skipped_with_the_error(tmp_path, monkeypatch):
    callback = "lambda x: jax.pure_callback(abs, jax.ShapeDtypeStruct(x.shape, x.dtype), x)"
    workload = f'Workload({callback}, {{"x": normal(3)}}, wrt="x")'
    text = f"import jax\nfrom scaling.workload import Workload, normal\nworkload = lambda case: {workload}\n"
    (tmp_path / "not_differentiable.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    record = run(workload="not_differentiable", points=4)
    assert (record.status, record.reason) == ("skipped", "not_offered")
    assert "do not support JVP" in record.text


def test_a_function_whose_time_is_unknown_is_not_called_too_large(tmp_path, monkeypatch):
    text = """
import jax, numpy
from scaling.workload import Workload, uniform

shape = jax.ShapeDtypeStruct((3,), "float32")
exp = jax.custom_jvp(lambda x: jax.pure_callback(numpy.exp, shape, x, vmap_method="expand_dims"))
exp.defjvp(lambda x, t: (exp(*x), exp(*x) * t[0]))
workload = lambda case: Workload(lambda x: exp(x), {"x": uniform(3)}, wrt="x")
"""
    (tmp_path / "of_unknown_time.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    record = run(workload="of_unknown_time", points=4)
    assert (record.status, record.reason) == ("skipped", "not_offered")
    assert "not predicted: the work of" in record.text


def test_a_plan_needs_the_modes_themselves():
    checked = plan_study._skip_unplannable(PreflightResult(Case("linear", mode="auto"), None, None))
    assert checked.outcome[:2] == ("skipped", "not_defined") and "mode=auto" in checked.outcome[2]


def test_auto_is_not_called_the_fastest(tmp_path, make_record):
    seconds = {"jacfwd": 3.0, "jacrev": 2.0, "auto": 1.9}
    records = [
        make_record(mode=mode, seconds=[value] * 9, chosen={"mode": "jacrev"} if mode == "auto" else None)
        for mode, value in seconds.items()
    ]
    folder = made_up.write(tmp_path / "made", records)
    assert main(["report", str(folder)]) == 0 and ">auto<" in (folder / "report" / "index.html").read_text()
    read = findings.read(folder)
    assert [row.fastest.case.mode for row in read.fastest] == ["jacrev"]
