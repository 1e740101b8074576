"""Comparing two folders: what is called a difference in worlds whose truth is known, and how it is told."""

import numpy as np
import pytest

from scaling.analysis.compare import (
    SAME,
    SLOWER,
    UNDECIDED,
    compare,
    comparison_lines,
    comparison_rows,
    find_folders,
    format_markdown,
)
from scaling.core.case import Refusal
from scaling.core.intervals import ratio_interval
from scaling.core.record import to_line

CASES = 200


def write(folder, records):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "one.jsonl").write_text("".join(f"{to_line(record)}\n" for record in records))
    return folder


@pytest.fixture
def world(make_record, tmp_path):
    """Two folders of 200 cases; B's first `slower` cases take 10 % longer. Returns (A, B, records of A, records of B).

    Between processes 3 % (`noise`), drift in common to both sides where they took turns, lognormal samples, one in 20 a spike.
    """

    def make(seed, replicates=5, slower=0, blocks=True, noise=0.03, late=1.0):
        generator, sides = np.random.default_rng(seed), ([], [])
        drift = np.exp(np.cumsum(0.003 * generator.normal(size=replicates * CASES)))
        for at in range(replicates * CASES):
            replicate, number = divmod(at, CASES)
            for side, records in enumerate(sides):
                centre = (
                    1e-3
                    * drift[at]
                    * np.exp(noise * generator.normal())
                    * (1.1 if side and number < slower else 1)
                )
                seconds = (
                    centre
                    * np.exp(0.01 * generator.normal(size=30))
                    * np.where(generator.random(30) < 0.05, 2.5, 1.0)
                )
                records.append(
                    make_record(points=number + 1, replicate=replicate, block=f"{replicate}-{number}" if blocks else None,
                                seconds=list(seconds * (late if side else 1.0)))
                )  # fmt: skip
        return write(tmp_path / f"a{seed}", sides[0]), write(tmp_path / f"b{seed}", sides[1]), *sides

    return make


def verdicts(comparison):
    return [row.verdict for row in sorted(comparison.rows, key=lambda row: row.case.points)]


@pytest.mark.parametrize("seed, replicates", [(1, 3), (2, 3), (3, 5)])
def test_the_same_program_twice_is_called_different_in_no_more_than_five_cases_in_a_hundred(
    world, seed, replicates
):
    a, b, old, new = world(seed, replicates)
    assert verdicts(compare(a, b)).count(SAME) >= 0.95 * CASES
    for processes, least in ((replicates, 0.15), (1, 0.5)):  # as if samples were independent repeats
        pooled = [
            [[s for r in side[i::CASES][:processes] for s in r.seconds] for i in range(CASES)]
            for side in (old, new)
        ]
        naive = [ratio_interval(top, bottom) for top, bottom in zip(*pooled, strict=True)]
        assert sum(not low <= 1 <= high for _, low, high in naive) > least * CASES


@pytest.mark.contract
def test_ten_per_cent_more_is_found_in_ninety_five_of_a_hundred_cases(world):
    found = [verdicts(compare(*world(seed, slower=50)[:2])) for seed in range(4)]
    assert sum(each[:50].count(SLOWER) for each in found) >= 0.95 * 50 * len(found)
    assert all(each[50:].count(SAME) >= 0.95 * 150 for each in found)


def test_two_runs_of_one_process_each_decide_nothing_however_far_apart(world):
    a, b, *_ = world(5, replicates=1, blocks=False, late=1.5)
    found = compare(a, b)
    assert set(verdicts(found)) == {UNDECIDED} and not found.bad
    assert sum(row.ratio.low > 1 for row in found.rows) > CASES / 2  # within the processes they are apart
    assert comparison_lines(found)[-1].startswith(
        "0 slower, 0 faster, 200 undecided, 0 no difference shown (of 200;"
    )
    assert all(
        word in "".join(comparison_lines(found)) for word in ("No case was measured in turns", "replicates=")
    )


def steady(make_record, seconds, replicates=3, **fields):
    """A case in some processes, a part in a thousand apart."""
    return [
        make_record(seconds=[seconds * (1 + 1e-3 * i)] * 7, replicate=i, block=f"b{i}", **fields)
        for i in range(replicates)
    ]


