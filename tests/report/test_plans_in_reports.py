"""Tests of plans and scores in reports: their sections, tables, figures and exports, separate from measurements."""

import dataclasses
import html
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest

from scaling.analysis import answers, findings
from scaling.analysis import dataframe as one_table
from scaling.analysis.answers import plan_answers
from scaling.core.record import Record, to_line
from scaling.report import export, proposal, terminal
from scaling.report import tables as report_tables
from scaling.report.figures import charts, files, marks
from scaling.results.store import write_json
from tests.support import made_up, reports
from tests.support.made_up import NASTY, case_of
from tests.support.planned import KIND, plan_environment, planned_record


class Elements(HTMLParser):
    """A parser that collects the names of all elements and attributes of a page."""

    def __init__(self):
        super().__init__()
        self.names, self.attributes = set(), set()

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        self.attributes.update(name for name, _ in attrs)


def failed_plan(case, reason, status="skipped", hardware="far", **fields):
    return Record(
        case,
        status,
        plan_environment(case, hardware),
        reason=reason,
        started_at="2026-02-01T00:00:00Z",
        **fields,
    )


def planned_curve(workload="rbf", mode="jacfwd", counts=(1, 8, 64), serial=0.01, **fields):
    """Return planned records on the given device counts."""
    return [
        planned_record(
            case_of(workload, mode, 1, count), 0.01 * made_up.amdahl(count, serial), "program",
            **fields,
        )
        for count in counts
    ]  # fmt: skip


def write(folder, records, title="A far machine", hardware="far", **values):
    folder.mkdir(exist_ok=True)
    (folder / "all.jsonl").write_text("".join(to_line(record) + "\n" for record in records))
    write_json(
        folder / f"plan-{hardware}.json",
        {"scaling": ["strong"], "hardware": {"title": title}} | values,
    )
    return folder


def measured(*modes, counts=(1, 2, 4, 8), kind=KIND):
    generator = made_up.np.random.default_rng(3)
    records = [
        made_up.record(generator, case_of("rbf", mode, 1, count)) for mode in modes for count in counts
    ]
    return [dataclasses.replace(r, environment=r.environment | {"device_kind": kind}) for r in records]


def table_of(study, anchor):
    return next(table for table in report_tables.folded_tables(study) if table.anchor == anchor)


def cells(table, **where):
    """Return the rows of a table, as dicts, that have the given values."""
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    return [row for row in rows if all(row[name] == value for name, value in where.items())]


@pytest.fixture(scope="module")
def plans_only(tmp_path_factory):
    """Return a folder of plans without measurements: curves, a case too large, and a failure."""
    records = [
        *planned_curve(counts=(1, 8, 64, 512)),
        *planned_curve(mode="jacrev", serial=0.2),
        *planned_curve("linear", counts=(1, 8)),
    ]
    too_large = case_of("rbf", "vmap_grad", 1, 1)
    records.append(
        failed_plan(
            too_large,
            "too_large",
            text="needs 300 MB, a device has 200 MB",
            peak_bytes=300_000_000,
            capacity_bytes=200_000_000,
        )
    )
    records.append(failed_plan(case_of("poisson", "jacfwd", 1, 8), "error", "failed", text=NASTY))
    return write(tmp_path_factory.mktemp("plans") / "alone", records)


@pytest.fixture(scope="module")
def page(plans_only):
    return reports.write_report(plans_only).read_text()


def test_folder_with_only_plans_is_answered_from_the_plan(plans_only, page):
    study = findings.read(plans_only)
    first, *rest = answers.answer_sentences(study)
    assert first.startswith(
        "Planned for A far machine: 9 cases on 1 to 512 devices of An accelerator, compiled with "
    )
    assert "with libxyz 1.2, JAX 0.10.2" in first and "predicted and not measured" in first
    assert any("the fastest planned method" in sentence for sentence in rest)
    assert "Nothing has been measured" not in page
    assert re.findall(r'<li class="(?:failed|planned|skipped)">(\d+ \w+)', page) == [
        "1 skipped", "1 failed", "9 planned",
    ]  # fmt: skip
    assert terminal.describe_totals(study) == "0 ok, 1 skipped, 1 failed, 9 planned"


def test_plan_answers_appear_once_in_an_open_section(plans_only, page):
    page = page.replace("\N{NO-BREAK SPACE}", " ")
    section = page[page.index('id="sentences" open') :]
    section = html.unescape(re.sub(r"<[^>]*>", "", section[: section.index("</details>")]))
    answers = plan_answers(findings.read(plans_only).forecasts[0])
    text = html.unescape(re.sub(r"<[^>]*>", "", page))
    assert answers and "Planned for A far machine" in section
    for sentence in answers:
        assert sentence in section and text.count(sentence) == 1
    assert (plans_only / "report" / "table.md").read_text().count("the fastest planned method") == 2


