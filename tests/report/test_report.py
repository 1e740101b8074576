"""What report.py writes about folders whose content is known beforehand."""

import csv
import io
import re

import pytest

from scaling.analysis import answer, findings
from scaling.core import formatting
from scaling.core.case import to_dict
from scaling.core.store import Writer, write_json
from scaling.report import export, page_tables, write_report
from scaling.report.figures import files
from tests.support.records import record, weak

NASTY = '<script>alert("x")</script> a|b\nsecond line & $5 more'


@pytest.fixture
def folder(tmp_path):
    """Two modes and sizes on one and two devices; one failure, one skip, one oversubscribed, one killed and then well."""
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
    return filled(tmp_path, records, name="<b>study</b>")


def filled(path, records, name="made up", scaling=("strong",), missing=()):
    writer = Writer(path)
    for one in records:
        writer.append(one)
    cases = [{"key": case.key, "case": to_dict(case)} for case in [*(one.case for one in records), *missing]]
    write_json(path / "study.json", {"study": name, "scaling": list(scaling), "cases": cases})
    return path


def page(path):
    return write_report.write_report(path).read_text()


def rows_of(path):
    return list(csv.DictReader(io.StringIO((path / "report" / "table.csv").read_text())))


def test_every_file_of_the_report_is_there(folder):
    assert write_report.write_report(folder) == folder / "report" / "index.html"
    assert {path.name for path in (folder / "report").iterdir()} == {"index.html", "table.md", "table.csv"}


def test_figures_are_files_on_request_and_those_of_other_records_go_away(folder):
    paths = export.write_exports(folder, ["svg", "png", "pdf"])
    names = {path.stem for path in paths}
    assert {"scaling-strong", "crossover", "size", "losses"} <= names and len(paths) == 3 * len(names)
    starts = {"svg": b"<svg", "png": b"\x89PNG", "pdf": b"%PDF"}
    assert all(path.read_bytes().startswith(starts[path.suffix[1:]]) for path in paths)
    for path in folder.glob("*.jsonl"):
        path.unlink()
    Writer(folder).append(record())
    assert export.write_exports(folder, ["png"]) == []
    assert {path.suffix for path in (folder / "export").iterdir()} == {".svg", ".pdf"}


def test_writing_again_gives_the_same_bytes(folder):
    write_report.write_report(folder)
    first = {path.name: path.read_bytes() for path in (folder / "report").iterdir()}
    write_report.write_report(folder)
    assert first == {path.name: path.read_bytes() for path in (folder / "report").iterdir()}


def test_pictures_for_a_dashboard_are_drawn_once_for_each_report(folder):
    files.draw_report_pictures(folder)
    assert not (folder / "report").exists()
    write_report.write_report(folder)
    files.draw_report_pictures(folder)
    first = {path.name: path.stat().st_mtime_ns for path in (folder / "report").glob("*.png")}
    assert {"scaling-strong.png", "size.png"} <= set(first)
    files.draw_report_pictures(folder)
    assert first == {path.name: path.stat().st_mtime_ns for path in (folder / "report").glob("*.png")}
    write_report.write_report(folder)
    assert not list((folder / "report").glob("*.png"))


def test_figures_of_an_earlier_version_go_away(folder):
    (folder / "report").mkdir()
    (folder / "report" / "size.png").write_bytes(b"old")
    (folder / "report" / "my.png").write_bytes(b"of the user")
    write_report.write_report(folder)
    names = {path.name for path in (folder / "report").iterdir()}
    assert names == {"index.html", "table.md", "table.csv", "my.png"}


def test_whatever_stands_in_a_record_is_escaped(folder):
    text = page(folder)
    assert "<script>alert" not in text and "&lt;script&gt;alert" in text and "<b>study" not in text
    lines = (folder / "report" / "table.md").read_text()
    assert r"a\|b second line &amp; \$5 more" in lines and "<script" not in lines


def test_the_title_of_the_study_stands_at_the_top(tmp_path):
    filled(tmp_path, [record()])
    write_json(tmp_path / "study.json", {"study": "made up", "title": "One more device"})
    assert "<h1>made up: One more device</h1>" in page(tmp_path)


def test_names_of_a_users_workload_are_safe_in_figures(tmp_path):
    records = [
        record(d, 8.0 / d, workload="a$b", target="x<y>&z$", points=p) for d in (1, 2) for p in (12, 24)
    ]
    text = page(filled(tmp_path, records))
    assert "<y>" not in text
    export.write_exports(tmp_path, ["svg"])
    shown = (tmp_path / "export" / "size.svg").read_text()
    assert re.search(r"<text[^>]*>(<tspan[^>]*>)?a\$b x&lt;y&gt;&amp;z\$ by W<", shown)


