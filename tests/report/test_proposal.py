"""What an application for compute time gets of a study: true figures, told methods, and nothing called what it is not."""

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


def written(folder):
    """The proposal of a folder: name -> text."""
    paths = proposal.write_proposal(folder, findings.read(folder))
    return {path.name: path.read_text() for path in paths if path.suffix in (".md", ".tex")}


def series(work=1.0, weak=True, devices=(1, 2, 4), **fields):
    """Points that grow with the devices; each device does so many times the work of the one before it."""
    draw = np.random.default_rng(0)
    for at, count in enumerate(devices):
        one = made_up.record(draw, made_up.case_of("rbf", "jacfwd", 1, count, weak=weak), **fields)
        yield made_up.record(draw, one.case, flops=1e6 * work**at, compulsory_bytes=1000, **fields)


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """A made-up study with strong and weak scaling, failures and skips, and its report."""
    made = [one for one in made_up.study(500) if one.case.workload in ("rbf", "residual")]
    folder = made_up.write(tmp_path_factory.mktemp("reported") / "study", made, "a study_of <mine> & 100 %")
    write_report.write_report(folder)
    return folder


@pytest.fixture
def whole(reported, tmp_path):
    """The same in a folder of the test's own."""
    return shutil.copytree(reported, tmp_path / "study")


def test_a_study_whose_work_per_device_grows_is_nowhere_called_weak(tmp_path):
    folder = made_up.write(tmp_path / "study", list(series(work=2.0)))
    write_report.write_report(folder)
    texts = written(folder)
    for text in texts.values():
        assert "weak" not in text.lower()
    assert "flops per device are 1e+06 on 1 and 4e+06 on 4 devices" in texts["proposal.md"]
    assert not list((folder / "report" / "proposal").glob("*weak*"))


def test_a_study_whose_work_per_device_is_constant_is_called_weak_scaling(tmp_path):
    texts = written(made_up.write(tmp_path, list(series())))
    assert (
        "Weak scaling of rbf" in texts["proposal.md"]
        and "the scaled speed-up on 4 devices" in texts["proposal.tex"]
    )


@pytest.mark.contract
def test_a_figure_of_weak_scaling_goes_away_with_the_word(tmp_path):
    folder = made_up.write(tmp_path / "study", list(series()))
    write_report.write_report(folder)
    written(folder)
    assert list((folder / "report" / "proposal").glob("scaling-weak.*"))
    made_up.write(folder, list(series(work=2.0)))
    written(folder)
    assert not list((folder / "report" / "proposal").glob("scaling-weak.*"))


def test_the_table_holds_the_numbers_of_the_curve_with_their_intervals(tmp_path, make_record):
    made = [
        make_record(devices=d, seconds=[t * s for s in (0.98, 0.99, 1, 1, 1, 1.01, 1.02)])
        for d, t in ((1, 8.0), (2, 4.0), (4, 2.5))
    ]
    rows = re.findall(r"^\| (.*) \|$", written(made_up.write(tmp_path, made))["proposal.md"], re.MULTILINE)
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
def test_of_each_family_the_fastest_way_to_the_largest_problem_is_told(whole):
    text = written(whole)["proposal.md"]
    captions = re.findall(r"^\*\*(\w+) scaling of (\w+).*?, with (\w+)", text, re.MULTILINE)
    assert captions == [
        ("Strong", "rbf", "jacfwd"),
        ("Strong", "residual", "jacrev"),
        ("Weak", "rbf", "jacfwd"),
    ]
    assert "m=65536" in text and "m=256 points" not in text


def test_every_figure_it_names_lies_beside_it(whole):
    texts = written(whole)
    named = re.findall(r"!\[[^]]*\]\((.+?)\)", texts["proposal.md"]) + re.findall(
        r"includegraphics.*?\{(.+?)\}", texts["proposal.tex"]
    )
    assert named == ["scaling-strong.png", "scaling-weak.png", "scaling-strong.pdf", "scaling-weak.pdf"]
    for name in named:
        start = b"\x89PNG" if name.endswith("png") else b"%PDF"
        assert (whole / "report" / "proposal" / name).read_bytes().startswith(start)


def test_a_proposal_needs_no_report(tmp_path):
    texts = written(made_up.write(tmp_path / "study", list(series())))
    assert "includegraphics" in texts["proposal.tex"] and not (tmp_path / "study/report/index.html").exists()


@pytest.mark.contract
def test_methods_say_how_it_was_measured(whole):
    text = written(whole)["proposal.md"]
    for told in (
        "in float32 at highest precision", "Methods: jacfwd (vmap)", "15 samples",
        "1 to 64 devices", "Student's on logarithms, by level", "the largest error is 3 % of its tolerance", "a reference in float64",
        "commit " + "c" * 40, "An accelerator", "jax 0.10.2", "node1, node2", "Environment made up", "scaling lint: 0 errors",
        "from 2026-01-01T00:00:00Z", "out\\_of\\_memory",
    ):  # fmt: skip
        assert told in text, told


def test_methods_name_a_mode_once_whatever_its_settings_and_say_how_a_mesh_was_chosen(tmp_path, make_record):
    made = [make_record(chunk=chunk) for chunk in (None, 2, "auto")]
    made += [make_record(devices=2, split="both", mesh=mesh) for mesh in ("1x2", "2x1")]
    text = " ".join(methods_text.describe_methods(findings.read(made_up.write(tmp_path / "made", made))))
    assert "Methods: jacfwd (vmap). 3 memory settings were measured." in text
    assert "the fastest mesh on each number of devices, chosen by the same times" in text
    text = " ".join(
        methods_text.describe_methods(findings.read(made_up.write(tmp_path / "plain", [make_record()])))
    )
    assert "settings were measured" not in text and "mesh" not in text


