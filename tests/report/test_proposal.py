"""Tests of the proposal, the application for compute time: its numbers, its description of the methods, and its wording."""

import re
import shutil
import subprocess

import numpy as np
import pytest

from scaling.analysis import findings
from scaling.core.formatting import format_number
from scaling.report import methods_text, proposal, write_report
from tests.report.test_plans_in_reports import planned_record
from tests.support import made_up

TEXTS = ("proposal.md", "proposal.tex")


def write_proposal(folder):
    """Write the proposal of a folder and return a dict from file name to text."""
    paths = proposal.write_proposal(folder, findings.read(folder))
    return {path.name: path.read_text() for path in paths if path.suffix in (".md", ".tex")}


def weak_series(work=1.0, weak=True, devices=(1, 2, 4), **fields):
    """Yield records whose points grow with the devices; the work per device grows by the factor `work` at each step."""
    generator = np.random.default_rng(0)
    for step, count in enumerate(devices):
        row = made_up.record(generator, made_up.case_of("rbf", "jacfwd", 1, count, weak=weak), **fields)
        yield made_up.record(generator, row.case, flops=1e6 * work**step, compulsory_bytes=1000, **fields)


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """Return the folder of a made-up study with strong and weak scaling, failures and skips, and its report."""
    records = [row for row in made_up.study(500) if row.case.workload in ("rbf", "residual")]
    folder = made_up.write(
        tmp_path_factory.mktemp("reported") / "study", records, "a study_of <mine> & 100 %"
    )
    write_report.write_report(folder)
    return folder


@pytest.fixture
def study_copy(reported, tmp_path):
    """Return a copy of the reported study that the test may change."""
    return shutil.copytree(reported, tmp_path / "study")


def test_study_with_growing_work_per_device_is_not_called_weak_scaling(tmp_path):
    folder = made_up.write(tmp_path / "study", list(weak_series(work=2.0)))
    write_report.write_report(folder)
    texts = write_proposal(folder)
    for text in texts.values():
        assert "weak" not in text.lower()
    assert "flops per device are 1e+06 on 1 and 4e+06 on 4 devices" in texts["proposal.md"]
    assert not list((folder / "report" / "proposal").glob("*weak*"))


def test_study_with_constant_work_per_device_is_called_weak_scaling(tmp_path):
    texts = write_proposal(made_up.write(tmp_path, list(weak_series())))
    assert "Weak scaling of rbf" in texts["proposal.md"]
    assert "the scaled speed-up on 4 devices" in texts["proposal.tex"]


@pytest.mark.contract
def test_outdated_figure_of_weak_scaling_is_removed(tmp_path):
    folder = made_up.write(tmp_path / "study", list(weak_series()))
    write_report.write_report(folder)
    write_proposal(folder)
    assert list((folder / "report" / "proposal").glob("scaling-weak.*"))
    made_up.write(folder, list(weak_series(work=2.0)))
    write_proposal(folder)
    assert not list((folder / "report" / "proposal").glob("scaling-weak.*"))


def test_table_has_the_numbers_of_the_curve_with_their_intervals(tmp_path, make_record):
    records = [
        make_record(devices=d, seconds=[t * s for s in (0.98, 0.99, 1, 1, 1, 1.01, 1.02)])
        for d, t in ((1, 8.0), (2, 4.0), (4, 2.5))
    ]
    rows = re.findall(
        r"^\| (.*) \|$", write_proposal(made_up.write(tmp_path, records))["proposal.md"], re.MULTILINE
    )
    cells = [row.split(" | ") for row in rows]
    assert cells[0] == ["devices", "time", "speed-up", "ideal", "efficiency"]
    assert [row[0] for row in cells[2:]] == ["1", "2", "4"] and [row[3] for row in cells[2:]] == [
        "1x",
        "2x",
        "4x",
    ]
    assert cells[2][2] == "1.00x" and cells[3][2].startswith("2.00x (") and cells[4][4].startswith("0.80 (")
    assert cells[4][1].startswith("2.50 s (")


