"""Tests of the HTML page: its content, links and content security policy. test_browser.py tests it in a browser."""

import html
import json
import re
from pathlib import Path

import numpy as np
import pytest

from scaling.analysis import answers, dataframe, findings
from scaling.report import page
from scaling.report import tables as report_tables
from scaling.report.figures import files
from tests.support import made_up, reports
from tests.support.records import record, weak


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a study with every status of a record and with HTML in every text that comes from a record."""
    generator = np.random.default_rng(1)
    cases = [
        made_up.case_of(w, m, s, d)
        for w in ("rbf", "linear")
        for m in ("jacfwd", "jacrev")
        for s in (0, 2)
        for d in (1, 2)
    ]
    records = [made_up.record(generator, case, replicate) for case in cases for replicate in range(2)]
    failed = [made_up.case_of("rbf", "linearize", s, 2) for s in range(5)]
    records += [made_up.failure(case, "error", made_up.NASTY) for case in failed]
    records += [
        made_up.failure(
            made_up.case_of("rbf", "vmap_grad", 0, 1), "not_defined", "nothing to tell", "skipped"
        )
    ]
    with_markup = record(2, 4.0, workload="<b>mine</b>", target=made_up.NASTY, variant="'\"")
    with_markup.environment.update(device_kind="<i>a device</i>", xla_flags=made_up.NASTY)
    return made_up.write(
        tmp_path_factory.mktemp("page") / "made", [*records, with_markup], name="<u>study</u>"
    )


@pytest.fixture(scope="module")
def text(folder):
    return reports.write_report(folder).read_text()


def outside_script(text):
    return re.sub(r"<(script|style)>.*?</\1>", "", text, flags=re.DOTALL)


def test_no_cell_of_a_table_breaks_within_a_quantity(text):
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", text)
    assert sum("\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}" in cell for cell in cells) > 50
    assert not [
        cell for cell in cells if re.search(r" \(\d|\d to | to \d|\d (?:[mµn]?s|[kMG]?B|%)(?!\w)", cell)
    ]


def without_vega(text):
    """Return the page without the Vega library, which the content security policy keeps from making requests."""
    library = (Path(page.__file__).parent / "vega.min.js").read_text()
    assert library in text
    return text.replace(library, "")


def folded_rows(study, anchor):
    """Return the rows of a folded table as dicts from column to text."""
    (table,) = [table for table in report_tables.folded_tables(study) if table.anchor == anchor]
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def test_page_has_only_its_own_scripts_and_no_element_from_a_record(text):
    assert text.count("<script") == text.count("</script") == 4
    text = without_vega(text)
    for element in ("<b>mine", "<i>a device", "<u>study", "<img", "onerror=alert(1)>"):
        assert element not in text
    shown = html.unescape(re.sub(r"<[^>]*>", "", outside_script(text)))
    assert [
        text
        for text in (made_up.NASTY, "<b>mine</b>", "<i>a device</i>", "<u>study</u>")
        if text not in shown
    ] == []


def test_a_command_in_a_sentence_or_a_cell_is_a_code_element(text):
    visible = outside_script(text)
    assert "`" not in visible
    assert "which <code>scaling lint</code> explains" in visible


def test_the_table_of_environments_says_yes_or_no(tmp_path):
    measured = record(1, 1.0)
    measured.environment.update(bound=True, dirty=False)
    folder = made_up.write(tmp_path / "made", [measured])
    rows = dict(report_tables.environment_table(findings.read(folder)).rows)
    assert (rows["bound"], rows["dirty"]) == ("yes", "no")


def test_content_security_policy_forbids_all_requests(text):
    text = without_vega(text)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)[1]
    assert policy.startswith("default-src 'none'")
    stripped = re.sub(
        r"&\w+;|http-equiv|nowhere\.invalid", "", text.replace(html.escape("http://nowhere.invalid"), "")
    )
    assert not re.search(r'(?:src|href)="(?!#|data:,|[\w.-]+\.(?:md|csv|svg|png|pdf)")', stripped)
    assert not re.search(
        r"@import|url\((?!#)|https?://",
        outside_script(stripped).replace("http://", "", text.count("http://")),
    )


def test_links_of_the_page_have_targets(folder, text):
    anchors = set(re.findall(r'\bid="([^"]+)"', text))
    assert set(re.findall(r'<a href="#([^"]+)"', text)) <= anchors
    for name in re.findall(r'<a href="([^#"][^"]*)"', text):
        assert (folder / "report" / name).is_file()


def test_a_sentence_after_the_number_of_rows_is_a_sentence_of_its_own(text):
    summaries = re.findall(r'<span class="quiet">(\d[^<]*)</span></summary>', text)
    assert len(summaries) > 5 and all(re.fullmatch(r"[\d,]+ rows?(\. [A-Z].*)?", each) for each in summaries)


def test_of_many_functions_the_first_have_a_card_and_the_page_says_so(tmp_path):
    folder = made_up.write(tmp_path / "made", [record(1, 1.0, workload=f"f{n}") for n in range(26)])
    text = reports.write_report(folder).read_text()
    assert text.count('<p class="mode">') == 24 and "Of 26 functions, the first 24 are shown." in text


@pytest.mark.parametrize(
    ("second_mode", "process_count", "of_mode", "of_devices", "cell"),
    [
        (True, 3, "sure", "sure", "sure"),
        (True, 1, *["not sure: measured in one process"] * 3),
        (False, 3, "no other mode measured", "sure", "no other mode measured; device count sure"),
    ],
)
def test_a_card_and_its_row_state_how_sure_the_mode_and_the_devices_are(
    tmp_path, second_mode, process_count, of_mode, of_devices, cell
):
    modes = {"jacfwd": 4.0, **({"jacrev": 9.0} if second_mode else {})}
    rows = [
        record(devices, seconds / devices, mode=mode, replicate=i, api="shard_map")
        for devices in (1, 2)
        for mode, seconds in modes.items()
        for i in range(process_count)
    ]
    study = findings.read(made_up.write(tmp_path, rows))
    text = reports.write_report(tmp_path).read_text()
    text = re.sub("</?span[^>]*>", "", text).replace("\N{NO-BREAK SPACE}", " ")
    certainties = re.findall(r"Certainty of the ([^<]*)</strong>([^<]*)", text)
    assert certainties == [("mode:", f" {of_mode}"), ("device count:", f" {of_devices}")]
    [row] = report_tables.answer_table(study).rows
    assert row[-1] == cell


def test_rejected_series_is_not_called_weak_scaling(tmp_path):
    folder = made_up.write(
        tmp_path / "made", weak(((1e6, 1e3), (2e6, 1e3), (4e6, 1e3))), scaling=["strong", "weak"]
    )
    text = outside_script(reports.write_report(folder).read_text())
    assert "Not weak scaling" in text and not (folder / "report" / "scaling-weak.svg").exists()
    assert not re.findall(r"weak", re.sub(r"Not weak scaling|weak scaling that is not weak", "", text))
    assert "weak" not in dataframe.record_columns(findings.read(folder)).to_csv()
    held = reports.write_report(made_up.write(tmp_path / "held", weak(), scaling=["weak"])).read_text()
    assert 'id="scaling-weak"' in outside_script(held)


def test_serial_parts_are_in_the_table_of_cases_and_growth_exponents_in_a_sentence(tmp_path):
    generator = np.random.default_rng(2)
    cases = [made_up.case_of("rbf", "linearize", s, d) for s in range(4) for d in made_up.DEVICES]
    records = [made_up.record(generator, case, replicate) for case in cases for replicate in range(3)]
    study = findings.read(made_up.write(tmp_path / "made", records))
    rows = [row for row in folded_rows(study, "measured") if "m=16384" in row["case"]]
    parts = [row["serial part"] for row in rows if row["devices"] != "1"]
    assert [float(part.split()[0]) for part in parts] == pytest.approx([0.12] * 6, abs=0.04)
    (growth,) = answers.describe_growth(study)
    assert float(re.search(r"exponent ([\d.]+) ", growth)[1]) == pytest.approx(1.25, abs=0.1)


def test_ratio_to_the_derivative_by_hand_has_an_interval(tmp_path):
    by_hand = [record(seconds=0.5, mode="analytic"), record(seconds=1.0)]
    study = findings.read(made_up.write(tmp_path / "made", [*by_hand, record(points=24)]))
    by_hand = {row["by hand"] for row in folded_rows(study, "measured")}
    assert by_hand == {"", "1.00x (1.00 to 1.00)", "2.00x (2.00 to 2.00)"}


@pytest.mark.parametrize("seconds", [[4.12363e-4, 3.98e-4, 1.7], [1e-7, 98765.4321], [250.0]])
def test_a_detail_panel_has_each_sample_with_four_digits(seconds):
    ((_, panel),) = page.case_panels({"row": {"": [record(seconds=seconds)]}}).items()
    ((name, times, marked),) = json.loads(files.to_script_json(panel))["samples"]
    assert (name, marked) == ("process 1", [])
    assert times == pytest.approx(seconds, rel=5e-4)


def test_facts_of_a_case_are_its_stages_memory_disturbed_turns_and_largest_error():
    fields = {"stop_reason": "width", "turns": [5, 4], "temp_bytes": 2_000_000, "tolerance": 1e-5}
    records = [
        record(compile_seconds=1.5, error=1e-7, marked={"foreign_load": [1]}, **fields),
        record(compile_seconds=1.25, error=3e-7, replicate=1, **fields),
    ]
    facts = page.case_panels({"row": {"": records}})["row"]["facts"]
    assert facts == [
        "stopped by width", "compile 1.25 s to 1.50 s", "temp memory 2.00 MB", "load of other processes in 1 of 4 turns",
        "error 3e-07 of at most 1e-05",
    ]  # fmt: skip


def test_of_many_samples_every_nth_is_drawn_and_the_panel_says_so():
    cases = {f"row{number}": {"": [record(seconds=[1e-3] * 9_999 + [2e-3])]} for number in range(3)}
    panels = page.case_panels(cases)
    assert all("one of every 3 samples is drawn" in panel["facts"] for panel in panels.values())
    assert sum(len(times) for panel in panels.values() for _, times, _ in panel["samples"]) == 3 * 3_334
    few = page.case_panels({"row0": cases["row0"]})["row0"]
    assert few["step"] == 1 and len(few["samples"][0][1]) == 10_000 and "drawn" not in few["facts"][0]


def test_failed_replicates_of_a_case_have_different_names(tmp_path):
    failed = [record(1, status="failed", reason="timeout", replicate=i) for i in range(3)]
    study = findings.read(made_up.write(tmp_path / "made", failed))
    (table,) = [table for table in report_tables.folded_tables(study) if table.anchor == "unmeasured"]
    assert [row[0].partition(" devices=1")[2] for row in table.rows] == ["", " replicate 2", " replicate 3"]