def test_row_of_a_plan_shows_its_prediction(plans_only):
    table = table_of(findings.read(plans_only), "planned-far")
    (row,) = (row for row in cells(table, devices="8") if " jacrev " in row["case"])
    seconds = 0.01 * made_up.amdahl(8, 0.2) * 1e3
    assert row["predicted time"] == f"{seconds:.2f} ms ({seconds / 1.5:.2f} to {seconds * 1.5:.2f})"
    assert row["efficiency"] == "0.42" and row["bound by"] == "transcendentals"
    assert (row["communication"], row["waiting"]) == ("10 %", "0 %")
    assert row["memory"] == "50.0 MB (25 %)"
    devices = [row["devices"] for row in cells(table) if " jacrev " in row["case"]]
    assert len(cells(table, status="planned")) == 9 and devices == ["1", "8", "64"]


def test_case_without_a_prediction_states_the_reason(tmp_path):
    case = case_of("rbf", "jacfwd", 1, 8)
    text = "not predicted: no rate of divisions"
    folder = write(tmp_path / "made", [planned_record(case, 1.0, predicted=None, text=text, messages=[])])
    (row,) = cells(table_of(findings.read(folder), "planned-far"))
    assert row["remarks"] == text and "predicted time" not in row
    reports.write_report(folder)


def test_cases_too_large_or_failed_state_the_reason(plans_only):
    table = table_of(findings.read(plans_only), "planned-far")
    (skipped,) = cells(table, status="skipped")
    assert skipped["memory"] == "300 MB (150 %)"
    assert skipped["remarks"].endswith("; needs 300 MB, a device has 200 MB")
    (failed,) = cells(table, status="failed")
    assert failed["remarks"] == f"error: an exception; {NASTY}"


@pytest.mark.thorough
def test_plans_do_not_appear_among_measurements(tmp_path):
    with_plans = write(
        tmp_path / "both",
        [*measured("jacfwd"), *planned_curve("linear"), failed_plan(case_of("poisson"), "too_large")],
    )
    without_plans = write(tmp_path / "bare", measured("jacfwd"))
    mixed, plain = findings.read(with_plans), findings.read(without_plans)
    plan_anchors = {"planned-far"}
    assert [
        t for t in report_tables.folded_tables(mixed) if t.anchor not in plan_anchors and t.anchor != "review"
    ] == [t for t in report_tables.folded_tables(plain) if t.anchor != "review"]
    assert one_table.record_columns(mixed).equals(one_table.record_columns(plain))
    measured_figures = [d for d in charts.make_figures(mixed) if d.name != "plan-far"]
    assert files.page_specs(charts.make_figures(plain)) == files.page_specs(measured_figures)
    assert answers.measured_answers(mixed) == answers.measured_answers(plain)
    added = [s for s in answers.answer_sentences(mixed) if s not in answers.answer_sentences(plain)]
    assert added[0].startswith("Planned for A far machine: 3 cases on 1 to 64 devices of ")
    assert added[1:] == plan_answers(mixed.forecasts[0])


def test_links_of_a_page_of_plans_have_targets(plans_only, page):
    assert set(re.findall(r'<a href="#([^"]+)"', page)) <= set(re.findall(r'\bid="([^"]+)"', page))
    for name in re.findall(r'<a href="([^#"][^"]*)"', page):
        assert (plans_only / "report" / name).exists()


def test_six_families_with_most_device_counts_are_drawn_and_the_caption_counts_all(tmp_path):
    records = [
        planned_record(dataclasses.replace(case_of("rbf", "jacfwd", 1, n), variant=f"v{v}", points=64 * (v + 1)), 0.1 / n)
        for v in range(marks.MAX_PANELS + 2) for n in ((1, 8) if v < 7 else (1, 2, 4, 8))
    ]  # fmt: skip
    (drawing,) = charts.make_figures(findings.read(write(tmp_path / "many", records)))
    assert len(drawing.panels) == marks.MAX_PANELS and "6 of 8 problems are drawn" in drawing.caption
    assert "v7" in str(drawing.panels[0].title)