@pytest.mark.contract
def test_fastest_method_of_the_largest_problem_is_shown_for_each_family(study_copy):
    text = write_proposal(study_copy)["proposal.md"]
    captions = re.findall(r"^\*\*(\w+) scaling of (\w+).*?, with (\w+)", text, re.MULTILINE)
    assert captions == [
        ("Strong", "rbf", "jacfwd"),
        ("Strong", "residual", "jacrev"),
        ("Weak", "rbf", "jacfwd"),
    ]
    assert "m=65536" in text and "m=256 points" not in text


def test_every_named_figure_is_written(study_copy):
    texts = write_proposal(study_copy)
    named = re.findall(r"!\[[^]]*\]\((.+?)\)", texts["proposal.md"]) + re.findall(
        r"includegraphics.*?\{(.+?)\}", texts["proposal.tex"]
    )
    assert named == ["scaling-strong.png", "scaling-weak.png", "scaling-strong.pdf", "scaling-weak.pdf"]
    for name in named:
        start = b"\x89PNG" if name.endswith("png") else b"%PDF"
        assert (study_copy / "report" / "proposal" / name).read_bytes().startswith(start)


def test_proposal_does_not_require_a_report(tmp_path):
    texts = write_proposal(made_up.write(tmp_path / "study", list(weak_series())))
    assert "includegraphics" in texts["proposal.tex"] and not (tmp_path / "study/report/index.html").exists()


@pytest.mark.contract
def test_methods_describe_how_times_were_measured(study_copy):
    text = write_proposal(study_copy)["proposal.md"]
    for words in (
        "in float32 at highest precision", "Methods: jacfwd (vmap)", "15 samples",
        "1 to 64 devices", "Student's intervals of logarithms, by level",
        "the largest error is 3 % of its tolerance", "a reference in float64",
        "commit " + "c" * 40, "An accelerator", "jax 0.10.2", "node1, node2", "Environment made up", "scaling lint: 0 errors",
        "from 2026-01-01T00:00:00Z", "out\\_of\\_memory",
    ):  # fmt: skip
        assert words in text, words


def test_methods_name_each_mode_once_and_describe_the_choice_of_mesh(tmp_path, make_record):
    records = [make_record(chunk=chunk) for chunk in (None, 2, "auto")]
    records += [make_record(devices=2, split="both", mesh=mesh) for mesh in ("1x2", "2x1")]
    text = " ".join(methods_text.describe_methods(findings.read(made_up.write(tmp_path / "made", records))))
    assert "Methods: jacfwd (vmap). 3 memory settings were measured." in text
    assert "the fastest mesh on each number of devices. It is chosen by the same times" in text
    text = " ".join(
        methods_text.describe_methods(findings.read(made_up.write(tmp_path / "plain", [make_record()])))
    )
    assert "settings were measured" not in text and "mesh" not in text


def test_cpu_devices_are_described_as_cores(tmp_path, make_record):
    text = write_proposal(
        made_up.write(
            tmp_path,
            [make_record(), make_record(devices=2), make_record(devices=4, environment={"cores": [0]})],
        )
    )
    assert "A CPU device is a core that the process was bound to" in text["proposal.md"]
    assert "1 record without a core for each device" in text["proposal.md"]


def test_compute_time_sums_devices_times_stage_times_over_all_attempts(tmp_path, make_record):
    stages = {
        "trace_seconds": 1e3,
        "compile_seconds": 2e3,
        "first_seconds": 3e3,
        "check_seconds": 4e3,
        "sampling_seconds": 8e3,
    }
    records = [
        make_record(devices=2, **stages), make_record(devices=2, attempt=2, **stages),
        make_record("failed", devices=4, reason="wrong_answer", compile_seconds=9e3),
        make_record(devices=1, seconds=[500.0] * 4, calls_per_sample=4), make_record("failed", devices=1, reason="killed"),
        make_record(devices=8, environment={"cores": [0], "digest": "other"}, compilations=[{"compile_seconds": 5e3}]),
    ]  # fmt: skip
    # Oversubscribed devices that share one core count as one core.
    expected = 1e3 * (2 * 2 * 18 + 4 * 9 + 4 * 2 + 5)
    text = write_proposal(made_up.write(tmp_path, records))["proposal.md"]
    assert f"add up to {format_number(expected / 3600)} core-hours" in text
    assert "over 6 attempts" in text
    assert "1 of them ended without" in text


