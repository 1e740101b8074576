"""Tests of the proposal, the application for compute time: its numbers, its description of the methods, and its wording."""

import re
import shutil

import numpy as np
import pytest

from scaling.analysis import findings
from scaling.core.record import to_line
from scaling.report import proposal
from scaling.results.store import write_json
from tests.support import made_up, reports
from tests.support.planned import planned_record


def write_proposal(folder, draws=False):
    """Write the proposal of a folder and return its text. Figures, which take most of the time, are drawn on request."""
    with pytest.MonkeyPatch.context() as patch:
        if not draws:
            patch.setattr(proposal.files, "encode_figures", lambda *_: {})
        return proposal.write_proposal(folder, findings.read(folder)).read_text()


def methods_of(text):
    """Return the text of the methods section of a proposal."""
    return text.split("## Methods\n\n")[1].split("\n\n## ")[0]


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
    reports.write_report(folder)
    return folder


@pytest.fixture
def study_copy(reported, tmp_path):
    """Return a copy of the reported study that the test may change."""
    return shutil.copytree(reported, tmp_path / "study")


def test_study_with_growing_work_per_device_is_not_called_weak_scaling(tmp_path):
    folder = made_up.write(tmp_path / "study", list(weak_series(work=2.0)))
    reports.write_report(folder)
    text = write_proposal(folder, draws=True)
    assert "Weak scaling" not in text and "Not weak scaling: rbf" in text
    assert "flops per device are 1e+06 on 1 and 4e+06 on 4 devices" in text
    assert not list((folder / "report" / "proposal").glob("*weak*"))


def test_study_with_constant_work_per_device_is_called_weak_scaling(tmp_path):
    text = write_proposal(made_up.write(tmp_path, list(weak_series())))
    assert "Weak scaling of rbf" in text
    assert "the scaled speed-up on 4 devices" in text


def test_table_has_the_numbers_of_the_curve_with_their_intervals(tmp_path, make_record):
    records = [
        make_record(devices=d, seconds=[t * s for s in (0.98, 0.99, 1, 1, 1, 1.01, 1.02)])
        for d, t in ((1, 8.0), (2, 4.0), (4, 2.5))
    ]
    rows = re.findall(r"^\| (.*) \|$", write_proposal(made_up.write(tmp_path, records)), re.MULTILINE)
    cells = [row.split(" | ") for row in rows[:5]]
    assert cells[0] == ["devices", "time", "speed-up", "ideal", "efficiency", "serial part"]
    assert [row[0] for row in cells[2:]] == ["1", "2", "4"] and [row[3] for row in cells[2:]] == [
        "1x",
        "2x",
        "4x",
    ]
    assert cells[2][2] == "1.00x" and cells[3][2].startswith("2.00x (") and cells[4][4].startswith("0.80 (")
    assert cells[4][1].startswith("2.50 s (")
    assert (cells[2][5], cells[3][5].split()[0], cells[4][5].split()[0]) == ("", "0", "0.0833")


@pytest.mark.thorough
def test_fastest_method_of_the_largest_problem_is_shown_for_each_family(study_copy):
    text = write_proposal(study_copy)
    captions = re.findall(r"^\*\*(\w+) scaling of (\w+).*?, with (\w+)", text, re.MULTILINE)
    assert captions == [
        ("Strong", "rbf", "jacfwd"),
        ("Strong", "residual", "jacrev"),
        ("Weak", "rbf", "jacfwd"),
    ]
    assert "m=65536" in text and "m=256 points" not in text


def test_every_named_figure_is_written(study_copy):
    text = write_proposal(study_copy, draws=True)
    named = re.findall(r"!\[[^]]*\]\((.+?)\)", text)
    assert named == ["scaling-strong.png", "scaling-weak.png"]
    for name in named:
        assert (study_copy / "report" / "proposal" / name).read_bytes().startswith(b"\x89PNG")


def test_proposal_does_not_require_a_report(tmp_path):
    text = write_proposal(made_up.write(tmp_path / "study", list(weak_series())))
    assert "scaling-weak.png" in text and not (tmp_path / "study/report/index.html").exists()


@pytest.mark.thorough
def test_methods_describe_how_times_were_measured(study_copy):
    text = write_proposal(study_copy)
    for words in (
        "in float32 at highest precision", "Methods: jacfwd (vmap)", "Numbers of devices: 1, 2, 4, 8",
        "Student's intervals of logarithms, by level", "agrees with a reference in float64",
        "| commit | " + "c" * 40, "An accelerator", "jax 0.10.2", "node1, node2", "| environment | made up |",
        "scaling lint: 0 errors", "| first case started | 2026-01-01T00:00:00Z |", "out\\_of\\_memory",
    ):  # fmt: skip
        assert words in text, words


