"""Tests of user peers: one file, run in its own process with the same checks; its errors affect only its own records."""

import sys
import textwrap
from types import SimpleNamespace

import pytest

from scaling.core import environment
from scaling.core.case import Case, Refusal, from_dict, to_dict
from scaling.peers import interface
from scaling.results.store import latest_records, load
from scaling.study import case_rules

pytestmark = pytest.mark.process

CORRECT = """
    x, y = arrays["x"], arrays["support"][:, 0]
    return Prepared(lambda: ((y - 0.5) * np.exp((x - 0.5) * y - 0.5 * x)).sum(axis=1), np.asarray, passes=1)
"""


@pytest.fixture
def write_peer(tmp_path):
    """Write a user's peer with this body of `prepare`; it supports the workload rbf."""

    def write(body=CORRECT, head="", name="other"):
        text = f"""\
import os
import numpy as np
from scaling.peer import Prepared
{textwrap.dedent(head)}

def reason_to_skip(case, workload, sizes):
    return None if case.workload == "rbf" else "other knows rbf"


def prepare(case, workload, sizes, arrays, threads):
{textwrap.indent(textwrap.dedent(body), "    ")}
"""
        (tmp_path / f"{name}.py").write_text(text)

    return write


@pytest.fixture
def run(scaling_command, write_study, tmp_path):
    """Run JAX and the peer on sizes of rbf and return the records, those of JAX first, and the process."""

    def call(engines="jax, other", options="", status=0, points=(12,)):
        arguments = write_study(f"""
            devices: 1
            dtype: float64
            api: jit
            grids:
              - {{workload: rbf, points: {[*points]}, mode: jacfwd, engine: [{engines}]{options}}}
            """)
        done = scaling_command(arguments, env={"PYTHONPATH": str(tmp_path)})
        assert done.returncode == status, done.stdout + done.stderr
        records = latest_records(load(tmp_path / "results" / "mine").records)
        return sorted(records, key=lambda r: (r.case.engine != "jax", r.case.points)), done

    return call


def test_a_user_peer_is_measured_with_its_versions_and_compared_to_jax(
    write_peer, run, scaling_command, tmp_path
):
    write_peer(head="PACKAGES = ('pytest',)")
    records, _ = run(points=(12, 20))
    assert [r.status for r in records] == ["ok"] * 4
    assert [r.case.engine for r in records] == ["jax", "jax", "other", "other"]
    assert all(r.error < 1e-13 and r.seconds for r in records)
    assert records[2].passes == 1 and not records[2].case.jit
    assert scaling_command(["report", "results/mine"]).returncode == 0
    page = (tmp_path / "results" / "mine" / "report" / "index.html").read_text()
    assert "Other systems" in page and "<td>other" in page
    assert "Other systems" in (tmp_path / "results" / "mine" / "report" / "table.md").read_text()
    assert len({r.setting for r in records}) == 1, "versions do not change it"
    assert len({r.environment["digest"] for r in records}) == 2
    versions = records[-1].environment["engine"]
    assert versions["pytest"] == pytest.__version__ and set(versions) == {
        "pytest",
        "other",
    }  # the value of `other` is a hash of its source


BROKEN = {  # body of `prepare`, expected reason, part of the text
    "wrong": (CORRECT.replace("0.5)", "0.6)", 1), "wrong_answer", "point 0 is wrong"),
    "of_another_shape": (CORRECT.replace(".sum(axis=1)", ""), "error", "where (12, 1, 1) is expected"),
    "aborting": ("os.abort()", "killed", "signal 6"),
    "hungry": ("raise MemoryError('no room')", "out_of_memory", "no room"),
    "not_to_be_imported": ("import nowhere", "error", "nowhere"),
    "no_peer": ("return 7", "error", "AttributeError"),
    "complex": (CORRECT.replace("np.asarray", "lambda a: a + 1j"), "error", "returns complex numbers"),
    "half_passes": (CORRECT.replace("passes=1", "passes=0.5"), "error", "passes must be an integer"),
}


@pytest.mark.thorough
def test_errors_of_a_peer_affect_only_its_own_records(write_peer, run):
    write_peer()
    for name, (body, *_) in BROKEN.items():
        write_peer(body, name=name)
    records, _ = run(", ".join(["jax", *BROKEN, "other"]), status=1, points=(12, 20))
    by_engine = {
        engine: [r for r in records if r.case.engine == engine] for engine in ("jax", *BROKEN, "other")
    }
    assert [r.status for r in by_engine["jax"] + by_engine["other"]] == ["ok"] * 4
    for engine, (_, reason, text) in BROKEN.items():
        first, second = by_engine[engine]
        assert (first.status, first.reason) == ("failed", reason) and text in first.text, engine
        assert second.reason in (reason, "dominated" if reason == "out_of_memory" else reason), engine


