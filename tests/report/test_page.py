"""What the page says and how it is made, whatever stands in the records; the browser's part is in test_browser.py."""

import csv
import html
import io
import re
from pathlib import Path

import numpy as np
import pytest

from scaling.analysis import findings
from scaling.core.record import STATUSES
from scaling.report import cards, outcomes, page, tables, write_report
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
    assert text.count("<script") == text.count("</script") == 3
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


def test_every_section_is_in_the_contents(text):
    sections = re.findall(r'<(?:section|details class="section(?: figure)?") id="([^"]+)"', text)
    contents = re.findall(r'<a href="#([^"]+)"', re.search(r"<nav.*?</nav>", text, re.DOTALL)[0])
    assert sections == contents and "crossover" in sections and "review" in sections


def test_the_verdict_and_the_counts_stand_before_the_answer(text):
    start = text[: text.index('<ul class="answer">')]
    assert "5 failed" in start and "1 skipped" in start and "reviewed: " in start


def test_each_case_that_did_not_end_well_is_a_cell_that_tells_its_reason(folder):
    grid = outcomes.outcome_grid(findings.read(folder))
    row = next(row for row in grid.rows if row.method.startswith("linearize"))
    assert grid.devices == (1, 2)
    assert row.cells[0] is None and (row.cells[1].status, row.cells[1].text) == ("failed", "5 failed")
    assert row.cells[1].reasons[0].startswith("m=256 points=64: failed, error: </script>")
    assert next(row for row in grid.rows if row.method.startswith("vmap_grad")).cells[0].status == "skipped"


def test_processes_of_one_case_are_one_case_and_the_worst_of_them_counts(tmp_path):
    several = [record(points=p, replicate=r) for p in (12, 24) for r in range(3)]
    several += [record(points=24, replicate=3, status="failed", reason="killed")]
    grid = outcomes.outcome_grid(findings.read(made_up.write(tmp_path / "made", several)))
    assert [(cell.status, cell.text) for cell in grid.rows[0].cells] == [("failed", "1 ok, 1 failed")]
    assert outcomes.outcome_grid(findings.read(made_up.write(tmp_path / "well", several[:-1]))) is None


def test_many_reasons_in_one_cell_are_counted(tmp_path):
    bad = [record(points=12 * p, status="failed", reason="killed") for p in range(1, 9)]
    (row,) = outcomes.outcome_grid(findings.read(made_up.write(tmp_path / "made", bad))).rows
    assert len(row.cells[0].reasons) == 6 and row.cells[0].reasons[-1] == "and 3 more, in the list below"


def test_settings_and_meshes_of_one_way_share_a_row_and_reasons_name_them(tmp_path):
    several = [
        record(4, split="both", mesh=mesh, chunk=chunk)
        for mesh in ("4x1", "2x2")
        for chunk in (None, 2, "auto")
    ]
    bad = record(4, split="both", mesh="1x4", chunk=8, status="skipped", reason="too_large")
    (row,) = outcomes.outcome_grid(findings.read(made_up.write(tmp_path / "made", [*several, bad]))).rows
    assert row.method == "jacfwd (vmap), shard_map, both split" and row.cells[0].text == "6 ok, 1 skipped"
    assert row.cells[0].reasons == ("o=3 p=5 points=12, mesh 1x4, 8 seeds at a time: skipped, too_large",)


def test_every_status_has_a_colour_of_its_own(text):
    for status in STATUSES:
        assert f"td.{status}" in text


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
        for table in tables.page_tables(found)
    }
    largest = [row for row in of["laws"] if "m=16384" in row["curve"] and row["law"] == "Amdahl"]
    assert float(largest[0]["serial"].split()[0]) == pytest.approx(0.12, abs=0.02)
    assert float(largest[0]["Karp-Flatt"].split()[0]) == pytest.approx(0.12, abs=0.02)
    assert float(of["growth"][0]["exponent"].split()[0]) == pytest.approx(1.25, abs=0.1)


def test_memory_and_the_worth_of_a_first_call_stand_beside_each_case(tmp_path):
    of = record(seconds=0.5, peak_bytes=3_000_000, compile_seconds=1.5, first_seconds=0.5)
    found = findings.read(made_up.write(tmp_path / "made", [of]))
    (table,) = [table for table in tables.page_tables(found) if table.anchor == "measured"]
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert (row["memory"], row["first call"], row["in later calls"]) == ("3.00 MB", "2.00 s", "4.00")


