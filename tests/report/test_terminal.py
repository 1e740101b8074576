"""What a terminal shows: true curves, within a screen, without colours, Unicode or a browser."""

import io
import re

import numpy as np
import pytest
from rich.console import Console
from rich.text import Text

from scaling.analysis import answer, findings
from scaling.report import terminal, terminal_plot
from tests.support import made_up

BRAILLE = re.compile("[\u2800-\u28ff]")


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A made-up study of four families, strong and weak."""
    return findings.read(made_up.write(tmp_path_factory.mktemp("many"), made_up.study(600)))


@pytest.fixture
def few(tmp_path, make_record):
    """Two ways on one, two and four devices, one of them as fast on all."""
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
    terminal.print_table(found, Console(file=file, width=width, **options))
    file.flush()
    return raw.getvalue().decode(encoding)


def lines_of(found, width=80):
    return [line.plain for line in terminal.draw_curves(found, width)]


def test_the_table_and_the_curves_are_shown(few):
    text = printed(few, 100)
    assert "times as long" in text and "strong scaling: linear" in text
    assert "a 4.00x on 4: jacfwd (vmap)" in text and "b 1.00x on 4: jacrev (vmap)" in text


def test_letters_stand_where_the_numbers_are(few):
    plot_of = [line.split("│")[1] for line in lines_of(few) if "│" in line]
    names = {
        line.split("│")[0].strip(): at
        for at, line in enumerate(line for line in lines_of(few) if "│" in line)
    }
    middle = len(plot_of[0]) // 2
    assert plot_of[names["4x"]].rstrip().endswith("a") and plot_of[names["1x"]].rstrip().endswith("b")
    assert plot_of[names["2x"]].index("a") in (middle - 1, middle, middle + 1)
    assert plot_of[names["1x"]].startswith("*")  # both, on one device
    assert names["4x"] < names["2x"] < names["1x"]


def test_the_devices_stand_under_their_points(few):
    lines = lines_of(few)
    axis = next(line for line in lines if re.fullmatch(r"\s+1\s+2\s+4", line))
    row = next(line for line in lines if line.startswith("2x"))
    assert abs(axis.index("2") - row.index("a")) <= 1 and len(axis) == max(
        len(line.rstrip()) for line in lines if "│" in line
    )


@pytest.mark.parametrize("width", [80, 100, 120, 140, 200])
def test_the_curves_of_any_study_fit_a_screen(many, width):
    lines = lines_of(many, min(width, 140))
    assert len(lines) <= 24 and max(map(len, lines)) <= min(width, 140)
    assert sum("strong scaling" in line or "weak scaling" in line for line in lines) >= 2


def test_what_has_no_room_is_counted(many):
    assert lines_of(many, 80)[-1].endswith("In the report: 2 more plots and all intervals.")


def test_a_terminal_that_knows_ascii_gets_ascii(many, few):
    for found in (many, few):
        text = printed(found, encoding="ascii")
        assert text.isascii() and re.search(r"^ ?\d+x \|.*\.", text, re.MULTILINE)


def test_a_pipe_gets_no_escape_sequences_and_a_terminal_colours_unless_it_is_told_not_to(few, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b" not in printed(few)
    assert "\x1b[34m" in printed(few, force_terminal=True, color_system="standard")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[3\dm", printed(few, force_terminal=True, color_system="standard"))


def test_lines_can_be_told_apart_without_colour(few):
    text = printed(few)
    assert BRAILLE.search(text) and {"a", "b"} <= {
        line.rstrip()[-1] for line in text.splitlines() if "│" in line and "x │" in line
    }


def test_time_over_size_is_drawn_where_there_is_one_device_count(tmp_path):
    draw = np.random.default_rng(0)
    made = [
        made_up.record(draw, made_up.case_of("rbf", mode, at))
        for mode in ("jacfwd", "jacrev")
        for at in range(5)
    ]
    lines = lines_of(findings.read(made_up.write(tmp_path, made, scaling=["strong"])))
    assert lines[0].startswith("time over m: rbf") and "1 device" in lines[1] and "ideal" not in lines[-1]
    assert re.search(r"256 +1024 +4096 +16384 +65536", "\n".join(lines))
    assert [line for line in lines if re.match(r"a \S+ m?s: jacrev", line)]


def test_a_refused_series_is_not_called_weak(tmp_path):
    draw = np.random.default_rng(0)
    made = [
        made_up.record(draw, made_up.case_of("rbf", "jacfwd", 1, d, weak=True), flops=1e6 * d)
        for d in (1, 2, 4)
    ]
    assert "weak" not in printed(findings.read(made_up.write(tmp_path, made))).lower()


def test_nothing_measured_draws_nothing(tmp_path, make_record):
    found = findings.read(made_up.write(tmp_path, [make_record("failed", reason="error", text="it broke")]))
    assert printed(found) == "" and terminal.draw_curves(found, 80) == []


def test_text_of_a_record_steers_no_terminal(tmp_path, make_record):
    made = [make_record(workload="[red]x[/] \x1b[2J\x07", formulation="[bold]\n", devices=d) for d in (1, 2)]
    text = printed(findings.read(made_up.write(tmp_path, made, scaling=["strong"])), width=140)
    assert "\x1b" not in text and "\x07" not in text and "[red]x[/]" in text and "[bold]" in text


def test_equal_points_and_a_slowdown_can_be_drawn():
    series = [
        terminal_plot.PlotSeries([(1, 1), (2, 0.5)], "a"),
        terminal_plot.PlotSeries([(1, 1), (2, 1)], "b"),
    ]
    rows = terminal_plot.draw_plot(series, [(1, "1"), (2, "2")], [(1, "1x")], 20, 8)
    assert all(isinstance(row, Text) and row.cell_len <= 20 for row in rows) and len(rows) == 8
    assert "a" in rows[5].plain and "b" in rows[0].plain
    flat = terminal_plot.draw_plot([terminal_plot.PlotSeries([(4, 2)], "a")], [(4, "4")], [(2, "2x")], 20, 6)
    assert sum("a" in row.plain for row in flat) == 1


@pytest.mark.parametrize("width", [40, 80, 100, 140])
def test_numbers_in_the_table_are_never_broken(few, many, width):
    for found in (few, many):
        text = " ".join(" ".join(printed(found, width).split("\u2502")).split())
        for row in answer.summarize(found)[0]:
            assert row[3] in text and re.search(r"\d+\.?\d*x", row[5])[0] in text


def test_a_legend_that_is_cut_says_so(few):
    lines = terminal.draw_curves(few, 24)
    assert (
        any(line.plain.endswith("…") for line in lines) and max(len(line.plain) for line in lines[:-1]) <= 24
    )


def test_speedup_from_two_devices_is_drawn_relative_to_two(tmp_path, make_record):
    made = [make_record(devices=d, seconds=[4e-3 / d] * 7) for d in (2, 4, 8)]
    lines = lines_of(findings.read(made_up.write(tmp_path, made, scaling=["strong"])))
    assert any("relative to 2 devices" in line for line in lines) and any(
        "4.00x on 8" in line for line in lines
    )
    assert any(line.startswith("4x") for line in lines) and not any(line.startswith("8x") for line in lines)
