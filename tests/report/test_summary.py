"""Tests of the closing summary of `scaling run`: the answer, the warnings and the next commands on one screen of 80 columns."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from scaling.analysis import answers, findings
from scaling.cli import report
from scaling.report.terminal import summary_lines
from scaling.report.text import wrap_text
from tests.support import made_up
from tests.support.records import STEADY, processes, record


def read_study(folder, records):
    return findings.read(made_up.write(folder / "made", records))


def summarize(study, folder, **options):
    return summary_lines(study, folder / "made", **options)


@pytest.mark.parametrize("count", [0, 3, 40, 600])
def test_summary_of_any_study_fits_a_screen(tmp_path, count):
    failed = record(status="failed", reason="error", text="it broke " * 200)
    records = made_up.study(count) if count else [failed]
    lines = summarize(read_study(tmp_path, records), tmp_path)
    assert 0 < len(lines) <= 21 and all(len(line) <= 80 or str(tmp_path) in line for line in lines)


def test_workloads_that_do_not_fit_are_counted(tmp_path):
    records = [
        row for n in range(30) for row in processes(("jacfwd", 1.0), ("jacrev", 2.0), workload=f"workload{n}")
    ]
    lines = summarize(read_study(tmp_path, records), tmp_path)
    shown = sum("is fastest" in line for line in lines)
    assert len(lines) <= 21 and 0 < shown < 30 and lines[-2].endswith(f"made  # {30 - shown} more answers")


def test_answer_comes_first_then_the_warnings_then_the_next_commands(tmp_path):
    lines = summarize(
        read_study(tmp_path, [record(seconds=2.0), record(seconds=3.0, mode="jacrev")]), tmp_path
    )
    text = " ".join(" ".join(lines).split())
    assert (
        "jacfwd (vmap) is fastest, 2.00 s (2.00 to 2.00) on 1 device, shard_map, points split; jacrev (vmap) takes 1.50x"
        in text
    )
    assert "not sure: measured in one process." in text
    heads = [
        " ".join(line.split()[:2]) for line in lines if line.startswith(("error: ", "warning: ", "scaling "))
    ]
    assert heads[0].startswith(("error", "warning")) and heads[-2:] == ["scaling report", "scaling lint"]
    assert not lines[0].startswith(("error", "warning", "scaling"))


def test_no_mode_is_called_fastest_below_the_time_of_an_empty_call(tmp_path):
    rows = processes(("jacfwd", 6e-6), ("jacrev", 1.0), floor_seconds=9e-6)
    text = " ".join(" ".join(summarize(read_study(tmp_path, rows), tmp_path)).split())
    assert "; not distinguished from an empty call." in text and "is fastest" not in text


@pytest.mark.parametrize("width", [20, 33, 40, 57, 80])
def test_lines_are_not_broken_within_a_number_its_unit_or_its_interval(width):
    text = "it takes 87.2 µs (87.0 to 87.4) on 2 devices and 399 MB of 8.10 GB, 40 % of 1,234,567 seeds " * 5
    lines = wrap_text(text, width)
    assert " ".join(lines) == text.strip()
    assert max(map(len, lines)) <= max(width, len("87.2 µs (87.0 to 87.4)"))
    for unbreakable in ("87.2 µs (87.0 to 87.4)", "2 devices", "399 MB", "8.10 GB", "40 %"):
        assert sum(line.count(unbreakable) for line in lines) == 5


def test_remarks_that_exceed_the_width_end_in_an_ellipsis(tmp_path):
    lines = summarize(
        read_study(tmp_path, [record(seconds=[1.0] * STEADY, floor_seconds=0.5)]), tmp_path, width=60
    )
    remarks = [line for line in lines if line.startswith(("error:", "warning:"))]
    assert remarks
    assert all(len(line) <= 60 for line in remarks)
    assert any(line.endswith(" ...") for line in remarks)


@pytest.mark.parametrize("width", [10, 20, 80])
def test_the_first_answer_is_shown_at_any_width(width, tmp_path):
    rows = processes(("jacfwd", 1.0), ("jacrev", 2.0), workload="function_with_a_long_name")
    lines = summarize(read_study(tmp_path, rows), tmp_path, width=width)
    assert "jacfwd (vmap) is fastest" in " ".join(" ".join(lines).split())


@pytest.mark.parametrize("name", ["made", "a folder " + "of a long name " * 4])
def test_closing_report_fits_a_screen_of_80_columns(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    made_up.write(
        Path(name), [*made_up.study(60), *processes(("jacfwd", 1.0), ("jacrev", 2.0), digest="another")]
    )
    output = io.StringIO()
    report.write_and_print(Path(name), Console(file=output, width=140), {"made up"}, brief=True)
    lines = output.getvalue().splitlines()
    assert len(lines) <= 25 and all(len(line) <= 80 or name in line for line in lines)
    assert re.search(r"report: .*index\.html$", lines[-1])
    assert any("other environments" in line for line in lines)


def test_a_lost_attempt_of_a_case_that_failed_before_does_not_count_as_another_environment(
    tmp_path, monkeypatch
):
    failed = [
        record(mode="jacrev", status="failed", reason="error", text="it stopped", attempt=number)
        for number in (1, 2)
    ]
    made_up.write(tmp_path / "made", [*processes(("jacfwd", 1.0)), failed[0]])
    monkeypatch.setattr(report, "find_unrecorded", lambda *_: failed[1:])
    output = io.StringIO()
    report.write_and_print(tmp_path / "made", Console(file=output, width=140))
    assert "1 failed" in output.getvalue() and "other environments" not in output.getvalue()


def test_an_answer_names_both_modes_of_a_tie(tmp_path):
    small = processes(("jacfwd", 1.0), ("jacrev", 2.0), points=8)
    large = [
        record(seconds=level + noise, mode=mode, replicate=process, points=16, turns=[STEADY])
        for mode, level in (("jacrev", 4.0), ("jacfwd", 4.01))
        for process, noise in enumerate((0.0, 0.3, -0.3) if mode == "jacrev" else (0.3, -0.3, 0.0))
    ]
    (answer,) = answers.measured_answers(read_study(tmp_path, [*small, *large]))
    assert answer.modes == ("jacrev (vmap)", "jacfwd (vmap)")
    assert answer.ranking.certainty == "not distinguished"
    assert answer.time.endswith(" by jacrev (vmap)"), "which mode the time belongs to"


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({1: 4.0}, ["Measured on 1 device only"]),
        ({1: 4.0, 2: 2.0}, [
            "Speed-up: 2.00x (2.00 to 2.00) over the same program on one device",
            "Efficiency: 1.00 (1.00 to 1.00)",
            "Efficiency of at least 0.5: on up to 2 devices, the most that were measured",
        ]),
        ({1: 2.0, 2: 4.0}, [
            "Other device counts: jacfwd (vmap) on 2 devices takes 2.00x (2.00 to 2.00) as long",
            "Efficiency of at least 0.5: on up to 1 device",
        ]),
    ],
)  # fmt: skip
def test_an_answer_compares_the_device_counts_and_states_each_number_once(seconds, expected, tmp_path):
    rows = [
        row
        for devices, level in seconds.items()
        for row in processes(("jacfwd", level), ("jacrev", 2 * level), devices=devices, api="shard_map")
    ]
    (answer,) = answers.measured_answers(read_study(tmp_path, rows))
    fastest = min(seconds, key=seconds.get)
    assert answer.ranking.devices_text == f"{fastest} device{'s' * (fastest > 1)}"
    assert bool(answer.ranking.device_certainty) is (len(seconds) > 1)
    assert list(answer.details) == expected


def test_what_lint_finds_is_stated_once(tmp_path):
    failed = [record(status="failed", reason="error", text="it broke")]
    text = "\n".join(summarize(read_study(tmp_path, failed), tmp_path))
    assert text.count("nothing measured (1)") == 1 and "1 case failed" in text


def test_totals_and_the_path_of_the_report_have_two_lines_if_one_is_too_long(tmp_path):
    folder, output = made_up.write(tmp_path / ("long " * 20), [record()]), io.StringIO()
    report.write_and_print(folder, Console(file=output, width=80))
    assert output.getvalue().splitlines()[-2:] == [
        "1 ok, 0 skipped, 0 failed", f"report: {folder / 'report' / 'index.html'}"
    ]  # fmt: skip