def compared(tmp_path, old, new, **options):
    return compare(write(tmp_path / "old", old), write(tmp_path / "new", new), **options)


def test_every_verdict_has_its_row_and_what_changed_comes_first(make_record, tmp_path):
    fail = {"status": "failed", "reason": "timeout", "text": "600 s"}
    skip = {"status": "skipped", "reason": "too_large", "text": "needs 9 GB"}
    times = {1: (1.0, 1.0), 2: (1.0, 1.3), 3: (1.0, 0.5), 4: (1.0, 2.0)}
    old = [r for points, pair in times.items() for r in steady(make_record, pair[0], points=points)]
    new = [r for points, pair in times.items() for r in steady(make_record, pair[1], points=points)]
    old += [
        *steady(make_record, 1.0, points=5),
        *steady(make_record, 1.0, points=6),
        make_record(points=7, **fail),
    ]
    new += [make_record(points=5, **fail), make_record(points=6, **skip), *steady(make_record, 1.0, points=7)]
    old += [
        make_record(points=8, **fail),
        make_record(points=10, **skip),
        *steady(make_record, 1.0, 1, points=11),
    ]
    new += [
        make_record(points=8, **fail),
        make_record(points=10, **skip),
        *steady(make_record, 2.0, 1, points=11),
    ]
    new += [*steady(make_record, 1.0, points=9), make_record(workload="ceiling", target="copy")]
    crowded = {"devices": 2, "points": 12, "environment": {"cores": [0]}}
    found = compared(
        tmp_path, [*old, *steady(make_record, 1.0, **crowded)], [*new, *steady(make_record, 2.0, **crowded)]
    )
    assert [(row.case.points, row.verdict) for row in found.rows] == [
        (4, "slower"), (2, "slower"), (5, "failed in B"), (8, "failed in both"), (3, "faster"), (7, "failed in A"),
        (6, "only in A"), (9, "only in B"), (12, "oversubscribed"), (11, "undecided"), (1, "no difference shown"),
    ]  # fmt: skip
    assert found.bad and found.rows[0].ratio.value == pytest.approx(2)
    assert (
        "too_large: needs 9 GB" in comparison_rows(found)[6][-1]
        and comparison_rows(found)[0][-1] == "3 + 3 processes, 3 in turns"
    )
    assert (
        comparison_rows(found, 9)[-1][1] == "and 1 undecided, 1 no difference shown"
        and len(comparison_rows(found, 9)) == 10
    )


def test_what_is_sure_but_within_the_margin_is_no_difference(make_record, tmp_path):
    pair = steady(make_record, 1.0), steady(make_record, 1.015)
    assert verdicts(compared(tmp_path, *pair)) == [SLOWER]
    assert verdicts(compared(tmp_path, *pair, margin=0.02)) == [SAME]
    with pytest.raises(Refusal, match="margin must be from 0"):
        compared(tmp_path, *pair, margin=float("nan"))


def test_each_side_speaks_for_the_environment_in_which_it_ran_last(make_record, tmp_path):
    earlier = steady(make_record, 9.0, digest="older", started_at="2026-01-01T00:00:00Z")
    newer = steady(make_record, 1.0, digest="newer", started_at="2026-01-02T00:00:00Z")
    found = compared(tmp_path, [*newer, *earlier], steady(make_record, 1.0))
    assert verdicts(found) == [SAME] and "A: 3 outdated records left out." in comparison_lines(found)


def test_it_says_what_differs_between_the_environments(make_record, tmp_path):
    there = {"versions": {"jax": "0.11.0"}, "xla_flags": "--xla_x=1", "load": 3.0, "hosts": ["host"]}
    found = compared(
        tmp_path, steady(make_record, 1.0), steady(make_record, 1.0, digest="other", environment=there)
    )
    assert comparison_lines(found)[0].startswith("A is old, B is new; ")  # and not where they lie
    assert comparison_lines(found)[0].endswith(
        "they differ in jax (0.10.2, then 0.11.0); xla_flags (none, then --xla_x=1)."
    )
    assert comparison_lines(compared(tmp_path, steady(make_record, 1.0), steady(make_record, 1.0)))[
        0
    ].endswith("nothing recorded differs.")


