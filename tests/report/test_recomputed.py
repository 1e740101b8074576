"""Every number in the tables of a page is what NumPy makes of the JSON lines: times, intervals, ratios, speed-ups, efficiencies.

Intervals of several processes and of ratios are resampled, so that only that of one process is computed again.
"""

import json
import re
from html import unescape

import numpy as np
import pytest

from scaling.report import write_report
from tests.support.paths import TOP

UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
NUMBER = r"([\d.]+(?:e-?\d+)?)"


@pytest.fixture(scope="module")
def lines():
    """The newest line of each process of a real folder: (key, setting) -> lines."""
    newest = {}
    for path in FOLDER.glob("*.jsonl"):
        for line in map(json.loads, path.read_text().splitlines()):
            if line["status"] == "ok" and line["kind"] == "case":
                of = line["key"], line["environment"]["digest"], line["replicate"]
                if of not in newest or newest[of]["started_at"] < line["started_at"]:
                    newest[of] = line
    cases = {}
    for line in newest.values():
        cases.setdefault(line["key"], []).append(line)
    return cases


FOLDER = TOP / "tests" / "golden" / "redesign" / "results" / "everything"


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """The tables of its page: anchor -> rows as (anchor of the row, mapping from column to text)."""
    folder = tmp_path_factory.mktemp("recomputed") / "everything"
    folder.mkdir()
    for path in FOLDER.iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    text = write_report.write_report(folder).read_text()
    found = {}
    for anchor, body in re.findall(r'<table data-anchor="([^"]+)">(.*?)</table>', text, re.DOTALL):
        columns = re.findall(r'<th scope="col">([^<]*)</th>', body)
        rows = re.findall(r'<tr id="([^"]+)"><th scope="row"><a[^>]*>([^<]*)</a></th>(.*?)</tr>', body)
        found[anchor] = [
            (
                of,
                dict(
                    zip(
                        columns, map(plain, [first, *re.findall(r"<td[^>]*>([^<]*)</td>", rest)]), strict=True
                    )
                ),
            )
            for of, first, rest in rows
        ]
    return found


def plain(text):
    return unescape(text).replace("\N{NO-BREAK SPACE}", " ")


def median(lines):
    """The median of the medians of the processes."""
    return float(np.median([np.median(line["seconds"]) for line in lines]))


def seconds(text):
    """The time and the interval in a cell, as far as there is one."""
    value, unit, low, high = re.match(rf"{NUMBER} (\w+)(?: \({NUMBER} to {NUMBER}\))?", text).groups()
    return [float(number) * UNITS[unit] for number in (value, low, high) if number]


def rank_interval(samples):
    """The 95 % interval of a median from order statistics: the widest pair of ranks whose tails hold at most 5 %."""
    ordered, n = np.sort(samples), len(samples)
    pascal = np.array([1.0])
    for _ in range(n):
        pascal = np.convolve(pascal, [0.5, 0.5])
    tails = np.cumsum(pascal)
    rank = max(at for at in range(n) if tails[at] <= 0.025)
    return ordered[rank], ordered[n - 1 - rank]


def key_of(anchor):
    return anchor.split("-")[1]


def test_every_time_is_the_median_of_the_samples(tables, lines):
    assert len(tables["measured"]) == len(lines) > 30
    for anchor, row in tables["measured"]:
        assert seconds(row["time"])[0] == pytest.approx(median(lines[key_of(anchor)]), rel=6e-3), row
        assert int(row["samples"]) == sum(len(line["seconds"]) for line in lines[key_of(anchor)])


def test_the_interval_of_one_process_lies_at_ranks_of_its_samples(tables, lines):
    checked = 0
    for anchor, row in tables["measured"]:
        of = lines[key_of(anchor)]
        if len(of) == 1:
            _, low, high = seconds(row["time"])
            assert (low, high) == pytest.approx(rank_interval(of[0]["seconds"]), rel=6e-3, abs=6e-9), row
            checked += 1
    assert checked > 20


def without(case, *names):
    return json.dumps({name: value for name, value in case.items() if name not in names}, sort_keys=True)


def value_of(cell):
    """The number at the beginning of a cell; None where it is not determined."""
    found = re.match(NUMBER, cell)
    return float(found[1]) if found else None


def test_speedup_and_efficiency_are_ratios_of_medians(tables, lines):
    checked = 0
    for anchor, row in tables["measured"]:
        for kind, cell, efficiency in pairs(row):
            case = lines[key_of(anchor)][0]["case"]
            own, base = median(lines[key_of(anchor)]), baseline(case, kind, lines)
            more = case["devices"] / base["devices"]
            expected = base["seconds"] / own * (more if kind == "weak" else 1)
            for number, value in ((cell, expected), (efficiency, expected / more)):
                if value_of(number) is not None:
                    assert value_of(number) == pytest.approx(value, rel=6e-3, abs=6e-3), (row, kind)
                    checked += 1
    assert checked > 30


def pairs(row):
    """The speed-up and the efficiency of each kind of scaling in a row."""
    found = []
    for speedup, efficiency in zip(row["speed-up"].split(", "), row["efficiency"].split(", "), strict=True):
        weak = speedup.startswith("weak ")
        if speedup:
            words = (speedup.removeprefix("weak "), efficiency.removeprefix("weak "))
            found.append(("weak" if weak else "strong", *words))
    return found


def baseline(case, kind, lines):
    """The time of the same program on the fewest devices, for weak scaling with the points of one device."""
    points = ("points",) if kind == "weak" else ()
    same = {}
    for of in lines.values():
        other = of[0]["case"]
        alike = without(other, "devices", "mesh", *points) == without(case, "devices", "mesh", *points)
        per_device = other["points"] * case["devices"] == case["points"] * other["devices"]
        if alike and (kind == "strong" or per_device):
            same.setdefault(other["devices"], []).append(median(of))
    return {"devices": min(same), "seconds": min(same[min(same)])}


def test_the_speedup_over_one_program_has_the_fastest_plain_program_above(tables, lines):
    names = (
        "workload",
        "target",
        "variant",
        "sizes",
        "points",
        "wrt",
        "dtype",
        "precision",
        "data_seed",
        "reduce",
    )
    checked = 0
    for anchor, row in tables["measured"]:
        case = lines[key_of(anchor)][0]["case"]
        if (shown := value_of(row["one-device program"])) is None:
            continue
        plain_programs = [
            median(of)
            for of in lines.values()
            for other in [of[0]["case"]]
            if other["api"] == "jit" and other["devices"] == 1 and other["mode"] not in HAND
            and all(other[name] == case[name] for name in names)
        ]  # fmt: skip
        assert shown == pytest.approx(min(plain_programs) / median(lines[key_of(anchor)]), rel=6e-3, abs=6e-3)
        checked += 1
    assert checked > 3


HAND = ("analytic", "analytic_vmap", "value")


def test_the_ratio_of_the_answer_is_that_of_two_medians(tables, lines):
    times = sorted(median(of) for of in lines.values())
    checked = 0
    for _, row in tables["fastest"] + tables["each"]:
        first = seconds(row["time"])[0]
        assert any(first == pytest.approx(time, rel=6e-3) for time in times)
        if row["runner-up"] and (shown := value_of(row["ratio"])) is not None:
            second = seconds(row["runner-up"].rpartition(", ")[2])[0]
            assert shown == pytest.approx(second / first, rel=0.02)
            checked += 1
    assert checked > 3
