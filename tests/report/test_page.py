"""What the page says and how it is made, whatever stands in the records; the browser's part is in test_browser.py."""

import csv
import html
import io
import re
from pathlib import Path

import numpy as np
import pytest

from scaling.analysis import findings
from scaling.report import page, page_tables, write_report
from tests.support import made_up
from tests.support.records import record, weak


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A study of everything that may happen, with HTML wherever text comes from outside."""
    draw = np.random.default_rng(1)
    cases = [
        made_up.case_of(w, m, s, d)
        for w in ("rbf", "linear")
        for m in ("jacfwd", "jacrev")
        for s in (0, 2)
        for d in (1, 2)
    ]
    records = [made_up.record(draw, case, replicate) for case in cases for replicate in range(2)]
    bad = [made_up.case_of("rbf", "linearize", s, 2) for s in range(5)]
    records += [made_up.failure(case, "error", made_up.NASTY) for case in bad]
    records += [
        made_up.failure(
            made_up.case_of("rbf", "vmap_grad", 0, 1), "not_defined", "nothing to tell", "skipped"
        )
    ]
    odd = record(2, 4.0, workload="<b>mine</b>", target=made_up.NASTY, variant="'\"")
    odd.environment.update(device_kind="<i>a device</i>", xla_flags=made_up.NASTY)
    return made_up.write(tmp_path_factory.mktemp("page") / "made", [*records, odd], name="<u>study</u>")


@pytest.fixture(scope="module")
def text(folder):
    return write_report.write_report(folder).read_text()


def outside_script(text):
    return re.sub(r"<(script|style)>.*?</\1>", "", text, flags=re.DOTALL)


def without_vega(text):
    """The page without the library that draws the figures; a policy keeps that from asking for anything."""
    library = (Path(page.__file__).parent / "vega.min.js").read_text()
    assert library in text
    return text.replace(library, "")


def test_there_are_our_scripts_alone_and_no_element_from_a_record(text):
    assert text.count("<script") == text.count("</script") == 4
    text = without_vega(text)
    for element in ("<b>mine", "<i>a device", "<u>study", "<img", "onerror=alert(1)>"):
        assert element not in text
    shown = html.unescape(re.sub(r"<[^>]*>", "", outside_script(text)))
    assert (
        made_up.NASTY in shown
        and "<b>mine</b>" in shown
        and "<i>a device</i>" in shown
        and "<u>study</u>" in shown
    )


def test_the_page_may_ask_nothing_of_anybody(text):
    text = without_vega(text)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)[1]
    assert policy.startswith("default-src 'none'")
    bare = re.sub(
        r"&\w+;|http-equiv|nowhere\.invalid", "", text.replace(html.escape("http://nowhere.invalid"), "")
    )
    assert not re.search(r'(?:src|href)="(?!#|data:,|[\w.-]+\.(?:md|csv|svg|png|pdf)")', bare)
    assert not re.search(
        r"@import|url\((?!#)|https?://", outside_script(bare).replace("http://", "", text.count("http://"))
    )


def test_every_link_in_the_page_leads_somewhere(folder, text):
    anchors = set(re.findall(r'\bid="([^"]+)"', text))
    assert set(re.findall(r'<a href="#([^"]+)"', text)) <= anchors
    for name in re.findall(r'<a href="([^#"][^"]*)"', text):
        assert (folder / "report" / name).is_file()


def test_a_series_that_is_refused_is_nowhere_called_weak(tmp_path):
    found = made_up.write(
        tmp_path / "made", weak(((1e6, 1e3), (2e6, 1e3), (4e6, 1e3))), scaling=["strong", "weak"]
    )
    text = outside_script(write_report.write_report(found).read_text())
    assert "Not weak scaling" in text and not (found / "report" / "scaling-weak.svg").exists()
    assert not re.findall(r"weak", re.sub(r"Not weak scaling|weak scaling that is not weak", "", text))
    rows = csv.DictReader(io.StringIO((found / "report" / "table.csv").read_text()))
    assert not any(value for row in rows for name, value in row.items() if "weak" in name or "weak" in value)
    assert "weak" in outside_script(
        write_report.write_report(made_up.write(tmp_path / "held", weak(), scaling=["weak"])).read_text()
    )


def test_the_laws_and_the_growth_have_their_numbers_in_a_table(tmp_path):
    draw = np.random.default_rng(2)
    cases = [made_up.case_of("rbf", "linearize", s, d) for s in range(4) for d in made_up.DEVICES]
    records = [made_up.record(draw, case, replicate) for case in cases for replicate in range(3)]
    found = findings.read(made_up.write(tmp_path / "made", records))
    of = {
        table.anchor: [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        for table in page_tables.folded_tables(found)
    }
    largest = [row for row in of["laws"] if "m=16384" in row["curve"] and row["law"].startswith("Amdahl")]
    assert float(largest[0]["serial"].split()[0]) == pytest.approx(0.12, abs=0.02)
    assert float(of["growth"][0]["exponent"].split()[0]) == pytest.approx(1.25, abs=0.1)


def test_where_a_program_was_also_run_without_compiling_it_is_said_when_compiling_pays(tmp_path):
    stages = [
        record(seconds=0.5, compile_seconds=9.5, first_seconds=0.5),
        record(seconds=2.0, jit=False, first_seconds=2.5),
    ]
    found = findings.read(made_up.write(tmp_path / "made", stages))
    (table,) = [table for table in page_tables.folded_tables(found) if table.anchor == "measured"]
    # 10 s and 0.5 s for each later call, against 2.5 s and 2 s for each: level after five later calls.
    assert sorted(row[-1] for row in table.rows) == ["", "compiling pays after 6 calls"]