def test_cases_that_took_no_turns_are_counted(make_record, tmp_path):
    alone = [make_record(points=9, replicate=i, seconds=[1 + 1e-3 * i] * 7) for i in range(3)]
    found = compared(tmp_path, [*steady(make_record, 1.0), *alone], [*steady(make_record, 1.0), *alone])
    assert any(line.startswith("1 of 2 cases were not measured in turns") for line in comparison_lines(found))


def test_blocks_that_are_not_the_same_on_both_sides_are_told(make_record, tmp_path):
    def auto(chunk):
        return steady(
            make_record, 1.0, chunk="auto", blocks={"block": None, "chunk": chunk, "storage": "device"}
        )

    (row,) = comparison_rows(compared(tmp_path, auto(8), auto(4)))
    assert row[-1] == (
        "3 + 3 processes, 3 in turns; chunk=auto: 8 seeds and all points at a time, then 4 seeds and all points at a time"
    )
    (row,) = comparison_rows(compared(tmp_path / "same", auto(8), auto(8)))
    assert row[-1] == "3 + 3 processes, 3 in turns"


def test_markdown_holds_a_table_whatever_stands_in_the_records(make_record, tmp_path):
    bad = make_record(status="failed", reason="error", text="a|b <script>\n| x \\| y", workload="mine|<b>")
    text = format_markdown(compared(tmp_path, steady(make_record, 1.0, workload="mine|<b>"), [bad]))
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 3 and all(
        line.replace("\\\\", "").replace("\\|", "").count("|") == 8 for line in table
    )
    assert "<" not in text and text.startswith("**0 slower, 1 failed in B, 0 faster")


@pytest.mark.process
def test_the_command_says_by_its_exit_status_whether_anything_is_slower(
    scaling_command, make_record, tmp_path
):
    one, slow = steady(make_record, 1.0), steady(make_record, 1.5)
    (
        write(tmp_path / "old", one),
        write(tmp_path / "new", slow),
        write(tmp_path / "other", steady(make_record, 1.0, points=99)),
    )
    done = scaling_command(["compare", "old", "new", "--markdown", "table.md"])
    assert done.returncode == 1 and "1 slower, 0 faster, 0 no difference shown (of 1; false" in done.stdout, (
        done.stderr
    )
    assert "| slower |" in (tmp_path / "table.md").read_text()
    assert scaling_command(["compare", "new", "old"]).returncode == 0
    alone = scaling_command(["compare", "old", "new", "--markdown", "-", "--margin", "0.2"])
    assert (
        alone.returncode == 1
        and "| slower |" in alone.stdout
        and "up to 20 %" in alone.stdout
        and "━" not in alone.stdout
    )
    for words in (["old", "nowhere"], ["old", "other"]):
        done = scaling_command(["compare", *words])
        assert done.returncode == 2 and done.stderr.startswith("scaling: ") and not done.stdout, (
            words,
            done.stderr,
        )


def test_what_cannot_be_compared_is_refused(make_record, tmp_path):
    old, other = (
        write(tmp_path / "old", steady(make_record, 1.0)),
        write(tmp_path / "other", steady(make_record, 1.0, points=99)),
    )
    with pytest.raises(Refusal, match="no case is in both"):
        compare(old, other)
    with pytest.raises(Refusal, match="with itself"):
        compare(old, tmp_path / "other" / ".." / "old")
    with pytest.raises(Refusal, match="there is no variant of"):
        find_folders(str(old), None)


def test_a_folder_alone_is_compared_with_what_was_measured_beside_it(scaling_command, make_record, tmp_path):
    write(tmp_path / "here", steady(make_record, 1.5))
    write(tmp_path / "here" / "versus-self", steady(make_record, 1.0))
    done = scaling_command(["compare", "here"])
    assert done.returncode == 1 and "A is here/versus-self, B is here;" in done.stdout, done.stderr
    write(tmp_path / "here" / "versus-xla-1", steady(make_record, 1.0))
    done = scaling_command(["compare", "here"])
    assert done.returncode == 2 and "here/versus-self" in done.stderr and "here/versus-xla-1" in done.stderr