def test_where_a_program_was_also_run_without_compiling_it_is_said_when_compiling_pays(tmp_path):
    stages = [
        record(seconds=0.5, compile_seconds=9.5, first_seconds=0.5),
        record(seconds=2.0, jit=False, first_seconds=2.5),
    ]
    found = findings.read(made_up.write(tmp_path / "made", stages))
    (table,) = [table for table in tables.page_tables(found) if table.anchor == "measured"]
    # 10 s and 0.5 s for each later call, against 2.5 s and 2 s for each: level after five later calls.
    assert sorted(row[-1] for row in table.rows) == ["", "compiling pays after 6 calls"]


def test_a_card_says_which_mode_how_many_devices_what_it_costs_and_how_sure(tmp_path):
    times = {("jacfwd", 1): 4.0, ("jacfwd", 2): 2.0, ("jacrev", 1): 9.0, ("jacrev", 2): 5.0}
    records = [
        record(devices, s, mode=mode, replicate=i) for (mode, devices), s in times.items() for i in range(2)
    ]
    (card,) = cards.make_cards(findings.read(made_up.write(tmp_path / "made", records)))
    assert (card.mode, card.where, card.time) == (
        "jacfwd (vmap)",
        "2 devices, shard_map, points split",
        "2.00 s (2.00 to 2.00)",
    )
    assert card.sure and card.verdict == "sure: jacrev (vmap) takes 2.50x (2.50 to 2.50) as long"
    assert card.scaling == "2.00x (2.00 to 2.00) as fast as one device, efficiency 1.00"


def test_a_card_says_why_it_is_not_sure_and_over_what_its_speedup_is(tmp_path):
    times = {("jacfwd", 2): 4.0, ("jacfwd", 4): 2.0, ("jacrev", 4): 5.0}
    records = [record(devices, seconds, mode=mode) for (mode, devices), seconds in times.items()]
    (card,) = cards.make_cards(findings.read(made_up.write(tmp_path / "made", records)))
    assert (
        not card.sure
        and card.verdict == "not sure (one process): jacrev (vmap) takes 2.50x (2.50 to 2.50) as long"
    )
    assert card.scaling == "2.00x (2.00 to 2.00) as fast as 2 devices, efficiency 1.00"


def test_a_card_under_the_time_of_an_empty_call_calls_no_mode_the_fastest(tmp_path):
    records = [
        record(seconds=6e-6, floor_seconds=9e-6),
        record(seconds=1.0, mode="jacrev", floor_seconds=9e-6),
    ]
    (card,) = cards.make_cards(findings.read(made_up.write(tmp_path / "made", records)))
    assert not card.sure and "not distinguishable from an empty call (9.00 µs)" in card.verdict


def test_a_card_of_two_that_are_not_told_apart_is_not_sure(tmp_path):
    wide = [1.3, 1.0, 1.6, 1.1, 1.5, 1.2, 1.4]
    records = [record(seconds=wide), record(seconds=[s + 0.01 for s in wide], mode="jacrev")]
    (card,) = cards.make_cards(findings.read(made_up.write(tmp_path / "made", records)))
    assert not card.sure and card.verdict.startswith("not sure: jacrev (vmap) is not distinguished, 1.01x")


def test_what_is_said_of_a_figure_stands_with_it(tmp_path):
    cases = [
        made_up.case_of("rbf", m, s, d) for m in ("jacfwd", "jacrev") for s in range(5) for d in (1, 2, 4, 8)
    ]
    draw = np.random.default_rng(3)
    records = [made_up.record(draw, case, replicate) for case in cases for replicate in range(3)]
    text = write_report.write_report(
        made_up.write(tmp_path / "made", records, scaling=["strong"])
    ).read_text()
    of = dict(
        re.findall(r'<details class="section figure" id="([^"]+)"[^>]*>(.*?)</details>', text, re.DOTALL)
    )
    assert (
        "is fastest up to m = " in of["crossover"]
        and "to the power of" in of["size"]
        and "Amdahl" in of["scaling-strong"]
    )