def test_row_of_a_plan_shows_the_efficiency_of_each_kind_of_scaling(tmp_path):
    """The weak curve of six points per device must not replace the strong one of twelve points."""
    rows = ((1, 12, 8.0), (2, 12, 5.0), (4, 24, 8.0))  # devices, points, seconds
    records = [
        planned_record(dataclasses.replace(case_of("rbf", devices=d), points=p), s) for d, p, s in rows
    ]
    study = findings.read(write(tmp_path / "both", records, scaling=["strong", "weak"]))
    efficiencies = {row["devices"]: row["efficiency"] for row in cells(table_of(study, "planned-far"))}
    assert efficiencies == {"1": "1.00", "2": "0.80, weak 1.00", "4": "weak 0.62"}


def test_each_tooltip_of_a_plan_says_that_its_time_is_predicted(tmp_path):
    records = [*planned_curve(), *measured("jacfwd")]
    drawings = charts.make_figures(findings.read(write(tmp_path / "both", records)))
    tips = {
        drawing.name: [row["tip"] for panel in drawing.panels for row in panel.chart["data"]["values"] if "tip" in row]
        for drawing in drawings
    }  # fmt: skip
    assert len(tips["plan-far"]) == 3 and len(tips["devices"]) == 4
    assert all("predicted from the compiled program" in tip for tip in tips["plan-far"])
    assert not any("predicted" in tip for tip in tips["devices"])


def test_single_device_count_is_not_drawn(tmp_path):
    study = findings.read(write(tmp_path / "one", planned_curve(counts=(8,))))
    assert charts.make_figures(study) == []
    assert ["efficiency" in row for row in cells(table_of(study, "planned-far"))] == [False]
    assert "Planned for A far machine" in reports.write_report(tmp_path / "one").read_text()


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """Return a folder of three modes planned and measured: two predicted within 10 %, one a factor of three too short."""
    generator = made_up.np.random.default_rng(3)
    records, modes = [], {"jacfwd": (0.010, 0.011), "jacrev": (0.040, 0.044), "linearize": (0.090, 0.030)}
    for mode, (seconds, predicted) in modes.items():
        for devices in (1, 8):
            case = case_of("rbf", mode, 1, devices)
            records += [
                made_up.timed(generator, case, seconds),
                planned_record(case, predicted, hardware="near"),
            ]
    return write(tmp_path_factory.mktemp("scores") / "made", records, "Near", "near")


def test_predictions_are_scored(scored):
    study = findings.read(scored)
    sentence = answers.describe_score(study.plan_scores[0])
    assert "over 6 cases" in sentence and "67 % of the measured times lie in" in sentence
    assert sentence in answers.answer_sentences(study)


def test_text_of_a_plan_is_escaped(tmp_path):
    markup = '<b>far</b>" onload="x'
    records = [
        dataclasses.replace(
            r, case=dataclasses.replace(r.case, workload="<i>mine</i>", target=NASTY), text=NASTY
        )
        for r in planned_curve(hardware=markup, kind="<i>device</i>")
    ]
    folder = write(
        tmp_path / "made",
        [*records, *[failed_plan(records[0].case, "too_large", text=NASTY)]],
        "unread",
        "unread",
    )
    text = reports.write_report(folder).read_text()
    elements = Elements()
    elements.feed(text)
    assert text.count("<script") == 4
    assert not {"b", "i", "img"} & elements.names
    assert "onload" not in elements.attributes
    assert "<b>far</b>" in html.unescape(text) and NASTY in html.unescape(text)
    export.write_exports(folder, ["svg"])
    (svg,) = (folder / "export").glob("plan-*.svg")
    root = ET.fromstring(svg.read_bytes())
    assert not any("onload" in node.attrib for node in root.iter())
    assert "<i>" not in (folder / "report" / "table.md").read_text()
    assert "<b>" not in (folder / "report" / "table.md").read_text()


def test_table_of_records_has_no_columns_of_plans(tmp_path):
    study = findings.read(made_up.write(tmp_path / "made", measured("jacfwd")))
    columns = set(one_table.record_columns(study))
    assert not {"program_flops", "capacity_bytes", "predicted", "kernels"} & columns


def test_methods_describe_how_times_are_predicted(plans_only, tmp_path):
    def describe_methods(study):
        text = proposal.write_proposal(tmp_path / "proposal", study).read_text()
        return text.split("## Methods\n\n")[1].split("\n\n## ")[0].split("\n\n")

    first, second = describe_methods(findings.read(plans_only))
    assert first == "Nothing has been measured."
    assert second.startswith("Times for A far machine are predicted and not measured")
    assert "takes the longer of the times for its bytes and for its operations" in " ".join(second.split())
    assert "median" in second and second.endswith("and in stragglers."), "no time is extrapolated"
    plain = findings.read(made_up.write(tmp_path / "made", measured("jacfwd")))
    assert not any("predicted" in paragraph for paragraph in describe_methods(plain))
