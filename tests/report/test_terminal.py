"""What a terminal shows: the answer and the curves as tables whose numbers are never broken."""

import io
import re

import numpy as np
import pytest
from rich.console import Console

from scaling.analysis import findings
from scaling.report import answer_tables, terminal
from scaling.report.curve_selection import derivative_curves
from tests.support import made_up


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A made-up study of four families, strong and weak."""
    return findings.read(made_up.write(tmp_path_factory.mktemp("many"), made_up.study(600)))


@pytest.fixture
def few(tmp_path, make_record):
    """Two modes on one, two and four devices, one of them as fast on all."""
    made = [
        make_record(mode=mode, devices=d, seconds=[s * t for s in (0.99, 1, 1, 1, 1, 1, 1.01)])
        for mode, times in (("jacfwd", (8e-3, 4e-3, 2e-3)), ("jacrev", (9e-3, 9e-3, 9e-3)))
        for d, t in zip((1, 2, 4), times, strict=True)
    ]
    return findings.read(made_up.write(tmp_path, made, scaling=["strong"]))


def printed(found, width=80, encoding="utf-8", **options):
    """What a console of this kind gets, as text."""
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    terminal.print_report(found, Console(file=file, width=width, **options))
    file.flush()
    return raw.getvalue().decode(encoding)


def test_the_answer_and_the_curves_are_shown(few):
    text = printed(few, 140)
    assert "runner-up" in text and "certainty" in text
    assert re.search(r"│ jacfwd \(vmap\), shard_map, points split +│ 1.00x │ 2.00x │ 4.00x │", text)
    assert re.search(r"│ jacrev \(vmap\), shard_map, points split +│ 1.00x │ 1.00x │ 1.00x │", text)


def test_the_table_of_curves_has_the_speedups_of_the_largest_problem(many):
    for curves in derivative_curves(many.curves):
        table = terminal.curve_table(many, curves)
        assert table.columns[0] == "on devices" and len(table.rows) <= 6
        last = curves[0].points[-1]
        assert table.rows[0][table.columns.index(str(last.devices))].startswith(f"{last.speedup:.1f}"[:2])


@pytest.mark.parametrize("width", [40, 80, 100, 140])
@pytest.mark.parametrize("name", ["few", "many"])
def test_numbers_in_the_tables_are_never_broken_and_no_line_is_too_long(request, name, width):
    found = request.getfixturevalue(name)
    text = printed(found, width, force_terminal=True, color_system=None)
    lines = text.replace("\N{NO-BREAK SPACE}", " ").splitlines()
    assert max(map(len, lines)) <= width
    for row in answer_tables.answer_table(found).rows:
        assert any(row[2] in line for line in lines), row


def test_a_terminal_that_knows_ascii_gets_no_other_letters_in_its_cells(few):
    assert "?" not in printed(few, encoding="ascii") and "ms" in printed(few, encoding="ascii")


def test_a_pipe_gets_no_escape_sequences(few):
    assert "\x1b" not in printed(few)


def test_a_refused_series_is_not_called_weak(tmp_path):
    draw = np.random.default_rng(0)
    made = [
        made_up.record(draw, made_up.case_of("rbf", "jacfwd", 1, d, weak=True), flops=1e6 * d)
        for d in (1, 2, 4)
    ]
    found = findings.read(made_up.write(tmp_path, made, scaling=["weak"]))
    text = printed(found)
    assert "Not weak scaling: rbf" in text and "scaled speed-up" not in text and text.count("weak") == 1


def test_nothing_measured_shows_no_table(tmp_path, make_record):
    found = findings.read(made_up.write(tmp_path, [make_record("failed", reason="error", text="it broke")]))
    assert "│" not in printed(found) and "Nothing has been measured" in printed(found)


def test_text_of_a_record_steers_no_terminal(tmp_path, make_record):
    made = [make_record(workload="[red]x[/] \x1b[2J\x07", formulation="[bold]\n", devices=d) for d in (1, 2)]
    text = printed(findings.read(made_up.write(tmp_path, made, scaling=["strong"])), width=140)
    assert "\x1b" not in text and "\x07" not in text and "[red]x[/]" in text and "[bold]" in text


def test_speedup_from_two_devices_is_relative_to_two(tmp_path, make_record):
    made = [make_record(devices=d, seconds=[4e-3 / d] * 7) for d in (2, 4, 8)]
    text = printed(findings.read(made_up.write(tmp_path, made, scaling=["strong"])), width=140)
    assert "relative to 2 devices" in text and "4.00x" in text
