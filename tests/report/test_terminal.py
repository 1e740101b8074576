"""Tests of the report in a terminal: the answer and the curves as tables whose numbers are never broken."""

import io
import re

import numpy as np
import pytest
from rich.console import Console

from scaling.analysis import findings
from scaling.analysis.curves import curves_of_largest_problems
from scaling.analysis.estimate import format_ratio
from scaling.core.formatting import format_duration
from scaling.core.record import to_line
from scaling.report import tables, terminal
from tests.support import made_up, reports


@pytest.fixture(scope="module")
def large_study(tmp_path_factory):
    """Return the findings of a made-up study of four families, strong and weak."""
    return findings.read(made_up.write(tmp_path_factory.mktemp("many"), made_up.study(600)))


@pytest.fixture
def small_study(tmp_path, make_record):
    """Return the findings of two modes on one, two and four devices, one of them equally fast on all."""
    records = [
        make_record(mode=mode, devices=d, seconds=[s * t for s in (0.99, 1, 1, 1, 1, 1, 1.01)])
        for mode, times in (("jacfwd", (8e-3, 4e-3, 2e-3)), ("jacrev", (9e-3, 9e-3, 9e-3)))
        for d, t in zip((1, 2, 4), times, strict=True)
    ]
    return findings.read(made_up.write(tmp_path, records, scaling=["strong"]))


def print_to_text(study, width=80, encoding="utf-8", **options):
    """Return the report as a console of this width and encoding receives it."""
    buffer = io.BytesIO()
    file = io.TextIOWrapper(buffer, encoding=encoding)
    terminal.print_report(terminal.terminal_report(study), Console(file=file, width=width, **options))
    file.flush()
    return buffer.getvalue().decode(encoding)


def test_answer_and_curves_are_shown(small_study):
    text = print_to_text(small_study, 140)
    assert "runner-up" in text and "certainty" in text
    assert re.search(
        r"│ jacfwd \(vmap\), shard_map, points split +│ \S+ ms +│ \S+ ms, 2.00x │ \S+ ms, 4.00x │", text
    )
    assert re.search(
        r"│ jacrev \(vmap\), shard_map, points split +│ \S+ ms +│ \S+ ms, 1.00x │ \S+ ms, 1.00x │", text
    )


def test_curve_table_has_times_and_speedups_and_the_fastest_curve_first(large_study):
    for curves in curves_of_largest_problems(large_study.curves):
        table = tables.curve_table(large_study, curves)
        assert table.columns[0] == "on devices" and len(table.rows) <= 6
        most = max(point.devices for curve in curves for point in curve.points)
        last = min(
            (point for curve in curves for point in curve.points if point.devices == most),
            key=lambda point: point.seconds,
        )
        assert table.rows[0][table.columns.index(str(most))] == (
            f"{format_duration(last.seconds)}, {format_ratio(last.speedup.value)}"
        )


def test_totals_count_the_cases_without_a_record_as_the_page_does(tmp_path, make_record):
    records = [make_record(points=points) for points in range(1, 1003)]
    folder = made_up.write(tmp_path, records)
    (folder / "records.jsonl").write_text("".join(to_line(each) + "\n" for each in records[:-2]))
    totals = terminal.describe_totals(findings.read(folder))
    assert totals == "1,000 ok, 0 skipped, 0 failed, 2 missing"
    page = reports.write_report(folder).read_text()
    assert ">1,000 ok</li>" in page and ">2 missing</a>" in page


def test_programs_that_differ_in_the_compilation_cache_have_different_rows(tmp_path, make_record):
    records = [
        make_record(devices=d, cache=cache, seconds=[4e-3 / d] * 7)
        for d in (1, 2)
        for cache in (None, "cold", "warm")
    ]
    study = findings.read(made_up.write(tmp_path, records, scaling=["strong"]))
    names = {row[0] for row in tables.curve_table(study, study.curves).rows}
    program = "jacfwd (vmap), shard_map, points split"
    assert names == {program, f"{program}, cold cache", f"{program}, warm cache"}


@pytest.mark.parametrize("width", [40, 80, 100, 140])
@pytest.mark.parametrize("name", ["small_study", "large_study"])
def test_numbers_in_tables_are_never_broken_and_lines_fit_the_width(request, name, width):
    study = request.getfixturevalue(name)
    text = print_to_text(study, width, force_terminal=True, color_system=None)
    lines = text.replace("\N{NO-BREAK SPACE}", " ").splitlines()
    assert max(map(len, lines)) <= width
    for row in tables.answer_table(study).rows:
        assert any(row[2] in line for line in lines), row


@pytest.mark.parametrize("width", [40, 50, 60, 80])
def test_a_long_header_does_not_clip_the_cells_of_other_columns(width):
    columns, row = (
        ("a very long header of a column", "another long header", "n"),
        ("1.00 s", "12345.678 µs", "17"),
    )
    file = io.StringIO()
    terminal.print_table(tables.Table("a", "title", "", columns, [row]), Console(file=file, width=width))
    text = " ".join(file.getvalue().replace("\N{NO-BREAK SPACE}", " ").split())
    assert all(cell in text for cell in row), text


def test_ascii_terminal_gets_only_ascii_text(small_study):
    assert "?" not in print_to_text(small_study, encoding="ascii")
    assert "ms" in print_to_text(small_study, encoding="ascii")


def test_pipe_gets_no_escape_sequences(small_study):
    assert "\x1b" not in print_to_text(small_study)


def test_rejected_series_is_not_called_weak_scaling(tmp_path):
    generator = np.random.default_rng(0)
    records = [
        made_up.record(generator, made_up.case_of("rbf", "jacfwd", 1, d, weak=True), flops=1e6 * d)
        for d in (1, 2, 4)
    ]
    study = findings.read(made_up.write(tmp_path, records, scaling=["weak"]))
    text = print_to_text(study)
    assert "Not weak scaling: rbf" in text and "scaled speed-up" not in text


def test_study_without_measurements_shows_no_table(tmp_path, make_record):
    study = findings.read(made_up.write(tmp_path, [make_record("failed", reason="error", text="it broke")]))
    assert "│" not in print_to_text(study) and "Nothing has been measured" in print_to_text(study)


def test_text_of_a_record_cannot_control_the_terminal(tmp_path, make_record):
    records = [
        make_record(workload="[red]x[/] \x1b[2J\x07", formulation="[bold]\n", devices=d) for d in (1, 2)
    ]
    text = print_to_text(findings.read(made_up.write(tmp_path, records, scaling=["strong"])), width=140)
    assert "\x1b" not in text and "\x07" not in text and "[red]x[/]" in text and "[bold]" in text


def test_speedup_from_two_devices_is_relative_to_two(tmp_path, make_record):
    records = [make_record(devices=d, seconds=[4e-3 / d] * 7) for d in (2, 4, 8)]
    text = print_to_text(findings.read(made_up.write(tmp_path, records, scaling=["strong"])), width=140)
    assert "relative to 2 devices" in text and "4.00x" in text