def test_methods_state_the_smallest_share_of_entries_that_was_compared(tmp_path):
    rng, cases = np.random.default_rng(0), [made_up.case_of("rbf", devices=count) for count in (1, 2)]
    for share, text in ((0.0312, "at least 3.12 %."), (0.999999, "at least 99.99 %."), (1.0, None)):
        records = [made_up.record(rng, case, checked={"entries": share, "points": 0.0}) for case in cases]
        methods = methods_of(write_proposal(made_up.write(tmp_path / "study", records)))
        assert ("one by one" in methods) == (text is not None) and (text or "") in methods


def test_methods_state_that_times_were_checked_only_if_each_record_has_an_error(tmp_path, make_record):
    for error in (1e-7, None):
        records = [make_record(), make_record(devices=2, error=error)]
        text = methods_of(write_proposal(made_up.write(tmp_path / str(error), records)))
        assert ("agrees with a reference" in text) is (error is not None)


def test_methods_name_each_mode_once_and_describe_the_choice_of_mesh(tmp_path, make_record):
    records = [make_record(chunk=chunk) for chunk in (None, 2, "auto")]
    records += [make_record(devices=2, split="both", mesh=mesh) for mesh in ("1x2", "2x1")]
    text = methods_of(write_proposal(made_up.write(tmp_path / "made", records)))
    assert "Methods: jacfwd (vmap). " in text
    assert "the fastest mesh on each number of devices. It is chosen by the same times" in text
    one_mesh = [make_record(devices=n, split="both", mesh=mesh) for n, mesh in ((2, "1x2"), (4, "2x2"))]
    for name, records in (("plain", [make_record()]), ("one", one_mesh)):
        text = methods_of(write_proposal(made_up.write(tmp_path / name, records)))
        assert "mesh" not in text


def test_cpu_devices_are_described_as_cores(tmp_path, make_record):
    unbound = make_record(devices=4, environment={"cores": [0]})
    text = write_proposal(made_up.write(tmp_path, [make_record(), make_record(devices=2), unbound]))
    assert "A CPU device is a core that the process was bound to" in text
    assert "Error: oversubscribed or unbound devices (1)." in text


def test_requested_hours_follow_from_time_devices_and_nodes(tmp_path, make_record):
    records = [
        make_record(devices=d, seconds=[t] * 9, environment={"platform": "gpu", "hosts": ["n1", "n2"]})
        for d, t in ((4, 0.072), (8, 0.036))
    ]
    text = write_proposal(made_up.write(tmp_path, records))
    assert "Its baseline is the same program on 4 devices" in text
    # A million calls of 36 ms take 10 hours: 80 device-hours on 8 devices, 20 node-hours on two nodes.
    assert "take 80.0 (80.0 to 80.0) device-hours" in text
    assert "that is 20.0 (20.0 to 20.0) node-hours" in text
    assert "1,000,000 x 36.0 ms (36.0 to 36.0) x 2 nodes / 3600 s" in text
    assert "scaling run study=made up" in text


def test_commands_that_repeat_the_studies_are_those_that_exist(tmp_path, make_record):
    def provenance(folder):
        return write_proposal(folder).split("## Provenance\n\n")[1].split(", with the original")[0]

    merged = made_up.write(tmp_path / "merged", [make_record()], "rbf + linear")
    assert provenance(merged) == "Repeat the study with scaling run study=rbf and scaling run study=linear"
    planned = tmp_path / "planned"
    planned.mkdir()
    (planned / "records.jsonl").write_text(to_line(planned_record(made_up.case_of("rbf"), 1e-3)) + "\n")
    write_json(planned / "plan-far.json", {"study": "mine"})
    assert provenance(planned) == "Repeat the study with scaling plan study=mine hardware=far"
    (planned / "plan-far.json").unlink()  # the folder is called planned, which is no study
    assert provenance(planned).startswith("Command for the proposal: ")


def test_extrapolation_of_a_plan_states_its_error_if_known(tmp_path):
    generator, records = np.random.default_rng(0), []
    for devices in (1, 2, 4, 64):
        case = made_up.case_of("rbf", "jacfwd", 1, devices)
        seconds = 0.01 / devices
        records += [made_up.timed(generator, case, seconds)] if devices < 64 else []
        records.append(planned_record(case, 1.1 * seconds))
    text = write_proposal(made_up.write(tmp_path, records))
    assert "on 64 devices of far a call is predicted to take 172 µs" in text
    assert "not measured; its median error is 10 %" in text or "its median error is 9 %" in text
    other_hardware = [
        planned_record(made_up.case_of("rbf", "jacfwd", 1, d), 0.01 / d, kind="another") for d in (1, 64)
    ]
    folder = made_up.write(tmp_path / "unknown", [*(r for r in records if r.status == "ok"), *other_hardware])
    assert "its error is not known" in write_proposal(folder)


