"""Tests of examples/sources: published times of four workloads and those of a results folder, and the table of the page."""

import pytest

from examples.pages import DOCS, data_path, read_lines
from examples.sources import table
from scaling.analysis.findings import read
from scaling.core.case import FIELDS, MODES
from scaling.core.record import Writer
from scaling.study import preflight
from tests.support.composed import compose
from tests.support.records import record


def poisson(**fields):
    case = {
        "workload": "poisson",
        "target": "gradient",
        "wrt": "lam",
        "points": 1000,
        "sizes": {},
        "batch": "whole",
        "api": "jit",
    }
    return record(**case | {"mode": "jacrev", "dtype": "float32"} | fields)


def published_table(tmp_path, *records):
    writer = Writer(tmp_path)
    for item in records:
        writer.append(item)
    text = table.format_table(table.measured_lines(read(tmp_path)))
    rows = [tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in text.splitlines()[2:]]
    return {row[:3]: row[3:] for row in rows}


def test_published_times_are_listed_with_the_measured_times(tmp_path):
    rows = published_table(tmp_path, poisson(seconds=18.02e-6), poisson(seconds=0.0119, jit=False))
    assert rows["poisson, N = 1000", "gradient", "JAX compiled"] == ("9.01 µs", "18.0 µs", "2.00x")
    assert rows["poisson, N = 1000", "gradient", "JAX eager"] == ("11.9 ms", "11.9 ms", "1.00x")


@pytest.mark.parametrize(
    "fields", [{"remat": "dots_saveable"}, {"block": 8}, {"storage": "host"}, {"reduce": "gram"}], ids=str
)
def test_settings_that_were_not_published_do_not_match_published_rows(tmp_path, fields):
    rows = published_table(tmp_path, poisson(seconds=1.0, **fields))
    assert rows["poisson, N = 1000", "gradient", "JAX compiled"][1:] == ("not in this study", "")
    rows = published_table(tmp_path, poisson(seconds=18.02e-6))
    assert rows["poisson, N = 1000", "gradient", "JAX compiled"][1] == "18.0 µs"


def test_published_ratios_and_first_calls_are_compared_in_kind(tmp_path):
    loss = poisson(seconds=4e-6, target="loss", mode="value", wrt=None)
    rbf = record(
        seconds=1e-4, workload="rbf", variant="source", target="grad", wrt="x", points=1, sizes={"m": 100, "d": 1}, api="jit",
        compile_seconds=0.05, first_seconds=0.000636,
    )  # fmt: skip
    rows = published_table(tmp_path, poisson(seconds=2e-6), loss, rbf)
    assert rows["poisson, N = 1000", "gradient", "JAX / the loss"][1] == "0.50x"
    assert rows["rbf, n = 100", "grad, first call", "JAX jacfwd"] == ("50.6 ms", "50.6 ms", "1.00x")


def test_rows_without_a_time_state_the_reason_and_systems_that_cannot_run_have_no_row(tmp_path):
    skipped = poisson(status="skipped", reason="too_large", text="needs 9 GB, has 8 GB", jit=False)
    rows = published_table(tmp_path, poisson(seconds=1e-5), skipped)
    assert rows["poisson, N = 1000", "gradient", "JAX eager"][1] == "too large"
    assert ("poisson, N = 1000", "gradient", "Zygote, broadcast") not in rows
    assert rows["rbf, n = 100", "kernel", "JAX"][1] == "not in this study"


def test_published_ratio_never_mixes_environments_sizes_or_oversubscribed_runs(tmp_path):
    loss = {"target": "loss", "mode": "value", "wrt": None}
    rows = published_table(
        tmp_path, poisson(seconds=2e-6, digest="one"), poisson(seconds=4e-6, digest="two", **loss),
        poisson(seconds=9e-6, digest="three", cores=[0, 1]), poisson(seconds=8e-6, digest="three", chunk=16),
    )  # fmt: skip
    assert rows["poisson, N = 1000", "gradient", "JAX / the loss"][1] == "not in this study"
    assert rows["poisson, N = 1000", "gradient", "JAX compiled"][1] == "2.00 µs"


def test_the_table_of_the_page_is_that_of_its_data():
    lines, page = read_lines(data_path("sources")), (DOCS / "sources.md").read_text()
    assert f"\n{table.format_table(lines)}\n".join(table.MARKERS) in page


def test_published_rows_have_valid_case_fields_and_modes():
    for row in table.read_published():
        for fields in (row.get("case", {}), row.get("over", {})):
            assert set(fields) <= set(FIELDS)
            assert fields.get("mode", "value") in MODES
        assert "case" not in row or bool(row.get("times")) == ("over" in row)
        assert row.get("times") or row["published"]
        assert "claim" not in row or "case" in row


@pytest.mark.thorough
def test_published_rows_all_match_a_case_of_the_sources_study():
    cells = compose("study=sources")
    answers = preflight.check_cells(cells, 600, lambda done, total: None)
    cases = [result.case for result in preflight.results_from_answers(cells, answers)]
    for row in table.read_published():
        for fields in (row[name] for name in ("case", "over") if name in row):
            assert any(table.matches(case, fields) for case in cases), row
