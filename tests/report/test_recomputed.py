"""Tests that recompute the numbers in the tables of a report with NumPy from the JSON lines of the records.

The intervals of several processes and of ratios are resampled, so only the intervals of single processes are recomputed.
"""

import json
import re
from html import unescape

import numpy as np
import pytest

from tests.support import reports
from tests.support.paths import TOP

UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
NUMBER = r"([\d.,]+(?:e-?\d+)?)"


@pytest.fixture(scope="module")
def lines():
    """Return a dict from the key of a case to its records (parsed lines), the newest of each process, of a real folder."""
    newest = {}
    for path in FOLDER.glob("*.jsonl"):
        for line in map(json.loads, path.read_text().splitlines()):
            if line["status"] == "ok" and line["kind"] == "case":
                process = line["key"], line["environment"]["digest"], line["replicate"]
                if process not in newest or newest[process]["started_at"] < line["started_at"]:
                    newest[process] = line
    cases = {}
    for line in newest.values():
        cases.setdefault(line["key"], []).append(line)
    return cases


FOLDER = TOP / "tests" / "golden" / "redesign" / "results" / "everything"


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Return the tables of the page: a dict from anchor to rows (anchor of the row, dict from column to text)."""

    folder = tmp_path_factory.mktemp("recomputed") / "everything"
    folder.mkdir()
    for path in FOLDER.iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    text = reports.write_report(folder).read_text()
    result = {}
    for anchor, body in re.findall(r'<table data-anchor="([^"]+)">(.*?)</table>', text, re.DOTALL):
        columns = re.findall(r'<th scope="col">([^<]*)</th>', body)
        rows = re.findall(r'<tr id="([^"]+)"><th scope="row"><a[^>]*>([^<]*)</a></th>(.*?)</tr>', body)
        result[anchor] = [
            (
                row_anchor,
                dict(
                    zip(columns, map(plain, [first, *re.findall(r"<td[^>]*>(.*?)</td>", rest)]), strict=True)
                ),
            )
            for row_anchor, first, rest in rows
        ]
    return result


def plain(text):
    return unescape(text).replace("\N{NO-BREAK SPACE}", " ")


def mean_time(lines):
    """Return the geometric mean of the medians of the processes."""
    return float(np.exp(np.mean([np.log(np.median(line["seconds"])) for line in lines])))


def seconds(text):
    """Return the time and, if present, the ends of its interval in a cell, in seconds."""
    value, unit, low, high = re.match(rf"{NUMBER} (\w+)(?: \({NUMBER} to {NUMBER}\))?", text).groups()
    return [float(number.replace(",", "")) * UNITS[unit] for number in (value, low, high) if number]


def rank_interval(samples):
    """Return the 95 % interval of a median: the order statistics whose two tails together have at most 5 % probability."""
    ordered, n = np.sort(samples), len(samples)
    pascal = np.array([1.0])
    for _ in range(n):
        pascal = np.convolve(pascal, [0.5, 0.5])
    tails = np.cumsum(pascal)
    rank = max(at for at in range(n) if tails[at] <= 0.025)
    return ordered[rank], ordered[n - 1 - rank]


def key_of(anchor):
    return anchor.split("-")[1]


def test_every_time_is_the_geometric_mean_over_processes_of_the_median_of_their_samples(tables, lines):
    assert len(tables["measured"]) == len(lines) > 30
    for anchor, row in tables["measured"]:
        assert seconds(row["time"])[0] == pytest.approx(mean_time(lines[key_of(anchor)]), rel=6e-3), row
        assert int(row["samples"]) == sum(len(line["seconds"]) for line in lines[key_of(anchor)])


def test_interval_of_one_process_is_made_of_order_statistics(tables, lines):
    checked = 0
    for anchor, row in tables["measured"]:
        processes = lines[key_of(anchor)]
        if len(processes) == 1:
            _, low, high = seconds(row["time"])
            assert (low, high) == pytest.approx(rank_interval(processes[0]["seconds"]), rel=6e-3, abs=6e-9), (
                row
            )
            checked += 1
    assert checked > 20


def without_fields(case, *names):
    return json.dumps({name: value for name, value in case.items() if name not in names}, sort_keys=True)


def value_of(cell):
    """Return the number at the beginning of a cell, or None if it has none."""
    match = re.match(NUMBER, cell)
    return float(match[1]) if match else None


def test_speedup_and_efficiency_are_ratios_of_times(tables, lines):
    checked = 0
    for anchor, row in tables["measured"]:
        for kind, cell, efficiency in speedups_and_efficiencies(row):
            case = lines[key_of(anchor)][0]["case"]
            seconds_of_case, base = mean_time(lines[key_of(anchor)]), baseline(case, kind, lines)
            device_ratio = case["devices"] / base["devices"]
            expected = base["seconds"] / seconds_of_case * (device_ratio if kind == "weak" else 1)
            for number, value in ((cell, expected), (efficiency, expected / device_ratio)):
                if value_of(number) is not None:
                    assert value_of(number) == pytest.approx(value, rel=6e-3, abs=6e-3), (row, kind)
                    checked += 1
    assert checked > 30


def speedups_and_efficiencies(row):
    """Return (kind of scaling, speed-up, efficiency) for each kind in a row, as text."""
    result = []
    for speedup, efficiency in zip(row["speed-up"].split(", "), row["efficiency"].split(", "), strict=True):
        weak = speedup.startswith("weak ")
        if speedup:
            words = (speedup.removeprefix("weak "), efficiency.removeprefix("weak "))
            result.append(("weak" if weak else "strong", *words))
    return result


def baseline(case, kind, lines):
    """Return the smallest device count of the same program and its time; weak scaling keeps the points per device."""
    points = ("points",) if kind == "weak" else ()
    seconds_by_devices = {}
    for processes in lines.values():
        other = processes[0]["case"]
        same_program = without_fields(other, "devices", "mesh", *points) == without_fields(
            case, "devices", "mesh", *points
        )
        same_points_per_device = other["points"] * case["devices"] == case["points"] * other["devices"]
        if same_program and (kind == "strong" or same_points_per_device):
            seconds_by_devices.setdefault(other["devices"], []).append(mean_time(processes))
    return {"devices": min(seconds_by_devices), "seconds": min(seconds_by_devices[min(seconds_by_devices)])}


def test_speedup_over_one_device_is_against_the_fastest_jit_program(tables, lines):
    names = (
        "workload", "target", "variant", "sizes", "points", "wrt", "dtype", "precision", "data_seed", "reduce",
    )  # fmt: skip
    checked = 0
    for anchor, row in tables["measured"]:
        case = lines[key_of(anchor)][0]["case"]
        if (shown := value_of(row["one-device program"])) is None:
            continue
        jit_seconds = [
            mean_time(processes)
            for processes in lines.values()
            for other in [processes[0]["case"]]
            if other["api"] == "jit" and other["devices"] == 1 and other["mode"] not in NO_AD_MODES
            and all(other[name] == case[name] for name in names)
        ]  # fmt: skip
        assert shown == pytest.approx(min(jit_seconds) / mean_time(lines[key_of(anchor)]), rel=6e-3, abs=6e-3)
        checked += 1
    assert checked > 3


NO_AD_MODES = ("analytic", "analytic_vmap", "value")


def test_ratio_in_the_answer_is_that_of_two_times(tables, lines):
    times = sorted(mean_time(processes) for processes in lines.values())
    checked = 0
    for _, row in tables["fastest"] + tables["each"]:
        first = seconds(row["time"])[0]
        assert any(first == pytest.approx(time, rel=6e-3) for time in times)
        if row["runner-up"] and (shown := value_of(row["ratio"])) is not None:
            second = seconds(row["runner-up"].rpartition(", ")[2])[0]
            assert shown == pytest.approx(second / first, rel=0.02)
            checked += 1
    assert checked > 3
