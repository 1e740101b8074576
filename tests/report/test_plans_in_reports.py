"""What a report shows of plans and of scores, and that nothing of them is taken for a measurement."""

import csv
import dataclasses
import html
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest

from scaling.analysis import answer, findings
from scaling.analysis import dataframe as one_table
from scaling.analysis.forecast import plan_answers
from scaling.core.record import Record, to_line
from scaling.core.store import write_json
from scaling.report import answer_tables, export, figures, methods_text, page_tables, write_report
from scaling.report.figures import files, over_devices
from scaling.report.labels import file_stems
from tests.support import made_up
from tests.support.made_up import NASTY, case_of

KIND = "An accelerator"  # as that of what was made up


class Elements(HTMLParser):
    """The names of all elements and attributes of a page."""

    def __init__(self):
        super().__init__()
        self.names, self.attributes = set(), set()

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        self.attributes.update(name for name, _ in attrs)


def around(case, hardware="far", kind=KIND):
    told = {"name": hardware, "digest": "d" * 12, "libxyz": "1.2"}
    return made_up.environment(case, f"plan of {hardware}", device_kind=kind, hardware=told)


def planned_record(case, seconds, by="program", hardware="far", kind=KIND, **fields):
    """A case that was planned; a tenth of it is communication, and none waiting."""
    told = {
        "seconds": seconds, "low": seconds / 1.5, "high": seconds * 1.5, "call": 1e-5, "compute": 0.9 * seconds,
        "communication": 0.1 * seconds, "waiting": 0.0, "bound": "transcendentals", "by": by,
    }  # fmt: skip
    made = {
        "started_at": "2026-02-01T00:00:00Z", "flops": 4.01e6, "program_flops": 3.02e9, "compulsory_bytes": 9216,
        "hbm_bytes": 13_060_000, "peak_bytes": 50_000_000, "capacity_bytes": 200_000_000, "predicted": told,
        "messages": [{"kind": "all-reduce", "bytes": 1048576, "group": case.devices, "times": 2}] * 2,
        "kernels": [{"bytes": 4096}],
    }  # fmt: skip
    return Record(case, "planned", around(case, hardware, kind), **made | fields)


def bad(case, reason, status="skipped", hardware="far", **fields):
    return Record(
        case, status, around(case, hardware), reason=reason, started_at="2026-02-01T00:00:00Z", **fields
    )


def curve(workload="rbf", mode="jacfwd", counts=(1, 8, 64), serial=0.01, beyond=64, **fields):
    """Planned records on so many devices, from some number on by formula."""
    return [
        planned_record(
            case_of(workload, mode, 1, count), 0.01 * made_up.amdahl(count, serial), "formula" if count > beyond else "program",
            **fields,
        )
        for count in counts
    ]  # fmt: skip


def write(folder, records, title="A far machine", hardware="far", **told):
    folder.mkdir(exist_ok=True)
    (folder / "all.jsonl").write_text("".join(to_line(record) + "\n" for record in records))
    write_json(
        folder / f"plan-{hardware}.json",
        {"scaling": ["strong"], "hardware": {"title": title, "price": 3.5}} | told,
    )
    return folder


def measured(*modes, counts=(1, 2, 4, 8), kind=KIND):
    draw = made_up.np.random.default_rng(3)
    made = [made_up.record(draw, case_of("rbf", mode, 1, count)) for mode in modes for count in counts]
    return [dataclasses.replace(r, environment=r.environment | {"device_kind": kind}) for r in made]


def table_of(found, anchor):
    return next(table for table in page_tables.folded_tables(found) if table.anchor == anchor)


def labels(panel):
    """The words that are written in a panel."""
    return [
        row["label"]
        for layer in panel.layers
        if layer["mark"]["type"] == "text"
        for row in layer["data"]["values"]
    ]


def bars(drawing):
    """How many intervals of measurements are drawn."""
    layers = [
        layer
        for panel in drawing.panels
        for layer in panel.layers
        if layer["mark"]["type"] == "rule" and "transform" in layer
    ]
    return sum(len(layer["data"]["values"]) for layer in layers)


