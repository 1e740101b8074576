"""Tests of the files of a report and of the sentences and tables in them, for folders with known content."""

import csv
import io
import re

import pytest

from scaling.analysis import answers, findings
from scaling.core.case import to_dict
from scaling.core.record import Writer
from scaling.report import export, proposal, terminal
from scaling.report import tables as report_tables
from scaling.results.store import write_json
from tests.support import reports
from tests.support.records import record

NASTY = '<script>alert("x")</script> a|b\nsecond line & $5 more'


@pytest.fixture
def folder(tmp_path):
    """Return two modes and sizes on one and two devices, with a failed, a skipped, an oversubscribed and a retried case."""
    records = [
        record(d, 8.0 / d, mode=m, points=p) for d in (1, 2) for m in ("jacfwd", "jacrev") for p in (12, 24)
    ]
    records += [
        record(4, 1.0, cores=[0]),
        record(4, status="failed", reason="wrong_answer", text=NASTY, mode="jacrev"),
        record(4, status="skipped", reason="too_large", text="it needs 5 GB", mode="linearize"),
        record(1, status="failed", reason="killed", started_at="2026-01-01T00:00:00Z"),
        record(1, 8.0, started_at="2026-01-02T00:00:00Z", attempt=2),
    ]
    return write_study(tmp_path, records, name="<b>study</b>")


def write_study(path, records, name="made up", scaling=("strong",), missing=()):
    writer = Writer(path)
    for row in records:
        writer.append(row)
    cases = [{"key": case.key, "case": to_dict(case)} for case in [*(row.case for row in records), *missing]]
    write_json(path / "study.json", {"study": name, "scaling": list(scaling), "cases": cases})
    return path


def page_text(path):
    return reports.write_report(path).read_text()


def rows_of(path):
    (records, *_) = export.write_exports(path, ["csv"])["csv"]
    return list(csv.DictReader(io.StringIO(records.read_text())))


def test_report_writes_its_two_files(folder):
    assert reports.write_report(folder) == folder / "report" / "index.html"
    assert {path.name for path in (folder / "report").iterdir()} == {"index.html", "table.md"}


def test_figures_are_exported_on_request(folder):
    written = export.write_exports(folder, ["svg", "png", "pdf"])
    paths = [path for paths in written.values() for path in paths]
    names = {path.stem for path in paths}
    assert {"scaling-strong", "crossover", "size"} <= names and len(paths) == 3 * len(names)
    starts = {"svg": b"<svg", "png": b"\x89PNG", "pdf": b"%PDF"}
    assert all(path.read_bytes().startswith(starts[path.suffix[1:]]) for path in paths)


def test_repeated_reports_are_byte_identical(folder):
    reports.write_report(folder)
    first = {path.name: path.read_bytes() for path in (folder / "report").iterdir()}
    reports.write_report(folder)
    assert first == {path.name: path.read_bytes() for path in (folder / "report").iterdir()}


def test_a_report_and_a_proposal_delete_no_file_of_the_user(folder):
    files = [folder / "report" / name for name in ("size.png", "plan-b.svg", "proposal/size.png")]
    files[-1].parent.mkdir(parents=True)
    for path in files:
        path.write_bytes(b"of the user")
    reports.write_report(folder)
    proposal.write_proposal(folder, findings.read(folder))
    assert [path.read_bytes() for path in files] == [b"of the user"] * len(files)


def test_the_inputs_of_a_report_have_a_digest_whatever_bytes_are_in_the_folder_name(folder):
    renamed = folder.rename(folder.parent / "caf\udce9")
    assert terminal.inputs_digest(renamed) == terminal.inputs_digest(renamed)


def test_text_of_a_record_is_escaped(folder):
    text = page_text(folder)
    assert "<script>alert" not in text and "&lt;script&gt;alert" in text and "<b>study" not in text
    lines = (folder / "report" / "table.md").read_text()
    assert r"a\|b second line &amp; \$5 more" in lines and "<script" not in lines


def test_title_of_the_study_is_the_heading(tmp_path):
    write_study(tmp_path, [record()])
    write_json(tmp_path / "study.json", {"study": "made up", "title": "One more device"})
    assert "<h1>made up: One more device</h1>" in page_text(tmp_path)


