"""Tests of exports as read by other programs: CSV and Parquet by pandas, and the Extra-P format by Extra-P."""

import csv
import dataclasses
import importlib.util
import math
import os
import re
import subprocess

import numpy as np
import pandas
import pytest

from scaling.analysis import findings
from scaling.contrib import extrap
from scaling.core.case import Refusal
from scaling.report import export
from tests.support import made_up, planned
from tests.support.paths import TOP

EXTRAP = TOP / ".venv-extrap" / "bin" / "extrap"
needs_extrap = pytest.mark.skipif(
    not EXTRAP.exists(), reason="Extra-P is not installed: scripts/extrap makes .venv-extrap"
)
TABLES = ("records", "curves", "samples")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a made-up study with failures, skips, machine peaks and texts with markup."""
    records = [
        record for record in made_up.study(600) if record.case.workload in ("rbf", "residual", "ceiling")
    ]
    return made_up.write(tmp_path_factory.mktemp("study"), records)


@pytest.fixture(scope="module")
def exported(folder, tmp_path_factory):
    """Return a folder with the study in all tabular formats."""
    output = tmp_path_factory.mktemp("export")
    export.write_exports(folder, ["csv", "parquet", "extrap"], output)
    return output


def formula_records(
    workload="rbf", modes=("jacfwd",), devices=(1, 2, 4, 8, 16), sizes=range(5), seconds=None, **fields
):
    """Yield records whose times are an exact formula, `seconds`, of the size and the number of devices."""
    for mode in modes:
        for index in sizes:
            for count in devices:
                case = made_up.case_of(workload, mode, index, count, **fields)
                (size,) = (value for name, value in case.sizes.items() if name != "o")
                times = [seconds(size, count) * factor for factor in (0.99, 1.0, 1.0, 1.0, 1.0, 1.0, 1.01)]
                yield made_up.record(
                    np.random.default_rng(0), case, seconds=times, seconds_min=times, turns=[7]
                )


@pytest.mark.parametrize("name", TABLES)
def test_pandas_reads_equal_tables_from_csv_and_parquet(exported, name):
    csv_table, parquet_table = (
        pandas.read_csv(exported / f"{name}.csv"),
        pandas.read_parquet(exported / f"{name}.parquet"),
    )
    assert len(csv_table) == len(parquet_table) > 0
    assert list(parquet_table) == list(csv_table)
    numbers = set(csv_table.select_dtypes("number")) & set(parquet_table.select_dtypes("number"))
    assert len(numbers) >= 4
    for column in numbers:
        assert np.array_equal(
            csv_table[column].astype(float), parquet_table[column].astype(float), equal_nan=True
        ), column


def test_numbers_keep_all_digits(folder, exported):
    study = findings.read(folder)
    table = pandas.read_parquet(exported / "samples.parquet")
    assert table["seconds"].tolist() == [second for record in study.records for second in record.seconds]
    with (exported / "samples.csv").open() as file:
        assert [float(row["seconds"]) for row in csv.DictReader(file)] == table["seconds"].tolist()


def test_tables_have_one_row_per_record_and_per_device_count_of_a_curve(folder, exported):
    study = findings.read(folder)
    records, curves = (pandas.read_csv(exported / f"{name}.csv") for name in ("records", "curves"))
    assert sorted(records["status"]) == sorted(record.status for record in study.records)
    assert len(curves) == sum(len(curve.points) for curve in study.curves)
    assert set(curves["kind"]) == {"strong", "weak"}
    best = curves.loc[curves["speedup"].idxmax()]
    ideal = best["devices"] / best["baseline_devices"]
    assert math.isclose(best["efficiency"], best["speedup"] / ideal)
    assert best["speedup_low"] <= best["speedup"]


def test_tables_can_be_joined_by_key_and_environment(exported):
    records, samples, curves = (
        pandas.read_parquet(exported / f"{name}.parquet") for name in ("records", "samples", "curves")
    )
    joined = samples.merge(records, on=["key", "environment", "replicate"])
    assert len(joined) == len(samples) and set(joined["status"]) == {"ok"}
    assert set(zip(curves["key"], curves["environment"], strict=True)) <= set(
        zip(records["key"], records["environment"], strict=True)
    )
    medians = joined.groupby(["key", "environment", "replicate"])["seconds"].median()
    exported_medians = records[records["status"] == "ok"].set_index(["key", "environment", "replicate"])[
        "median"
    ]
    assert np.allclose(medians.sort_index(), exported_medians.sort_index(), rtol=1e-15)


def test_parquet_columns_are_typed_even_if_empty(exported):
    from pyarrow import parquet

    types = {field.name: str(field.type) for field in parquet.read_schema(exported / "records.parquet")}
    expected = {"devices": "int64", "jit": "bool", "flops": "double", "slowest_rank": "int64", "chunk": "int64", "mode": "string",
                "median": "double", "kind": "string", "sizes.m": "int64"}  # fmt: skip
    assert {name: types[name].replace("large_", "") for name in expected} == expected


def test_data_seed_beyond_64_bits_is_kept(tmp_path, make_record):
    made_up.write(tmp_path, [make_record(data_seed=2**70), make_record()])
    export.write_exports(tmp_path, ["csv", "parquet"])
    assert set(pandas.read_parquet(tmp_path / "export" / "records.parquet")["data_seed"]) == {"0", str(2**70)}
    assert str(2**70) in (tmp_path / "export" / "records.csv").read_text()


def test_automatic_blocks_and_colors_have_their_own_columns(tmp_path, make_record):
    probes = [{"block": 4, "chunk": None, "storage": "device", "bytes": 9}] * 3
    blocks = {"block": 2, "chunk": None, "storage": "host", "limit_bytes": 10**9, "probes": probes}
    auto = make_record(
        chunk="auto", blocks=blocks, colors={"columns": 9, "rows": 4}, nonzeros=1280, padding=0.125
    )
    made_up.write(
        tmp_path, [auto, dataclasses.replace(make_record(chunk=8, block=3), block="turns"), make_record()]
    )
    export.write_exports(tmp_path, ["csv", "parquet"])
    table = pandas.read_parquet(tmp_path / "export" / "records.parquet").set_index("chunk")
    row = table.loc["auto"]
    assert (row["blocks.block"], row["blocks.storage"]) == (2, "host")
    assert (row["colors.columns"], row["colors.rows"], row["nonzeros"], row["padding"]) == (9, 4, 1280, 0.125)
    assert pandas.isna(row["blocks.chunk"]) and pandas.isna(table.loc["8", "blocks.block"])
    assert (table.loc["8", "case.block"], table.loc["8", "block"]) == (3, "turns")
    assert pandas.isna(row["block"])
    csv_table = pandas.read_csv(tmp_path / "export" / "records.csv")
    assert set(csv_table["chunk"].dropna()) == {"auto", "8"}


def test_nested_values_that_are_unknown_are_omitted(tmp_path, make_record):
    made_up.write(tmp_path, [make_record(blocks={"block": None}, colors={"columns": None})])
    export.write_exports(tmp_path, ["parquet"])
    (row,) = pandas.read_parquet(tmp_path / "export" / "records.parquet").to_dict("records")
    assert all(pandas.isna(row[name]) for name in ("blocks.block", "blocks.storage", "colors.columns"))


def test_multiline_text_of_a_record_is_one_cell(folder, exported):
    texts = pandas.read_csv(exported / "records.csv")["text"].dropna()
    assert made_up.NASTY in set(texts)
    assert made_up.NASTY in set(pandas.read_parquet(exported / "records.parquet")["text"])


def test_parquet_without_pyarrow_is_rejected_with_the_install_command(folder, tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "pyarrow" else find(name, *rest)
    )
    with pytest.raises(Refusal, match="pip install"):
        export.write_exports(folder, ["csv", "parquet"], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_an_export_replaces_files_of_the_same_names_and_keeps_others(tmp_path):
    study, output = tmp_path / "study", tmp_path / "out"
    rbf = [*formula_records(seconds=lambda m, d: m / d)]
    linear = formula_records("linear", seconds=lambda p, d: p / d)
    (first,) = export.write_exports(made_up.write(study, rbf), ["extrap"], output)["extrap"]
    (output / "extrap" / "mine.txt").write_text("a file of the user")
    second = export.write_exports(made_up.write(study, [*linear, *rbf]), ["extrap"], output)["extrap"]
    assert len(second) == 2 and first in second
    assert {*output.rglob("*.*")} == {*second, output / "extrap" / "mine.txt"}


def test_failed_export_keeps_the_earlier_files(folder, tmp_path, monkeypatch):
    def fail(descriptor):
        raise OSError(28, "No space left on device")

    export.write_exports(folder, ["parquet"], tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(os, "fsync", fail)  # after the content is written
    with pytest.raises(OSError, match="No space left"):
        export.write_exports(folder, ["parquet"], tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


# Extra-P.


def fit_models(path, several_parameters):
    """Run Extra-P on a file and return a dict from (region, metric) to the model that it finds."""
    option = "allow_negative_exponents=True"
    options = ["#spm=Default", f"#spo={option}"] if several_parameters else [option]
    arguments = [
        "--text",
        "--measure",
        "median",
        "--disable-progress",
        "--print",
        "{callpath} | {metric} | {model}",
        str(path),
    ]
    result = subprocess.run(
        [EXTRAP, *arguments, "--options", *options], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    lines = [line.split(" | ") for line in result.stdout.splitlines() if line.count(" | ") == 2]
    return {(region, metric): model for region, metric, model in lines}


@pytest.mark.thorough
@needs_extrap
def test_extrap_recovers_the_scaling_law_in_devices_and_size(tmp_path):
    records = [
        *formula_records(modes=("jacfwd",), seconds=lambda m, d: 1e-9 * m**2 / d),
        *formula_records(modes=("jacrev",), seconds=lambda m, d: 1e-6 * m / d),
    ]
    paths = export.write_exports(made_up.write(tmp_path, records), ["extrap"])["extrap"]
    models = {key: model for path in paths for key, model in fit_models(path, True).items()}
    assert re.search(
        r"devices\^\(-1\) \* m\^\(2\)$", models["jacfwd (vmap), shard_map, points split", "time"]
    )
    assert re.search(
        r"devices\^\(-1\) \* m\^\(1\)$", models["jacrev (vmap), shard_map, points split", "time"]
    )
    assert ("jacfwd (vmap), shard_map, points split", "flops") in models


@pytest.mark.thorough
@needs_extrap
def test_extrap_reads_every_file_of_a_study_with_gaps(exported):
    paths = sorted((exported / "extrap").glob("*.txt"))
    assert len(paths) > 2
    for path in paths:
        models = fit_models(path, several_parameters=path.read_text().count("PARAMETER") > 1)
        regions = re.findall(r"^REGION (.*)$", path.read_text(), re.MULTILINE)
        assert {region for region, metric in models if metric == "time"} == set(regions)


def points_of(text):
    """Return the coordinates in the text of an Extra-P file, such as ["(1 64)", "(2 64)"]."""
    return re.findall(r"\(.*?\)|\d+", re.search("^POINTS (.*)$", text, re.MULTILINE)[1])


def test_each_program_has_its_own_file(tmp_path):
    records = [
        *formula_records(modes=("jacfwd", "jacrev"), seconds=lambda m, d: m / d),
        *formula_records(modes=("linearize",), sizes=range(4), seconds=lambda m, d: m / d),
    ]
    study = findings.read(made_up.write(tmp_path, records))
    texts = extrap.format_experiments(study).values()
    assert [len(points_of(text)) for text in texts] == [25, 25, 20]
    regions = [re.findall(r"^REGION (\w+)", text, re.MULTILINE) for text in texts]
    assert regions == [["jacfwd"], ["jacrev"], ["linearize"]]


def test_sizes_that_grow_together_are_one_parameter(tmp_path):
    draw = np.random.default_rng(0)
    weak = [made_up.record(draw, made_up.case_of("rbf", "jacfwd", 1, d, weak=True)) for d in (1, 2, 4)]
    (text,) = extrap.format_experiments(findings.read(made_up.write(tmp_path, weak))).values()
    assert text.count("PARAMETER") == 1 and points_of(text) == ["1", "2", "4"]
    assert "Parameters: devices (points with it). Constants: " in text


def test_environments_have_separate_files_and_oversubscribed_records_none(tmp_path, make_record):
    separate = [make_record(devices=d, digest=digest) for d in (1, 2) for digest in ("one", "two")]
    oversubscribed = [make_record(devices=4, digest="one", environment={"cores": [0]})]
    study = findings.read(made_up.write(tmp_path, separate + oversubscribed, scaling=["strong"]))
    texts = extrap.format_experiments(study).values()
    assert {re.search(r"environment (\w+):", text)[1] for text in texts} == {"one", "two"}
    assert [points_of(text) for text in texts] == [["1", "2"]] * 2


def test_names_cannot_break_lines_or_form_call_paths(tmp_path, make_record):
    nasty = "a->b\nDATA 1 2\tµ"
    records = [
        make_record(devices=d, formulation=nasty, workload=nasty, sizes={nasty: size})
        for d in (1, 2)
        for size in (3, 4)
    ]
    (path,) = export.write_exports(made_up.write(tmp_path, records), ["extrap"])["extrap"]
    lines = path.read_text("ascii").splitlines()
    assert [line.split()[0] for line in lines if line and line[0] != "#"] == ["PARAMETER"] * 2 + [
        "POINTS",
        "REGION",
        "METRIC",
    ] + ["DATA"] * 4
    assert "->" not in "".join(lines)
    assert re.fullmatch(r"PARAMETER \w+", lines[lines.index("PARAMETER devices") + 1])


BAD_OPTIONS = {
    "an unknown format": (
        ["--format", "csv,parket"],
        "unknown format 'parket': choose from csv, parquet, extrap, svg, png, pdf; did you mean 'parquet'?",
    ),
    "a file in place of a folder": (
        ["--output", "file"],
        "cannot write to file: File exists; give another folder with --output",
    ),
    "a name that is too long": (["--output", "a" * 300], "File name too long; give another folder with"),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_bad_options_give_one_line_and_exit_status_2_and_write_nothing(
    name, folder, scaling_command, tmp_path
):
    options, message = BAD_OPTIONS[name]
    (tmp_path / "file").touch()
    result = scaling_command(["export", str(folder), *options])
    assert result.returncode == 2 and message in result.stderr and len(result.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and not (folder / "export").exists()


def test_folder_without_records_cannot_be_exported(tmp_path):
    with pytest.raises(Refusal, match="no record to export"):
        export.write_exports(made_up.write(tmp_path, []), ["csv"])
    (tmp_path / "damaged.jsonl").write_text('{"half\n')
    with pytest.raises(Refusal, match=r"no record to export.*ignored: 1 damaged line.*damaged.jsonl:1"):
        export.write_exports(tmp_path, ["csv"])


def test_plans_alone_have_no_table_of_records_with_headers_only(tmp_path):
    folder = made_up.write(tmp_path, [planned.plan(1e-3, devices) for devices in (1, 2)], None, ["strong"])
    with pytest.raises(
        Refusal, match="no table: nothing was measured; `scaling report` shows the planned cases"
    ):
        export.write_exports(folder, ["csv", "parquet"])
    assert not (folder / "export").exists()


def test_a_format_without_content_is_named_in_one_line(tmp_path, make_record, scaling_command):
    folder = made_up.write(tmp_path / "made", [make_record("failed", reason="error")])
    for name in ("svg", "extrap"):
        done = scaling_command(["export", str(folder), "--format", name])
        assert done.returncode == 2 and f"nothing to show as {name}: no times" in done.stderr
        assert not (folder / "export").exists()
    done = scaling_command(["export", str(folder), "--format", "csv,png"])
    assert done.returncode == 0 and "nothing to show as png: " in done.stdout and "records.csv" in done.stdout
    assert export.describe_empty(["svg", "png", "pdf"]).startswith(
        "nothing to show as svg, png, pdf: no times"
    )


def test_command_writes_several_formats_and_lists_the_files(folder, scaling_command, tmp_path):
    result = scaling_command(["export", str(folder), "--format", "csv,extrap", "--output", "here"])
    assert result.returncode == 0, result.stderr
    assert {tmp_path / line for line in result.stdout.splitlines()} == set((tmp_path / "here").rglob("*.*"))