def cells(table, **where):
    """The rows of a table as mappings, those that say so."""
    every = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    return [row for row in every if all(row[name] == value for name, value in where.items())]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Plans, and nothing measured: curves beyond what can be compiled, what does not fit, what failed."""
    records = [
        *curve(counts=(1, 8, 64, 512), beyond=64),
        *curve(mode="jacrev", serial=0.2),
        *curve("linear", counts=(1, 8)),
    ]
    big = case_of("rbf", "vmap_grad", 1, 1)
    records.append(
        bad(
            big,
            "too_large",
            text="needs 300 MB, a device has 200 MB",
            peak_bytes=300_000_000,
            capacity_bytes=200_000_000,
        )
    )
    records.append(bad(case_of("poisson", "jacfwd", 1, 8), "error", "failed", text=NASTY))
    return write(tmp_path_factory.mktemp("plans") / "alone", records)


@pytest.fixture(scope="module")
def page(alone):
    return write_report.write_report(alone).read_text()


def test_a_folder_of_plans_alone_answers_with_the_plan(alone, page):
    found = findings.read(alone)
    first, *rest = answer.answer_sentences(found)
    assert first.startswith(
        "Planned for A far machine, and nothing measured here: 9 cases, 1 skipped, 1 failed on 1 to 512 devices"
    )
    assert "with libxyz 1.2, JAX 0.10.2" in first and "predicted and not measured" in first
    assert any("the fastest planned method" in sentence for sentence in rest)
    assert "Nothing has been measured" not in page and "9 planned" in page
    assert answer.summarize(found) == ([], answer.answer_sentences(found))


def test_an_empty_folder_still_says_that_nothing_was_measured(tmp_path):
    assert answer.answer_sentences(tmp_path)[0].startswith("Nothing has been measured")


def test_the_cards_of_a_plan_name_the_least_time_and_say_that_it_was_not_measured(alone):
    rbf = next(
        card for card in answer_tables.make_cards(findings.read(alone)) if card.family.startswith("rbf")
    )
    assert rbf.family.endswith("planned for A far machine")
    assert (rbf.mode, rbf.sure, rbf.certainty) == ("jacfwd (vmap)", False, "predicted, not measured")
    assert rbf.where.startswith("512 devices") and rbf.time.startswith("119 µs")
    at_64 = 0.01 * made_up.amdahl(64, 0.2) / (0.01 * made_up.amdahl(512, 0.01))
    assert rbf.ratio == f"jacrev (vmap) takes {at_64:.1f}x as long" and rbf.speedup == "Efficiency 16 %"


def test_answers_stand_once_in_an_open_section_of_their_own(alone, page):
    section = page[page.index('id="plan-far" open') :]
    section = html.unescape(re.sub(r"<[^>]*>", "", section[: section.index("</details>")]))
    told = plan_answers(findings.read(alone).forecasts[0])
    bare = html.unescape(re.sub(r"<[^>]*>", "", page))
    assert told and "Planned for A far machine" in section
    for sentence in told:
        assert sentence in section and bare.count(sentence) == 1
    assert (alone / "report" / "table.md").read_text().count("device-hours for a million calls") == 2


def test_a_row_tells_what_is_predicted(alone):
    table = table_of(findings.read(alone), "planned-far")
    (row,) = (row for row in cells(table, devices="8") if " jacrev " in row["case"])
    seconds = 0.01 * made_up.amdahl(8, 0.2) * 1e3
    assert row["predicted time"] == f"{seconds:.2f} ms ({seconds / 1.5:.2f} to {seconds * 1.5:.2f})"
    assert row["efficiency"] == "42 %" and row["bound by"] == "transcendentals"
    assert (row["communication"], row["waiting"]) == ("10 %", "none")
    assert row["memory"] == "50.0 MB (25 %)" and row["by"] == "program"
    assert [row["by"] for row in cells(table, devices="512")] == ["formula"]
    devices = [row["devices"] for row in cells(table) if " jacrev " in row["case"]]
    assert len(table.rows) == 9 and devices == ["1", "8", "64"]


def test_a_case_without_a_prediction_says_why(tmp_path):
    case = case_of("rbf", "jacfwd", 1, 8)
    text = "not predicted: no rate of divisions"
    folder = write(tmp_path / "made", [planned_record(case, 1.0, predicted=None, text=text, messages=[])])
    (row,) = cells(table_of(findings.read(folder), "planned-far"))
    assert row["remarks"] == text and "predicted time" not in row and "by" not in row
    write_report.write_report(folder)


def test_what_does_not_fit_and_what_failed_have_a_table_of_their_own(alone):
    table = table_of(findings.read(alone), "unplanned-far")
    (row,) = cells(table, status="skipped")
    assert row["memory"] == "300 MB (150 %)" and row["what happened"] == "needs 300 MB, a device has 200 MB"
    (other,) = cells(table, status="failed")
    assert other["reason"] == "error: an exception" and other["what happened"] == NASTY


@pytest.mark.contract
def test_plans_stand_in_no_table_figure_or_grid_of_measurements(tmp_path):
    both = write(
        tmp_path / "both", [*measured("jacfwd"), *curve("linear"), bad(case_of("poisson"), "too_large")]
    )
    bare = write(tmp_path / "bare", measured("jacfwd"))
    mixed, plain = findings.read(both), findings.read(bare)
    theirs = {"planned-far", "unplanned-far"}
    assert [
        t for t in page_tables.folded_tables(mixed) if t.anchor not in theirs and t.anchor != "review"
    ] == [t for t in page_tables.folded_tables(plain) if t.anchor != "review"]
    assert one_table.record_table(mixed).rows == one_table.record_table(plain).rows
    rest = [d for d in figures.make_figures(mixed) if d.name != "plan-far"]
    assert files.page_specs(figures.make_figures(plain)) == files.page_specs(rest)
    assert answer_tables.make_cards(mixed) == answer_tables.make_cards(plain)
    said = [s for s in answer.answer_sentences(mixed) if s not in answer.answer_sentences(plain)]
    assert len(said) == 1 and said[0].startswith(
        "Planned for A far machine: 3 cases, 1 skipped on 1 to 64 devices"
    )


def test_two_hardwares_are_kept_apart_even_where_their_names_become_one(tmp_path):
    folder = write(
        tmp_path / "two", [*curve(hardware="far"), *curve("linear", hardware="FAR!", kind="other")]
    )
    write_json(folder / "plan-FAR!.json", {"hardware": {"title": "Another"}})
    found = findings.read(folder)
    assert file_stems(["far", "FAR!", "far-2"]) == {"far": "far", "FAR!": "far-2", "far-2": "far-2-2"}
    assert {row["case"].split()[0] for row in cells(table_of(found, "planned-far"))} == {"rbf"}
    assert {row["case"].split()[0] for row in cells(table_of(found, "planned-far-2"))} == {"linear"}
    text = write_report.write_report(folder).read_text()
    anchors = re.findall(r'\bid="([^"]+)"', text)
    assert len(anchors) == len(set(anchors)) and {"plan-far", "plan-far-2"} <= set(anchors)


def test_every_link_of_a_page_of_plans_leads_somewhere(alone, page):
    assert set(re.findall(r'<a href="#([^"]+)"', page)) <= set(re.findall(r'\bid="([^"]+)"', page))
    for name in re.findall(r'<a href="([^#"][^"]*)"', page):
        assert (alone / "report" / name).exists()


def test_the_figure_notes_where_formula_begins_and_what_is_hollow(alone):
    (drawing,) = figures.make_figures(findings.read(alone))
    assert (
        drawing.name == "plan-far"
        and "hollow" in drawing.caption
        and "measured on such" not in drawing.caption
    )
    assert len(drawing.panels) == 2 and [labels(panel) for panel in drawing.panels] == [
        ["ideal", "formula →"], ["ideal"],
    ]  # fmt: skip


@pytest.mark.contract
def test_what_was_measured_on_the_same_kind_of_device_is_drawn_beside_it(tmp_path):
    def drawn(name, records):
        (drawing,) = (
            d
            for d in figures.make_figures(findings.read(write(tmp_path / name, records)))
            if d.name == "plan-far"
        )
        return drawing

    alone = drawn("alone", curve())
    beside = drawn("beside", [*curve(), *measured("jacfwd")])
    assert bars(beside) == 4 and "measured on such devices" in beside.caption
    assert bars(alone) == 0 and "measured on such devices" not in alone.caption
    # Of another kind of device, or another mode, nothing is drawn.
    assert drawn("kind", [*curve(kind="another"), *measured("jacfwd")]) == alone
    assert drawn("mode", [*curve(), *measured("jacrev")]) == alone


@pytest.mark.contract
def test_weak_plans_are_drawn_beside_weak_measurements_only(tmp_path):
    weak = [
        planned_record(case_of("rbf", "jacfwd", 1, count, weak=True), 0.01 + 1e-4 * count)
        for count in (1, 8, 64)
    ]
    folder = write(tmp_path / "weak", [*weak, *measured("jacfwd")], scaling=["weak"])
    (drawing,) = (d for d in figures.make_figures(findings.read(folder)) if d.name == "plan-far")
    assert "for each device" in drawing.panels[0].title[1] and bars(drawing) == 0


def test_the_largest_families_are_drawn_and_the_rest_is_named(tmp_path):
    records = [
        planned_record(dataclasses.replace(case_of("rbf", "jacfwd", 1, n), variant=f"v{v}", points=64 * (v + 1)), 0.1 / n)
        for v in range(over_devices.MOST_PLANS + 2) for n in (1, 8)
    ]  # fmt: skip
    (drawing,) = figures.make_figures(findings.read(write(tmp_path / "many", records)))
    assert (
        len(drawing.panels) == over_devices.MOST_PLANS
        and "2 workloads left out, but in the table" in drawing.caption
    )
    assert "v9" in drawing.panels[0].title[0] and "v0" in drawing.caption and "v1" in drawing.caption


def test_nothing_is_drawn_of_one_number_of_devices(tmp_path):
    found = findings.read(write(tmp_path / "one", curve(counts=(8,))))
    assert figures.make_figures(found) == []
    assert ["efficiency" in row for row in cells(table_of(found, "planned-far"))] == [False]
    assert "Planned for A far machine" in write_report.write_report(tmp_path / "one").read_text()


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """Three modes planned and measured: two predicted as measured but for a tenth, one three times too short."""
    draw = made_up.np.random.default_rng(3)
    records, told = [], {"jacfwd": (0.010, 0.011), "jacrev": (0.040, 0.044), "linearize": (0.090, 0.030)}
    for mode, (seconds, guess) in told.items():
        for devices in (1, 8):
            case = case_of("rbf", mode, 1, devices)
            records += [made_up.timed(draw, case, seconds), planned_record(case, guess, hardware="near")]
    return write(tmp_path_factory.mktemp("scores") / "made", records, "Near", "near")


def test_predictions_are_scored_by_workload_and_mode(scored):
    found = findings.read(scored)
    table = table_of(found, "scores-near")
    assert table.title == "Errors of the predictions: near"
    by_mode = {row["mode"]: row for row in cells(table)}
    assert list(by_mode) == ["all", "jacfwd (vmap)", "jacrev (vmap)", "linearize (vmap)"]
    assert by_mode["all"]["cases"] == "6" and by_mode["linearize (vmap)"]["within the interval"] == "none"
    assert by_mode["jacfwd (vmap)"]["within the interval"] == "100 %" and by_mode["linearize (vmap)"][
        "worst"
    ].startswith("0.3")
    first, order = answer.describe_score(found.plan_scores[0])
    assert "over 6 cases" in first and "67 % of the measured times lie in" in first
    assert order.startswith("Of 6 pairs of methods") and "4 (67 %) were predicted in the right order" in order
    assert first in answer.answer_sentences(found) and order in answer.answer_sentences(found)


@pytest.mark.contract
def test_the_scatter_has_a_mark_for_each_case_the_diagonal_and_the_factor_of_two(scored):
    (drawing,) = (d for d in figures.make_figures(findings.read(scored)) if d.name == "score-near")
    assert [entry.name.split(" ")[0] for entry in drawing.legend] == ["jacfwd", "jacrev", "linearize"]
    assert sorted(labels(drawing.panels[0])) == ["a factor of two", "as predicted"]
    text = write_report.write_report(scored).read_text()
    assert (
        ' id="score-near"' in text
        and "were predicted in the right order" in text[text.index('id="score-near"') :]
    )


def test_without_scores_there_is_neither_table_nor_figure(alone):
    found = findings.read(alone)
    assert not any(table.anchor.startswith("scores") for table in page_tables.folded_tables(found))
    assert not any(drawing.name.startswith("score") for drawing in figures.make_figures(found))


def test_whatever_stands_in_a_plan_is_text(tmp_path):
    hostile = '<b>far</b>" onload="x'
    records = [
        dataclasses.replace(
            r, case=dataclasses.replace(r.case, workload="<i>mine</i>", target=NASTY), text=NASTY
        )
        for r in curve(hardware=hostile, kind="<i>device</i>")
    ]
    folder = write(
        tmp_path / "made", [*records, *[bad(records[0].case, "too_large", text=NASTY)]], "unread", "unread"
    )
    text = write_report.write_report(folder).read_text()
    elements = Elements()
    elements.feed(text)
    assert (
        text.count("<script") == 4
        and not {"b", "i", "img"} & elements.names
        and "onload" not in elements.attributes
    )
    assert "<b>far</b>" in html.unescape(text) and NASTY in html.unescape(text)
    export.write_exports(folder, ["svg"])
    (svg,) = (folder / "export").glob("plan-*.svg")
    root = ET.fromstring(svg.read_bytes())
    assert not any("onload" in node.attrib for node in root.iter())
    assert (
        "<i>" not in (folder / "report" / "table.md").read_text()
        and "<b>" not in (folder / "report" / "table.md").read_text()
    )


def test_figures_of_hardware_that_is_planned_for_no_more_go_away(tmp_path):
    folder = write(tmp_path / "made", curve())
    export.write_exports(folder, ["svg"])
    assert (folder / "export" / "plan-far.svg").exists()
    write(folder, curve(hardware="other"), hardware="other")
    export.write_exports(folder, ["svg"])
    assert [path.name for path in (folder / "export").glob("plan-*")] == ["plan-other.svg"]


def test_plans_are_exported_as_a_table_of_their_own(alone, tmp_path):
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    written = {path.name for path in export.write_exports(alone, ("csv", "parquet"), tmp_path)}
    assert {"plans.csv", "plans.parquet"} <= written
    with (tmp_path / "plans.csv").open(newline="") as file:
        told = list(csv.DictReader(file))
    exact = parquet.read_table(tmp_path / "plans.parquet").to_pylist()
    assert len(told) == len(exact) == 11
    by = {(row["mode"], row["devices"], row["workload"]): row for row in exact}
    row = by["jacrev", 8, "rbf"]
    seconds = 0.01 * made_up.amdahl(8, 0.2)
    assert (row["hardware"], row["status"], row["predicted_seconds"]) == ("far", "planned", seconds)
    assert (row["low"], row["high"], row["by"], row["capacity_bytes"]) == (
        seconds / 1.5,
        seconds * 1.5,
        "program",
        200_000_000,
    )
    assert (
        by["vmap_grad", 1, "rbf"]["reason"] == "too_large"
        and by["vmap_grad", 1, "rbf"]["predicted_seconds"] is None
    )
    assert {float(r["predicted_seconds"]) for r in told if r["predicted_seconds"]} == {
        r["predicted_seconds"] for r in exact if r["predicted_seconds"] is not None
    }
    assert (tmp_path / "records.csv").read_text().count("\n") == 1  # its head


def test_there_is_no_table_of_plans_where_nothing_was_planned(tmp_path):
    found = findings.read(made_up.write(tmp_path / "made", measured("jacfwd")))
    assert [table.name for table in one_table.export_tables(found)] == [
        "records",
        "curves",
        "samples",
        "laws",
    ]
    assert not {"program_flops", "capacity_bytes", "predicted", "kernels"} & set(
        one_table.record_table(found).column_types
    )


def test_the_methods_tell_how_predictions_are_made(alone, tmp_path):
    nothing, how = methods_text.describe_methods(findings.read(alone))
    assert nothing == "Nothing has been measured." and how.startswith(
        "Times for A far machine are predicted and not measured"
    )
    assert "median" in how and "95 %" in how
    plain = findings.read(made_up.write(tmp_path / "made", measured("jacfwd")))
    assert not any("predicted" in paragraph for paragraph in methods_text.describe_methods(plain))
