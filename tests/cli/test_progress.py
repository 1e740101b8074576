"""Tests of the live progress of a run on a terminal."""

import io
import re
import sys

import pytest
from rich.console import Console

from scaling.cli import output


@pytest.mark.parametrize(("is_terminal", "terminal"), [(False, "xterm"), (True, "dumb")])
def test_without_a_live_terminal_each_case_has_a_line(is_terminal, terminal, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # Jupyter and many CI services set it
    monkeypatch.setenv("TERM", terminal)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    with output.show_run(output.make_console(), {"k": "a case"}, 1) as (listen, _):
        listen({"event": "end", "key": "k", "status": "ok", "reason": "", "text": "", "seconds": [1.0]})
    assert capsys.readouterr().out == "[1/1] ok      a case  1.00 s\n"


def test_all_counts_of_a_large_run_are_visible_in_80_columns(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")  # rich shows no progress in a dumb terminal
    shown = io.StringIO()
    console = Console(file=shown, width=80, force_terminal=True)
    with output.show_run(console, {"k": "a case"}, 12_345) as (listen, counts):
        counts.update(ok=10_000, skipped=1_000, failed=123)
        listen({"event": "begin", "key": "k"})
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.getvalue())
    assert "10000 ok, 1000 skipped, 123 failed" in text
    assert all(len(line) <= 80 for line in re.split(r"[\r\n]+", text))