def test_accelerator_hours_are_device_hours(tmp_path):
    text = methods_text.describe_compute_time(list(weak_series(sampling_seconds=3600.0)))
    assert re.search(r"7\.\d+ device-hours", text) and "core-hours" not in text


def test_requested_hours_follow_from_time_devices_and_nodes(tmp_path, make_record):
    records = [
        make_record(devices=d, seconds=[t] * 9, environment={"platform": "gpu", "hosts": ["n1", "n2"]})
        for d, t in ((4, 0.072), (8, 0.036))
    ]
    text = write_proposal(made_up.write(tmp_path, records))["proposal.md"]
    assert "Its baseline is the same program on 4 devices" in text
    # A million calls of 36 ms take 10 hours: 80 device-hours on 8 devices, 20 node-hours on two nodes.
    assert "take 80.0 device-hours" in text and "that is 20.0 node-hours" in text
    assert "1,000,000 x 36.0 ms x 2 nodes / 3600 s" in text and "scaling run study=made up" in text


def test_extrapolation_of_a_plan_states_its_error_if_known(tmp_path):
    generator, records = np.random.default_rng(0), []
    for devices in (1, 2, 4, 64):
        case = made_up.case_of("rbf", "jacfwd", 1, devices)
        seconds = 0.01 / devices
        records += [made_up.timed(generator, case, seconds)] if devices < 64 else []
        records.append(planned_record(case, 1.1 * seconds))
    text = write_proposal(made_up.write(tmp_path, records))["proposal.md"]
    assert "on 64 devices of far a call is predicted to take 172 µs" in text
    assert "not measured; its median error is 10 %" in text or "its median error is 9 %" in text
    other_hardware = [
        planned_record(made_up.case_of("rbf", "jacfwd", 1, d), 0.01 / d, kind="another") for d in (1, 64)
    ]
    folder = made_up.write(tmp_path / "unknown", [*(r for r in records if r.status == "ok"), *other_hardware])
    assert "its error is not known" in write_proposal(folder)["proposal.md"]


def test_figure_shows_only_the_recommended_mode(study_copy, monkeypatch):
    drawn = []
    monkeypatch.setattr(proposal.files, "write_figures", lambda figures, *rest: drawn.extend(figures) or [])
    proposal.write_proposal(study_copy, findings.read(study_copy))
    for figure in drawn:
        assert all(
            len({row["line"] for row in panel.layers[-1]["data"]["values"]}) == 1 for panel in figure.panels
        )


@pytest.mark.parametrize("name", TEXTS)
def test_text_of_a_record_is_escaped(tmp_path, make_record, name):
    nasty = "\\input{x} <script> | $x$ % _y_ #"
    records = [
        make_record(devices=d, workload=nasty, formulation=nasty, environment={"hosts": [nasty]})
        for d in (1, 2)
    ]
    text = write_proposal(made_up.write(tmp_path, records, nasty))[name]
    assert "<script" not in text and "\\input{x}" not in text.replace("\\\\input", "") and "_y_" not in text


def test_proposal_without_measurements_says_so(tmp_path, make_record):
    texts = write_proposal(made_up.write(tmp_path, [make_record("failed", reason="error", text="it broke")]))
    assert "No curve of the scaling of a derivative came of this study" in texts["proposal.md"]
    assert "Nothing has been measured" in texts["proposal.tex"]


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="pdflatex is not installed")
def test_proposal_compiles_as_a_standalone_document(study_copy):
    write_proposal(study_copy)
    command = [
        "pdflatex",
        "-halt-on-error",
        "-interaction=nonstopmode",
        "-no-shell-escape",
        "proposal-alone.tex",
    ]
    result = subprocess.run(
        command, cwd=study_copy / "report" / "proposal", capture_output=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stdout[-2000:].decode(errors="replace")
    assert b"Overfull \\hbox" not in result.stdout