def test_names_of_a_user_workload_are_escaped_in_figures(tmp_path):
    records = [
        record(d, 8.0 / d, workload="a$b", target="x<y>&z$", points=p) for d in (1, 2) for p in (12, 24)
    ]
    text = page_text(write_study(tmp_path, records))
    assert "<y>" not in text
    export.write_exports(tmp_path, ["svg"])
    shown = (tmp_path / "export" / "size.svg").read_text()
    assert re.search(r"<text[^>]*>(<tspan[^>]*>)?a\$b x&lt;y&gt;&amp;z\$ by W<", shown)


def test_csv_has_a_row_for_each_case_of_any_status(folder):
    rows = rows_of(folder)
    assert len(rows) == 11
    assert sorted(row["status"] for row in rows) == ["failed"] + ["ok"] * 9 + ["skipped"]
    fast = next(row for row in rows if (row["devices"], row["mode"], row["points"]) == ("2", "jacrev", "24"))
    assert (float(fast["median"]), float(fast["speedup"]), float(fast["efficiency"])) == (4, 2, 1)
    assert next(row for row in rows if row["reason"] == "wrong_answer")["text"] == NASTY


def test_success_after_failed_attempts_counts_as_success(folder):
    sentences = answers.answer_sentences(findings.read(folder))
    assert "1 case failed: 1 wrong_answer: the result differs from the reference." in sentences
    assert not any("killed" in line for line in sentences) and "killed" not in page_text(folder)


def test_indistinguishable_modes_are_reported_as_such(tmp_path):
    wide = [1.3, 1.0, 1.6, 1.1, 1.5, 1.2, 1.4]
    folder = write_study(
        tmp_path, [record(seconds=wide), record(seconds=[s + 0.01 for s in wide], mode="jacrev")]
    )
    assert "not distinguished" in answers.answer_sentences(findings.read(folder))[0]
    [row] = report_tables.answer_table(findings.read(folder)).rows
    assert row[-2].startswith("1.01x") and row[-1] == "not distinguished"


def test_oversubscribed_record_is_marked_and_has_no_speedup(folder, tmp_path):
    assert any(
        "oversubscribed or unbound devices (1)" in line
        for line in answers.answer_sentences(findings.read(folder))
    )
    assert "[unbound or oversubscribed]" in page_text(folder)
    replicated = tmp_path / "twice"
    replicated.mkdir()
    page_text(
        write_study(replicated, [record(1, 8.0), record(2, 4.0), record(2, 2.0, replicate=1, cores=[0])])
    )
    assert [(row["honest"], row["speedup"]) for row in rows_of(replicated)] == [
        ("True", "1.0"),
        ("True", "2.0"),
        ("False", ""),
    ]


def test_several_environments_are_reported_and_kept_apart(tmp_path):
    folder = write_study(tmp_path, [record(1, 8.0), record(2, 4.0, digest="two")])
    sentences = answers.answer_sentences(findings.read(folder))
    assert any("mixed environments (1)" in line for line in sentences)
    assert not any("speed-up" in line for line in sentences)
    table = report_tables.environment_table(findings.read(folder))
    assert table.columns == ("environment", "one", "two") and ("records", "1", "1") in table.rows


def test_a_folder_without_measurements_says_so(tmp_path):
    assert "Nothing has been measured" in page_text(tmp_path)
    folder = write_study(tmp_path, [record(status="failed", reason="error", text="it broke")])
    assert "Nothing has been measured" in answers.answer_sentences(findings.read(folder))[0]
    assert "it broke" in page_text(folder)
    assert not report_tables.answer_table(findings.read(folder)).rows


def test_damaged_lines_and_missing_records_are_listed(tmp_path):
    folder = write_study(tmp_path, [record()], missing=[record(points=99).case])
    (folder / "torn.jsonl").write_text('{"half')
    text = page_text(folder)
    assert ">Damaged lines</h2>".lstrip(">") in text and "torn.jsonl:1" in text and "points=99" in text
    problems = "missing cases (1), damaged lines (1)"
    assert any(problems in line for line in answers.answer_sentences(findings.read(folder)))


def test_markdown_links_and_images_in_names_are_escaped(tmp_path):
    write_study(
        tmp_path,
        [record(1, 1.0, workload="![x](http://nowhere.invalid/x)")],
        name="[y](http://nowhere.invalid/y)",
    )
    reports.write_report(tmp_path)
    text = (tmp_path / "report" / "table.md").read_text()
    assert r"\!\[x\](http" in text and r"\[y\](http" in text and not re.search(r"(?<!\\)\]\(", text)
