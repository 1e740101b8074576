"""What `scaling run` ends with: the answer, the warnings that gate it and what to do next, on one screen of 80 columns."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from scaling.analysis import findings
from scaling.cli import report
from scaling.report import summary
from tests.support import made_up
from tests.support.records import STEADY, processes, record


def read(folder, records):
    return findings.read(made_up.write(folder / "made", records))


def told(found, folder, **options):
    return summary.summary_lines(found, folder / "made", **options)


@pytest.mark.parametrize("many", [0, 3, 40, 600])
def test_the_summary_of_any_study_fits_a_screen(tmp_path, many):
    broken = record(status="failed", reason="error", text="it broke " * 200)
    records = made_up.study(many) if many else [broken]
    lines = told(read(tmp_path, records), tmp_path)
    assert 0 < len(lines) <= 21 and all(len(line) <= 80 or str(tmp_path) in line for line in lines)


def test_a_study_of_many_workloads_counts_those_that_have_no_room(tmp_path):
    records = [
        each
        for n in range(30)
        for each in processes(("jacfwd", 1.0), ("jacrev", 2.0), workload=f"workload{n}")
    ]
    lines = told(read(tmp_path, records), tmp_path)
    assert len(lines) <= 21 and any(re.match(r"\d+ more: scaling report ", line) for line in lines)


def test_the_answer_comes_first_then_what_gates_it_then_what_to_do(tmp_path):
    lines = told(read(tmp_path, [record(seconds=2.0), record(seconds=3.0, mode="jacrev")]), tmp_path)
    text = " ".join(" ".join(lines).split())
    assert "jacfwd (vmap) is fastest 2.00 s (2.00 to 2.00) on 1 device; jacrev (vmap) takes 1.50x" in text
    assert "not sure: one process." in text
    heads = [
        " ".join(line.split()[:2]) for line in lines if line.startswith(("error: ", "warning: ", "scaling "))
    ]
    assert heads[0].startswith(("error", "warning")) and heads[-2:] == ["scaling report", "scaling lint"]
    assert not lines[0].startswith(("error", "warning", "scaling"))


def test_no_mode_is_called_the_fastest_under_the_time_of_an_empty_call(tmp_path):
    rows = processes(("jacfwd", 6e-6), ("jacrev", 1.0), floor_seconds=9e-6)
    text = " ".join(" ".join(told(read(tmp_path, rows), tmp_path)).split())
    assert "not distinguishable from an empty call (9.00 µs)" in text and "is fastest" not in text


@pytest.mark.parametrize("width", [20, 33, 40, 57, 80])
def test_no_line_is_broken_within_a_number_its_unit_or_its_interval(width):
    text = "it takes 87.2 µs (87.0 to 87.4) on 2 devices and 399 MB of 8.10 GB, 40 % of 1,234,567 seeds " * 5
    lines = summary.wrap_text(text, width)
    assert " ".join(lines) == text.strip() and max(map(len, lines)) <= max(
        width, len("87.2 µs (87.0 to 87.4)")
    )
    for whole in ("87.2 µs (87.0 to 87.4)", "2 devices", "399 MB", "8.10 GB", "40 %"):
        assert sum(line.count(whole) for line in lines) == 5


def test_what_has_no_room_in_its_line_is_cut_with_a_mark(tmp_path):
    lines = told(read(tmp_path, [record(seconds=[1.0] * STEADY, floor_seconds=0.5)]), tmp_path, width=60)
    cut = [line for line in lines if line.startswith(("error:", "warning:"))]
    assert cut and all(len(line) <= 60 for line in cut) and any(line.endswith(" ...") for line in cut)


@pytest.mark.parametrize("name", ["made", "a folder " + "of a long name " * 4])
def test_a_run_ends_within_a_screen_of_80_columns_wherever_it_is_printed(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    made_up.write(
        Path(name), [*made_up.study(60), *processes(("jacfwd", 1.0), ("jacrev", 2.0), digest="another")]
    )
    told = io.StringIO()
    report.conclude(Path(name), Console(file=told, width=140), {"made up"}, brief=True)
    lines = told.getvalue().splitlines()
    assert len(lines) <= 25 and all(len(line) <= 80 or name in line for line in lines)
    assert re.search(r"report: .*index\.html$", lines[-1]) and any(
        "other environments" in line for line in lines
    )