@pytest.mark.thorough
def test_cases_of_a_peer_with_missing_packages_are_skipped_run_once_installed_and_stay(write_peer, run):
    missing = "PACKAGES = ('numpy', 'surely-not-there')"
    write_peer(head=missing)
    (jax, skipped), done = run()
    assert (jax.status, skipped.status, skipped.reason) == ("ok", "skipped", "not_installed")
    assert skipped.text == "surely-not-there is not installed; pip install surely-not-there"
    assert done.stdout.count("not_installed") >= 1
    write_peer()
    records, done = run()
    assert [r.status for r in records] == ["ok"] * 2
    assert "1 already done" in done.stdout and "0 skipped, 0 failed" in done.stdout
    write_peer(head=missing)
    run()
    write_peer()
    records, done = run()
    assert [r.status for r in records] == ["ok"] * 2, "records are kept while the packages are missing"
    assert "0 cases to run" in done.stdout and "0 skipped" in done.stdout


@pytest.mark.thorough
def test_unsupported_cases_are_checked_again_in_the_next_run(write_peer, run, tmp_path):
    write_peer(head="OFFERED = os.path.exists('compiler')")
    text = (
        (tmp_path / "other.py")
        .read_text()
        .replace('return None if case.workload == "rbf"', "return None if OFFERED")
    )
    (tmp_path / "other.py").write_text(text)
    assert [r.reason for r in run("other")[0]] == ["not_offered"]
    (tmp_path / "compiler").touch()
    assert [r.status for r in run("other")[0]] == ["ok"]


def test_the_default_formulation_is_the_same_in_jax_and_in_the_peers():
    from scaling.peers import formulas
    from scaling.workloads import rbf

    for variant, names in rbf.FORMULATIONS.items():
        explicit, default = (Case("rbf", variant=variant, formulation=name) for name in (names[0], None))
        assert case_rules.complete(explicit) == case_rules.complete(default)
        assert formulas.formula_of(explicit, None).func is formulas.formula_of(default, None).func


def test_a_peer_that_uses_one_core_is_skipped_on_two_devices(write_peer, run):
    write_peer()
    records, _ = run("other", options=", devices: [1, 2], api: [jit]")
    assert {(r.case.devices, r.status) for r in records} == {(1, "ok"), (2, "skipped")}
    assert {r.text for r in records if r.status == "skipped"} == {"other uses one core"}


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (
            "trch",
            "unknown engine 'trch': choose from jax, .*import path of a peer of your own; did you mean 'torch'",
        ),
        ("torch/fast", "unknown engine 'torch/fast': choose from jax, .*torch"),
        (
            "numpy",
            "engine 'numpy' has no function reason_to_skip: choose from jax, autograd, casadi, torch, or add",
        ),
        ("my.own.peer", "unknown engine 'my.own.peer'"),
    ],
)
def test_an_unknown_engine_is_rejected_in_one_line(engine, message):
    with pytest.raises(Refusal, match=message) as error:
        interface.import_peer(engine)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("packages", ["('numpy')", "('',)", "[1]", "None"])
def test_packages_that_are_not_a_list_of_names_are_rejected(packages, write_peer, tmp_path, monkeypatch):
    write_peer(head=f"PACKAGES = {packages}", name="unlisted")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "unlisted", raising=False)
    with pytest.raises(
        Refusal, match=r"PACKAGES of engine 'unlisted' must be like \('numpy',\) or \(\), not"
    ):
        interface.import_peer("unlisted")


def test_a_reason_to_skip_that_is_no_text_is_rejected(monkeypatch):
    monkeypatch.setattr(interface, "import_peer", lambda engine: SimpleNamespace(reason_to_skip=lambda *_: 3))
    derivative = SimpleNamespace(case=Case("rbf", engine="mine", api="jit", mode="jacfwd"), workload=None)
    with pytest.raises(Refusal, match="reason_to_skip of the peer mine must return text or None, not 3"):
        interface.why_not_offered(derivative)


def test_engine_versions_change_the_digest_but_not_the_setting():
    default, old, new = (
        environment.describe("cpu", "cpu", {}, None, [0], engine)
        for engine in (None, {"torch": "2.13.0"}, {"torch": "2.14.0"})
    )
    assert default["digest"] == default["setting"] == old["setting"] == new["setting"]
    assert len({default["digest"], old["digest"], new["digest"]}) == 3


def test_a_default_engine_does_not_change_a_key():
    assert (
        from_dict(to_dict(Case("rbf")) | {"engine": "jax", "chunk": None, "formulation": None}).key
        == Case("rbf").key
    )
