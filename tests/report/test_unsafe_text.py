"""What no terminal and no file may get of a record: signs that steer, and halves of characters that nothing can write."""

import re
import warnings
import xml.etree.ElementTree as ET

import pandas
import pytest

from scaling.analysis import findings
from scaling.core import formatting
from scaling.report import export, figures, proposal, write_report
from scaling.report.figures import files
from scaling.report.labels import clean_text
from tests.support import made_up

pytestmark = pytest.mark.thin(8, "process")

STEERING = "\x00\x1b[31mred\x07\x9b2J\u2028"
HALF = "\ud800half\uffff"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\ud800-\udfff\uffff]")
ENDINGS = (".html", ".md", ".tex", ".svg", ".txt")


@pytest.fixture
def folder(tmp_path, make_record):
    """A study whose every name and text holds such signs, a tab alone among them."""
    around = {"device_kind": STEERING, "hosts": [HALF], STEERING + HALF: HALF}
    names = {"workload": STEERING + HALF, "target": "\t", "formulation": HALF}
    made = [
        make_record(**names, sizes={"\t": p}, mode=mode, devices=d, points=64, environment=around,
                    seconds=[p**power / d + i * 1e-6 for i in range(9)])
        for p in (2, 4, 8) for d in (1, 2) for mode, power in (("jacfwd", 2), ("jacrev", 1.2))
    ]  # fmt: skip
    made += [make_record("failed", **names, mode="linearize", reason="error", text=STEERING + HALF)]
    return made_up.write(tmp_path / "made", made, STEERING + HALF)


def test_every_sign_that_steers_is_a_space_and_half_a_character_a_mark():
    assert clean_text("a\x1b[1m\tb\r\nc\x85") == "a [1m b \nc "
    assert clean_text("\ud800x\uffff") == "\ufffdx\ufffd"
    assert clean_text("µ é 日本 🎉 שלום") == "µ é 日本 🎉 שלום"


def test_no_file_of_a_report_a_proposal_or_an_export_to_be_read_holds_such_signs(folder):
    write_report.write_report(folder)
    proposal.write_proposal(folder, findings.read(folder))
    export.write_exports(folder, ["extrap", "svg"])
    written = [path for path in folder.rglob("*") if path.suffix in ENDINGS]
    assert {path.suffix for path in written} == set(ENDINGS)
    assert not [path.name for path in written if CONTROL.search(path.read_bytes().decode())]
    assert "red" in (folder / "report" / "index.html").read_text()
    for path in folder.rglob("*.svg"):
        ET.parse(path)


def test_half_a_character_reaches_tables_for_programs_as_its_number(folder):
    export.write_exports(folder, ["csv", "parquet"])
    plain, typed = (
        getattr(pandas, f"read_{name}")(folder / "export" / f"records.{name}") for name in ("csv", "parquet")
    )
    assert list(typed["text"].dropna()) == [STEERING + r"\ud800half" + "\uffff"]
    assert r"\ud800half" in plain["text"].dropna().iloc[0] and len(plain) == len(typed) == 13


@pytest.mark.parametrize("verb", ["report", "lint"])
def test_no_record_steers_the_terminal(folder, scaling_command, verb):
    done = scaling_command([verb, str(folder)])
    assert "Traceback" not in done.stderr and "red" in done.stdout and not CONTROL.search(done.stdout)


def test_a_name_in_signs_that_the_font_has_not_is_drawn_without_complaint(tmp_path, make_record):
    made = [make_record(workload="日本", devices=d, seconds=[1.0 / d] * 9) for d in (1, 2)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (drawing, *_) = figures.make_figures(findings.read(made_up.write(tmp_path / "made", made)))
    assert "日本" in drawing.panels[0].title[0]
    files.write_figures([drawing], findings.read(tmp_path), tmp_path, ["png"])


@pytest.mark.parametrize("value, low, high, told", [
    (1.72, 0.59, 37.2, "not determined (0.59 to 37.2)"), (1.0, 0.4, 2.4, "not determined (0.40 to 2.40)"),
    (30.0, 2.0, 40.0, "not determined (2.00 to 40.0)"), (1.72, 1.7, 1.8, "1.72x (1.70 to 1.80)"),
    (1.1, 0.6, 2.4, "1.10x (0.60 to 2.40)"), (6.0, 3.0, 12.0, "6.00x (3.00 to 12.0)"), (1.72, None, None, "1.72x"),
])  # fmt: skip
def test_a_ratio_whose_interval_says_nothing_is_not_determined(value, low, high, told):
    assert formatting.format_ratio(value, low, high) == told
    assert formatting.format_seconds("b", value, low, high) == (
        f"the ratio to b is {told}" if "not" in told else f"b takes {told} as long"
    )


@pytest.mark.parametrize("value, low, high, told", [
    (2.91, -2.65, 8.48, "not determined (-2.65 to 8.48)"), (1.0, 0.4, 1.41, "not determined (0.4 to 1.41)"),
    (1.02, 0.98, 1.05, "1.02 (0.98 to 1.05)"), (-0.5, -0.9, 0.0, "-0.5 (-0.9 to 0)"), (2.0, None, None, "2"),
])  # fmt: skip
def test_an_exponent_whose_interval_says_nothing_is_not_determined(value, low, high, told):
    assert formatting.format_exponent(value, low, high) == told


def test_a_part_of_a_law_that_may_be_anything_is_not_determined():
    assert (
        formatting.format_share(0.3, 0.0, 1.0) == "not determined (0 to 1)"
        and formatting.format_share(0.1, 0.05, 0.2) == "0.1 (0.05 to 0.2)"
    )