def test_a_core_of_a_cpu_is_said_to_be_one(tmp_path, make_record):
    text = written(
        made_up.write(
            tmp_path,
            [make_record(), make_record(devices=2), make_record(devices=4, environment={"cores": [0]})],
        )
    )
    assert "A CPU device is a core that the process was bound to" in text["proposal.md"]
    assert "1 record without a core for each device" in text["proposal.md"]


def test_compute_time_is_the_sum_over_every_attempt_of_devices_times_their_stages(tmp_path, make_record):
    stages = {
        "trace_seconds": 1e3,
        "compile_seconds": 2e3,
        "first_seconds": 3e3,
        "check_seconds": 4e3,
        "sampling_seconds": 8e3,
    }
    made = [
        make_record(devices=2, **stages), make_record(devices=2, attempt=2, **stages),
        make_record("failed", devices=4, reason="wrong_answer", compile_seconds=9e3),
        make_record(devices=1, seconds=[500.0] * 4, calls_per_sample=4), make_record("failed", devices=1, reason="killed"),
        make_record(devices=8, environment={"cores": [0], "digest": "other"}, compilations=[{"compile_seconds": 5e3}]),
    ]  # fmt: skip
    expected = 1e3 * (2 * 2 * 18 + 4 * 9 + 4 * 2 + 5)  # what shared one core held one
    told = written(made_up.write(tmp_path, made))["proposal.md"]
    assert (
        f"hold {format_number(expected / 3600)} core-hours" in told
        and "over 6 attempts" in told
        and "1 of which ended without" in told
    )


def test_the_hours_of_accelerators_are_no_core_hours(tmp_path):
    told = methods_text.describe_compute_time(list(series(sampling_seconds=3600.0)))
    assert re.search(r"7\.\d+ device-hours", told) and "core-hours" not in told


def test_the_hours_that_are_requested_follow_from_the_time_the_devices_and_the_nodes(tmp_path, make_record):
    made = [
        make_record(devices=d, seconds=[t] * 9, environment={"platform": "gpu", "hosts": ["n1", "n2"]})
        for d, t in ((4, 0.072), (8, 0.036))
    ]
    text = written(made_up.write(tmp_path, made))["proposal.md"]
    assert "Its baseline is the same program on 4 devices" in text
    # a million calls of 36 ms: 10 hours, on 8 devices 80 device-hours, on two nodes 20 node-hours
    assert "take 80.0 device-hours" in text and "that is 20.0 node-hours" in text
    assert "1,000,000 x 36.0 ms x 2 nodes / 3600 s" in text and "scaling run study=made up" in text


def test_a_plan_extrapolates_with_its_error_where_that_is_known(tmp_path):
    draw, records = np.random.default_rng(0), []
    for devices in (1, 2, 4, 64):
        case = made_up.case_of("rbf", "jacfwd", 1, devices)
        seconds = 0.01 / devices
        records += [made_up.timed(draw, case, seconds)] if devices < 64 else []
        records.append(planned_record(case, 1.1 * seconds))
    text = written(made_up.write(tmp_path, records))["proposal.md"]
    assert "on 64 devices of far a call is predicted to take 172 µs" in text
    assert "not measured; its median error is 10 %" in text or "its median error is 9 %" in text
    alone = [
        planned_record(made_up.case_of("rbf", "jacfwd", 1, d), 0.01 / d, kind="another") for d in (1, 64)
    ]
    folder = made_up.write(tmp_path / "unknown", [*(r for r in records if r.status == "ok"), *alone])
    assert "its error is not known" in written(folder)["proposal.md"]


def test_the_figure_is_that_of_the_recommended_mode_alone(whole, monkeypatch):
    drawn = []
    monkeypatch.setattr(proposal.files, "write_figures", lambda figures, *rest: drawn.extend(figures))
    proposal.write_proposal(whole, findings.read(whole))
    for figure in drawn:
        assert all(
            len({row["line"] for row in panel.layers[-1]["data"]["values"]}) == 1 for panel in figure.panels
        )


@pytest.mark.parametrize("name", TEXTS)
def test_text_of_a_record_is_text(tmp_path, make_record, name):
    nasty = "\\input{x} <script> | $x$ % _y_ #"
    made = [
        make_record(devices=d, workload=nasty, formulation=nasty, environment={"hosts": [nasty]})
        for d in (1, 2)
    ]
    text = written(made_up.write(tmp_path, made, nasty))[name]
    assert "<script" not in text and "\\input{x}" not in text.replace("\\\\input", "") and "_y_" not in text


def test_nothing_measured_makes_a_proposal_that_says_so(tmp_path, make_record):
    texts = written(made_up.write(tmp_path, [make_record("failed", reason="error", text="it broke")]))
    assert "No curve of the scaling of a derivative came of this study" in texts["proposal.md"]
    assert "Nothing has been measured" in texts["proposal.tex"]


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="pdflatex is not here")
def test_the_proposal_compiles_as_a_document_of_its_own(whole):
    written(whole)
    words = [
        "pdflatex",
        "-halt-on-error",
        "-interaction=nonstopmode",
        "-no-shell-escape",
        "proposal-alone.tex",
    ]
    done = subprocess.run(
        words, cwd=whole / "report" / "proposal", capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:].decode(errors="replace")
    assert b"Overfull \\hbox" not in done.stdout