def test_figure_shows_only_the_recommended_mode(study_copy, monkeypatch):
    drawn = []
    monkeypatch.setattr(proposal.files, "encode_figures", lambda figures, *_: drawn.extend(figures) or {})
    proposal.write_proposal(study_copy, findings.read(study_copy))
    panels = [panel for figure in drawn for panel in figure.panels]
    assert panels and all(
        len({row["line"] for row in panel.chart["data"]["values"]}) == 1 for panel in panels
    )


def test_text_of_a_record_is_escaped(tmp_path, make_record):
    nasty = "\\input{x} <script> | $x$ % _y_ #"
    records = [
        make_record(devices=d, workload=nasty, formulation=nasty, environment={"hosts": [nasty]})
        for d in (1, 2)
    ]
    text = write_proposal(made_up.write(tmp_path, records, nasty))
    assert "<script" not in text and "\\input{x}" not in text.replace("\\\\input", "") and "_y_" not in text


def test_proposal_without_measurements_says_so(tmp_path, make_record):
    text = write_proposal(made_up.write(tmp_path, [make_record("failed", reason="error", text="it broke")]))
    assert "No curve of the scaling of a derivative came of this study" in text
    assert "Nothing has been measured" in text


def steady(make_record, mode, times, **fields):
    """Return a record of a mode for each device count and its time in seconds."""
    return [make_record(mode=mode, devices=d, seconds=[t] * 9, **fields) for d, t in times.items()]


def test_one_automatic_mode_of_all_baselines_is_recommended_for_a_problem(tmp_path, make_record):
    records = steady(make_record, "jacfwd", {1: 8.0, 2: 4.0, 4: 2.0})
    records += steady(make_record, "jacrev", {2: 2.0, 4: 1.0})
    records += steady(make_record, "analytic", {1: 1.0, 2: 0.5, 4: 0.25})
    text = write_proposal(made_up.write(tmp_path, records))
    assert re.findall(r"^\*\*Strong scaling of .*?, with (\w+)", text, re.MULTILINE) == ["jacrev"]
    assert text.count(" calls on ") == 1 and "(certainty: not sure" in text


def test_recommended_mode_is_the_one_that_the_report_calls_the_fastest(tmp_path, make_record):
    records = [
        make_record(mode=mode, devices=d, seconds=[level * factor / d] * 7, replicate=i, block=f"b{i} {d}")
        for d in (1, 2)
        for i, level in enumerate((1.0, 1.5, 2.0, 2.6, 3.3))
        for mode, factor in (("jacfwd", 1.0), ("jacrev", 1.01 if i == 2 else 0.9))
    ]
    folder = made_up.write(tmp_path, records)
    assert [row.fastest.case.mode for row in findings.read(folder).fastest] == ["jacrev", "jacrev"]
    text = write_proposal(folder)
    assert re.findall(r"^\*\*Strong scaling of .*?, with (\w+)", text, re.MULTILINE) == ["jacrev"]


@pytest.mark.parametrize(
    ("times", "floor", "doubt"),
    [
        (((1.0, 1.6), (0.3, 0.5)), 0.0, "the ratio"),
        (((1.0, 1.0), (0.3, 0.3)), 0.4, "8 devices may take only"),
    ],
)
def test_no_devices_are_recommended_if_their_ratio_is_not_determined_or_the_fastest_may_be_an_empty_call(
    tmp_path, make_record, times, floor, doubt
):
    records = [
        make_record(devices=d, seconds=[s] * 7, replicate=i, floor_seconds=floor)
        for d, of_count in zip((1, 8), times, strict=True)
        for i, s in enumerate(of_count)
    ]
    text = write_proposal(made_up.write(tmp_path, records))
    reason = f"(no number of devices can be recommended: {doubt}"
    assert f"calls on 8 cores, with the shortest time {reason}" in text


def test_compute_time_is_for_the_fewest_devices_not_distinguished_from_the_fastest(tmp_path, make_record):
    noisy = (1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 1.0, 1.0, 1.0)
    records = [
        make_record(devices=d, seconds=[t * s for s in noisy]) for d, t in ((1, 2.0), (2, 1.0), (4, 0.99))
    ]
    text = write_proposal(made_up.write(tmp_path, records))
    assert "calls on 2 cores, the fewest whose time is not distinguished from the shortest, take 556" in text


def test_proposal_of_a_plan_alone_has_no_empty_table(tmp_path):
    records = [planned_record(made_up.case_of("rbf", "jacfwd", 1, d), 1.0 / d) for d in (1, 2)]
    text = write_proposal(made_up.write(tmp_path, records))
    assert "Nothing has been measured" in text and "\n|" not in text
