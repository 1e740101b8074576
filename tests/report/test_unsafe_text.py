"""Tests that control characters and lone surrogates in records reach no terminal and no text file."""

import re
import warnings
import xml.etree.ElementTree as ET

import pandas
import pytest
from rich.console import Console

from scaling.analysis import findings
from scaling.cli import output
from scaling.report import export, proposal
from scaling.report.figures import charts, files
from scaling.report.text import clean_text
from tests.support import made_up, reports

pytestmark = pytest.mark.thin(8, "process")

CONTROLS = "\x00\x1b[31mred\x07\x9b2J\u2028"
SURROGATE = "\ud800half\uffff"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\ud800-\udfff\uffff]")
ENDINGS = (".html", ".md", ".svg", ".txt")


@pytest.fixture
def folder(tmp_path, make_record):
    """Return a study whose names and texts all contain control characters, lone surrogates or a tab."""
    environment = {"device_kind": CONTROLS, "hosts": [SURROGATE], CONTROLS + SURROGATE: SURROGATE}
    names = {"workload": CONTROLS + SURROGATE, "target": "\t", "formulation": SURROGATE}
    records = [
        make_record(**names, sizes={"\t": p}, mode=mode, devices=d, points=64, environment=environment,
                    seconds=[p**power / d + i * 1e-6 for i in range(9)])
        for p in (2, 4, 8) for d in (1, 2) for mode, power in (("jacfwd", 2), ("jacrev", 1.2))
    ]  # fmt: skip
    records += [make_record("failed", **names, mode="linearize", reason="error", text=CONTROLS + SURROGATE)]
    return made_up.write(tmp_path / "made", records, CONTROLS + SURROGATE)


def test_control_characters_become_spaces_and_lone_surrogates_replacement_characters():
    assert clean_text("a\x1b[1m\tb\r\nc\x85") == "a [1m b \nc "
    assert clean_text("\ud800x\uffff") == "\ufffdx\ufffd"
    assert clean_text("\u202e1.5 ms\u2066") == " 1.5 ms "  # otherwise shown as "sm 5.1"
    assert clean_text("µ é 日本 🎉 שלום") == "µ é 日本 🎉 שלום"


def test_reports_proposals_and_text_exports_contain_no_control_characters(folder):
    reports.write_report(folder)
    proposal.write_proposal(folder, findings.read(folder))
    export.write_exports(folder, ["extrap", "svg"])
    paths = [path for path in folder.rglob("*") if path.suffix in ENDINGS]
    assert {path.suffix for path in paths} == set(ENDINGS)
    assert not [path.name for path in paths if CONTROL.search(path.read_bytes().decode())]
    assert "red" in (folder / "report" / "index.html").read_text()
    for path in folder.rglob("*.svg"):
        ET.parse(path)


def test_lone_surrogate_is_escaped_in_csv_and_parquet(folder):
    export.write_exports(folder, ["csv", "parquet"])
    csv, parquet = (
        getattr(pandas, f"read_{name}")(folder / "export" / f"records.{name}") for name in ("csv", "parquet")
    )
    assert list(parquet["text"].dropna()) == [CONTROLS + r"\ud800half" + "\uffff"]
    assert r"\ud800half" in csv["text"].dropna().iloc[0] and len(csv) == len(parquet) == 13


def test_lone_carriage_return_does_not_split_a_row_of_a_csv_file(tmp_path, make_record):
    records = [make_record("failed", reason="error", text="10 %\r20 %"), make_record(points=8)]
    folder = made_up.write(tmp_path / "made", records)
    export.write_exports(folder, ["csv"])
    table = pandas.read_csv(folder / "export" / "records.csv")
    assert list(table["text"].dropna()) == [r"10 %\r20 %"] and len(table) == 2


@pytest.mark.parametrize("verb", ["report", "lint", "status", "logs"])
def test_records_cannot_control_the_terminal(folder, scaling_command, verb):
    result = scaling_command([verb, str(folder)])
    assert "Traceback" not in result.stderr and "red" in result.stdout
    assert not CONTROL.search(result.stdout.replace("\ufffd", ""))


def test_progress_of_a_run_shows_control_characters_as_question_marks(capsys):
    with output.show_run(Console(width=140), {}, 1) as (listen, _):
        text = "\x1b]0;PWNED\x07\n\x1b[31mred\u202e[bold]"
        listen(
            {"event": "end", "key": "k", "status": "failed", "reason": "error", "text": text, "seconds": []}
        )
    assert "error: ?]0;PWNED? ?[31mred?[bold]\n" in capsys.readouterr().out


def test_name_without_glyphs_in_the_font_is_drawn_without_warnings(tmp_path, make_record):
    records = [make_record(workload="日本", devices=d, seconds=[1.0 / d] * 9) for d in (1, 2)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (drawing, *_) = charts.make_figures(findings.read(made_up.write(tmp_path / "made", records)))
    assert "日本" in drawing.panels[0].title[0]
    files.encode_figures([drawing], findings.read(tmp_path), "png")