def test_the_csv_has_a_row_for_each_case_whatever_became_of_it(folder):
    write_report.write_report(folder)
    rows = rows_of(folder)
    assert len(rows) == 11
    assert sorted(row["status"] for row in rows) == ["failed"] + ["ok"] * 9 + ["skipped"]
    fast = next(row for row in rows if (row["devices"], row["mode"], row["points"]) == ("2", "jacrev", "24"))
    assert (
        float(fast["median"]),
        float(fast["speedup"]),
        float(fast["efficiency"]),
    ) == (4, 2, 1)
    assert next(row for row in rows if row["reason"] == "wrong_answer")["text"] == NASTY


def test_failed_attempts_and_then_a_success_count_as_one_success(folder):
    told = answer.answer_sentences(folder)
    assert "1 case failed: 1 wrong_answer: the result differs from the reference." in told
    assert not any("killed" in line for line in told) and "killed" not in page(folder)


def test_modes_that_cannot_be_told_apart_are_called_so(tmp_path):
    wide = [1.3, 1.0, 1.6, 1.1, 1.5, 1.2, 1.4]
    found = filled(tmp_path, [record(seconds=wide), record(seconds=[s + 0.01 for s in wide], mode="jacrev")])
    assert "not distinguished" in answer.answer_sentences(found)[0]
    assert answer.table_rows(found)[0][-1].startswith("not distinguished: 1.01x")


def test_a_dishonest_record_is_marked_and_gets_no_speedup(folder, tmp_path):
    assert any("1 case ran oversubscribed" in line for line in answer.answer_sentences(folder))
    assert "[oversubscribed]" in page(folder)
    twice = tmp_path / "twice"
    twice.mkdir()
    page(filled(twice, [record(1, 8.0), record(2, 4.0), record(2, 2.0, replicate=1, cores=[0])]))
    assert [(row["honest"], row["speedup"]) for row in rows_of(twice)] == [
        ("True", "1.0"),
        ("True", "2.0"),
        ("False", ""),
    ]


def test_more_than_one_environment_is_said_and_kept_apart(tmp_path):
    found = filled(tmp_path, [record(1, 8.0), record(2, 4.0, digest="two")])
    told = answer.answer_sentences(found)
    assert any("2 environments are in this folder (one, two)" in line for line in told)
    assert not any("speed-up" in line for line in told)
    table = page_tables.environment_table(findings.read(found))
    assert table.columns == ("environment", "one", "two") and ("records", "1", "1") in table.rows


def test_a_refused_weak_series_is_told_with_its_reason(tmp_path):
    found = filled(tmp_path, weak(((1e6, 1e3), (2e6, 1e3), (4e6, 1e3))), scaling=["weak"])
    assert any(
        line.startswith("Not weak scaling") and "flops per device are 1e+06" in line
        for line in answer.answer_sentences(found)
    )
    assert 'id="scaling-weak"' not in page(found)


def test_weak_scaling_is_drawn_where_it_holds(tmp_path):
    found = filled(tmp_path, weak(), scaling=["weak"])
    assert 'id="scaling-weak"' in page(found)


def test_a_folder_without_measurements_says_so(tmp_path):
    assert "Nothing has been measured" in page(tmp_path)
    found = filled(tmp_path, [record(status="failed", reason="error", text="it broke")])
    assert "Nothing has been measured" in answer.answer_sentences(found)[0] and "it broke" in page(found)
    assert answer.table_rows(found) == []


def test_damaged_lines_and_cases_without_a_record_are_named(tmp_path):
    found = filled(tmp_path, [record()], missing=[record(points=99).case])
    (found / "torn.jsonl").write_text('{"half')
    text = page(found)
    assert ">Damaged lines</h2>".lstrip(">") in text and "torn.jsonl:1" in text and "points=99" in text
    assert any("1 case of the study has no record yet" in line for line in answer.answer_sentences(found))


@pytest.mark.parametrize(
    "seconds, text",
    [(1.23e-5, "12.3 µs"), (0.9999e-3, "1.00 ms"), (0.0165, "16.5 ms"), (2.0, "2.00 s"), (3e-7, "300 ns"), (140.04, "140 s"),
     (9.999e-6, "10.0 µs"), (99.96e-3, "100 ms")],
)  # fmt: skip
def test_durations_are_written_in_units_that_suit_them(seconds, text):
    assert formatting.format_duration(seconds) == text


def test_ratios_are_written_with_their_interval():
    assert formatting.format_ratio(1.768, 1.7, 1.81) == "1.77x (1.70 to 1.81)"
    assert formatting.format_ratio(5700.0) == "5700x" and formatting.format_ratio(None) == ""


def test_a_name_that_is_a_picture_or_a_link_in_markdown_is_neither(tmp_path):
    filled(
        tmp_path,
        [record(1, 1.0, workload="![x](http://nowhere.invalid/x)")],
        name="[y](http://nowhere.invalid/y)",
    )
    write_report.write_report(tmp_path)
    text = (tmp_path / "report" / "table.md").read_text()
    assert r"\!\[x\](http" in text and r"\[y\](http" in text and not re.search(r"(?<!\\)\]\(", text)
