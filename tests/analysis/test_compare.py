"""Tests of the comparison of two results folders: error rates of its verdicts in simulated studies, and its output."""

import io

import numpy as np
import pytest
from rich.console import Console

from scaling.analysis.folder_comparison import SAME, SLOWER, UNDECIDED, compare, find_folders
from scaling.analysis.ratios import ratio_interval
from scaling.cli.compare import print_comparison
from scaling.core.case import Refusal
from scaling.core.record import to_line
from scaling.report.comparison import case_table, changed_table, comparison_lines, format_markdown

CASES = 200


def write(folder, records):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "one.jsonl").write_text("".join(f"{to_line(record)}\n" for record in records))
    return folder


@pytest.fixture
def simulate(make_record, tmp_path):
    """Return a function that writes two folders A and B of 200 cases and returns (A, B, records of A, records of B).

    The first `slower` cases of B take 10 % longer. `noise` is between processes; drift is common to both folders; one sample in 20 is
    an outlier.
    """

    def make(seed, replicates=5, slower=0, blocks=True, noise=0.03, slowdown=1.0):
        generator, sides = np.random.default_rng(seed), ([], [])
        drift = np.exp(np.cumsum(0.003 * generator.normal(size=replicates * CASES)))
        for position in range(replicates * CASES):
            replicate, number = divmod(position, CASES)
            for side, records in enumerate(sides):
                centre = 1e-3 * drift[position] * np.exp(noise * generator.normal())
                centre *= 1.1 if side and number < slower else 1
                seconds = centre * np.exp(0.01 * generator.normal(size=30))
                seconds *= np.where(generator.random(30) < 0.05, 2.5, 1.0)
                records.append(
                    make_record(points=number + 1, replicate=replicate, block=f"{replicate}-{number}" if blocks else None,
                                seconds=list(seconds * (slowdown if side else 1.0)))
                )  # fmt: skip
        return write(tmp_path / f"a{seed}", sides[0]), write(tmp_path / f"b{seed}", sides[1]), *sides

    return make


def verdicts(result):
    return [row.verdict for row in sorted(result.rows, key=lambda row: row.case.points)]


@pytest.mark.parametrize("seed, replicates", [(1, 3), (2, 3), (3, 5)])
def test_identical_programs_are_called_different_in_at_most_five_percent_of_cases(simulate, seed, replicates):
    a, b, old, new = simulate(seed, replicates)
    assert verdicts(compare(a, b)).count(SAME) >= 0.95 * CASES
    # Pooling treats the samples as independent repeats.
    for processes, min_rate in ((replicates, 0.15), (1, 0.5)):
        pooled = [
            [[s for r in side[i::CASES][:processes] for s in r.seconds] for i in range(CASES)]
            for side in (old, new)
        ]
        naive = [ratio_interval(top, bottom) for top, bottom in zip(*pooled, strict=True)]
        assert sum(not low <= 1 <= high for _, low, high in naive) > min_rate * CASES


@pytest.mark.thorough
def test_slowdown_of_ten_percent_is_detected_in_95_percent_of_cases(simulate):
    table = [verdicts(compare(*simulate(seed, slower=50)[:2])) for seed in range(4)]
    assert sum(row[:50].count(SLOWER) for row in table) >= 0.95 * 50 * len(table)
    assert all(row[50:].count(SAME) >= 0.95 * 150 for row in table)


def test_variances_of_cases_that_were_sampled_in_turns_do_not_depend_on_other_cases(simulate, tmp_path):
    paired, noisy = simulate(1, replicates=3)[2:], simulate(2, replicates=3, blocks=False, noise=0.3)[2:]
    first, others = ([[r for r in s if (r.case.points <= 40) is few] for s in sides]
                     for few, sides in ((True, paired), (False, noisy)))  # fmt: skip
    alone = compare(*(write(tmp_path / f"alone{k}", first[k]) for k in range(2)))
    together = compare(*(write(tmp_path / f"together{k}", first[k] + others[k]) for k in range(2)))
    variances = {row.case.key: row.ratio.variance for row in together.rows}
    assert len(alone.rows) == 40 and len(together.rows) == CASES
    assert all(row.ratio.variance == pytest.approx(variances[row.case.key]) for row in alone.rows)


def test_one_process_per_folder_leaves_every_case_undecided(simulate):
    a, b, *_ = simulate(5, replicates=1, blocks=False, slowdown=1.5)
    result = compare(a, b)
    assert set(verdicts(result)) == {UNDECIDED} and not result.has_regression
    # The samples of the two processes differ.
    assert sum(row.ratio.estimate.low > 1 for row in result.rows) > CASES / 2
    assert comparison_lines(result)[-1].startswith(
        "0 slower, 0 faster, 200 undecided, 0 no difference shown (of 200;"
    )
    assert all(
        word in "".join(comparison_lines(result))
        for word in ("cases were not measured in turns", "replicates=")
    )


@pytest.fixture
def steady(make_record):
    """Return a function that makes records of one case in several processes whose times differ by 0.1 %."""
    return lambda seconds, replicates=3, **fields: [
        make_record(seconds=[seconds * (1 + 1e-3 * i)] * 7, replicate=i, block=f"b{i}", **fields)
        for i in range(replicates)
    ]


@pytest.fixture
def compare_pair(tmp_path):
    """Return a function that writes two folders, old and new, and compares them."""
    return lambda old, new, **options: compare(
        write(tmp_path / "old", old), write(tmp_path / "new", new), **options
    )


def test_every_verdict_has_a_row_and_changes_come_first(steady, compare_pair, make_record):
    fail = {"status": "failed", "reason": "timeout", "text": "600 s"}
    skip = {"status": "skipped", "reason": "too_large", "text": "needs 9 GB"}
    times = {1: (1.0, 1.0), 2: (1.0, 1.3), 3: (1.0, 0.5), 4: (1.0, 2.0)}
    old = [r for points, pair in times.items() for r in steady(pair[0], points=points)]
    new = [r for points, pair in times.items() for r in steady(pair[1], points=points)]
    old += [*steady(1.0, points=5), *steady(1.0, points=6), make_record(points=7, **fail)]
    new += [make_record(points=5, **fail), make_record(points=6, **skip), *steady(1.0, points=7)]
    old += [make_record(points=8, **fail), make_record(points=10, **skip), *steady(1.0, 1, points=11)]
    new += [make_record(points=8, **fail), make_record(points=10, **skip), *steady(2.0, 1, points=11)]
    new += [*steady(1.0, points=9), make_record(workload="ceiling", target="copy")]
    shared_core = {"devices": 2, "points": 12, "environment": {"cores": [0]}}
    result = compare_pair([*old, *steady(1.0, **shared_core)], [*new, *steady(2.0, **shared_core)])
    assert [(row.case.points, row.verdict) for row in result.rows] == [
        (4, "slower"), (2, "slower"), (5, "failed in B"), (8, "failed in both"), (6, "out of memory in B"), (3, "faster"),
        (7, "failed in A"), (9, "only in B"), (12, "unbound or oversubscribed"), (11, "undecided"), (1, "no difference shown"),
    ]  # fmt: skip
    assert result.has_regression and result.rows[0].ratio.estimate.value == pytest.approx(2)
    rows = changed_table(result).rows
    assert "too_large: needs 9 GB" in rows[4][-1] and rows[0][-1] == "3 + 3 processes, 3 in turns"
    assert len(rows) == 9


def test_a_failed_process_of_the_old_folder_does_not_hide_a_regression(steady, compare_pair, make_record):
    failed = make_record(status="failed", reason="killed", text="signal 9", replicate=3)
    result = compare_pair([*steady(1.0), failed], steady(2.0, 4))
    assert verdicts(result) == [SLOWER] and result.has_regression
    assert verdicts(compare_pair(steady(2.0, 4), [*steady(1.0), failed])) == ["failed in B"]


@pytest.mark.parametrize(
    ("reason", "verdict", "is_regression"),
    [
        ("too_large", "out of memory in B", True),
        ("dominated", "out of memory in B", True),
        ("not_installed", "skipped in B", False),
    ],
)
def test_case_skipped_in_the_new_folder_is_a_regression_if_memory_ran_out(
    steady, compare_pair, make_record, reason, verdict, is_regression
):
    skipped = [make_record("skipped", points=9, reason=reason)]
    measured, other = steady(1.0, points=9), steady(1.0)
    result = compare_pair([*measured, *other], [*skipped, *other])
    assert verdicts(result) == [SAME, verdict] and result.has_regression is is_regression
    result = compare_pair([*skipped, *other], [*measured, *other])
    assert verdicts(result) == [SAME, "skipped in A"] and not result.has_regression


def test_change_is_not_sure_if_its_samples_were_disturbed_or_shorter_than_ten_empty_calls(
    steady, compare_pair
):
    def remark(new_seconds=1.3, **fields):
        result = compare_pair(steady(1.0), steady(new_seconds, **fields))
        return case_table(result.rows).rows[0][-1]

    assert remark(turns=[7], marked={"throttled": [0]}).endswith("; not sure: throttled")
    assert remark(floor_seconds=0.2).endswith("; not sure: under 10x the overhead of a call")
    assert remark(0.5, floor_seconds=0.2).endswith("; not sure: under 10x the overhead of a call")
    assert "not sure" not in remark() and "not sure" not in remark(1.0, floor_seconds=0.2)


def test_significant_difference_within_the_margin_is_no_difference(steady, compare_pair):
    pair = steady(1.0), steady(1.015)
    assert verdicts(compare_pair(*pair)) == [SLOWER]
    assert verdicts(compare_pair(*pair, margin=0.02)) == [SAME]
    with pytest.raises(Refusal, match="margin must be from 0"):
        compare_pair(*pair, margin=float("nan"))


def test_each_folder_is_represented_by_its_latest_environment(steady, compare_pair):
    earlier = steady(9.0, digest="older", started_at="2026-01-01T00:00:00Z")
    newer = steady(1.0, digest="newer", started_at="2026-01-02T00:00:00Z")
    result = compare_pair([*newer, *earlier], steady(1.0))
    assert verdicts(result) == [SAME]
    assert "A: 3 outdated records left out." in comparison_lines(result)


def test_a_failed_preflight_check_that_is_repeated_leaves_no_measured_case_out(
    make_record, steady, compare_pair
):
    failed = make_record("failed", reason="killed", sizes={"p": 9}, digest="unknown", started_at="2027-01-01")
    result = compare_pair([*steady(1.0), failed], [*steady(1.0), failed])
    assert verdicts(result) == ["failed in both", SAME] and "left out" not in str(comparison_lines(result))
    earlier = make_record("failed", reason="timeout", sizes={"p": 9}, digest="older", started_at="2026-01-01")
    result = compare_pair([*steady(1.0), earlier, failed], [*steady(1.0), failed])
    assert "A: 1 outdated record left out." in comparison_lines(result), "one check is one failed case"


def test_differences_between_the_environments_are_listed(steady, compare_pair):
    environment = {"versions": {"jax": "0.11.0"}, "xla_flags": "--xla_x=1", "load": 3.0, "hosts": ["host"]}
    result = compare_pair(steady(1.0), steady(1.0, digest="other", environment=environment))
    # The sentence names the folders, not their paths.
    assert comparison_lines(result)[0].startswith("A is old, B is new; ")
    assert comparison_lines(result)[0].endswith(
        "they differ in jax (0.10.2, then 0.11.0); xla_flags (none, then --xla_x=1)."
    )
    same = compare_pair(steady(1.0), steady(1.0))
    assert comparison_lines(same)[0].endswith("nothing recorded differs.")


def test_a_fact_that_is_true_or_false_is_named_in_words(steady, compare_pair):
    pair = (steady(1.0, digest=str(fact), environment={"bound": fact}) for fact in (True, False))
    assert comparison_lines(compare_pair(*pair))[0].endswith("they differ in bound (yes, then no).")


def test_cases_not_measured_in_turns_are_counted(steady, compare_pair, make_record):
    unpaired = [make_record(points=9, replicate=i, seconds=[1 + 1e-3 * i] * 7) for i in range(3)]
    result = compare_pair([*steady(1.0), *unpaired], [*steady(1.0), *unpaired])
    assert any(line.startswith("1 of 2 cases was not measured in turns") for line in comparison_lines(result))


def test_processes_not_measured_in_turns_are_counted_even_beside_a_single_pair(compare_pair, make_record):
    records = [make_record(seconds=[1.0] * 7, replicate=i, block=None if i else "pair") for i in range(3)]
    lines = comparison_lines(compare_pair(records, records))
    assert any(line.startswith("1 of 1 case was not measured in turns") for line in lines)
    lines = comparison_lines(compare_pair(records[:1], records[:1]))
    assert not any("not measured in turns" in line for line in lines)


def test_markdown_table_is_intact_for_any_text_in_the_records(steady, compare_pair, make_record):
    failed = make_record(status="failed", reason="error", text="a|b <script>\n| x \\| y", workload="mine|<b>")
    text = format_markdown(compare_pair(steady(1.0, workload="mine|<b>"), [failed]))
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 3
    assert len({line.replace("\\\\", "").replace("\\|", "").count("|") for line in table}) == 1
    assert "<" not in text and text.startswith("**0 slower, 1 failed in B, 0 faster")


def test_side_without_a_time_has_an_empty_cell_and_a_failure_without_a_reason_says_so(make_record, tmp_path):
    a = write(tmp_path / "a", [make_record("failed", text="it broke")])
    b = write(tmp_path / "b", [make_record(seconds=[1.0] * 9)])
    table = changed_table(compare(a, b))
    (row,) = (dict(zip(table.columns, cells, strict=True)) for cells in table.rows)
    assert (row.get("A", ""), row["B"], row["remarks"]) == ("", "1.00 s", "no reason given: it broke")


def test_table_of_many_cases_ends_with_the_number_of_the_others(steady, compare_pair):
    old, new = ([r for n in range(45) for r in steady(t, points=n + 1)] for t in (1.0, 1.5))
    result = compare_pair(old, new)
    for rows in (changed_table(result).rows, format_markdown(result).split("\n\n")[1].splitlines()[2:]):
        assert len(rows) == 41 and "and 5 more" in str(rows[-1])


@pytest.mark.process
def test_sentences_of_a_comparison_fit_a_terminal(steady, tmp_path):
    folders = [write(tmp_path / name, steady(seconds)) for name, seconds in (("a", 1.0), ("b", 1.5))]
    output = io.StringIO()
    print_comparison(*folders, Console(file=output, width=80, force_terminal=True, color_system=None))
    lines = [line for line in output.getvalue().splitlines() if str(tmp_path) not in line]
    assert len(lines) > 4 and all(len(line) <= 80 for line in lines)


def test_exit_status_of_compare_tells_whether_a_case_is_slower(steady, scaling_command, tmp_path):
    fast, slow = steady(1.0), steady(1.5)
    for name, records in (("old", fast), ("new", slow), ("other", steady(1.0, points=99))):
        write(tmp_path / name, records)
    result = scaling_command(["compare", "old", "new"])
    assert (
        result.returncode == 1 and "1 slower, 0 faster, 0 no difference shown (of 1; false" in result.stdout
    ), result.stderr
    assert scaling_command(["compare", "new", "old"]).returncode == 0
    tolerant = scaling_command(["compare", "old", "new", "--markdown", "-", "--margin", "0.2"])
    assert tolerant.returncode == 1 and "━" not in tolerant.stdout
    assert "| slower |" in tolerant.stdout and "up to 20 %" in tolerant.stdout
    for folders in (["old", "nowhere"], ["old", "other"]):
        result = scaling_command(["compare", *folders])
        assert result.returncode == 2 and result.stderr.startswith("scaling: ") and not result.stdout, (
            folders,
            result.stderr,
        )


def test_folders_that_cannot_be_compared_are_rejected(steady, tmp_path):
    old, disjoint = (write(tmp_path / "old", steady(1.0)), write(tmp_path / "other", steady(1.0, points=99)))
    with pytest.raises(Refusal, match="no case is in both"):
        compare(old, disjoint)
    with pytest.raises(Refusal, match="with itself"):
        compare(old, tmp_path / "other" / ".." / "old")
    with pytest.raises(Refusal, match="there is no variant of"):
        find_folders(str(old), None)


def test_single_folder_is_compared_with_its_only_variant(steady, scaling_command, tmp_path):
    write(tmp_path / "here", steady(1.5))
    write(tmp_path / "here" / "versus-self", steady(1.0))
    result = scaling_command(["compare", "here"])
    assert result.returncode == 1 and "A is here/versus-self, B is here;" in result.stdout, result.stderr
    write(tmp_path / "here" / "versus-xla-1", steady(1.0))
    result = scaling_command(["compare", "here"])
    assert result.returncode == 2
    assert "here/versus-self" in result.stderr and "here/versus-xla-1" in result.stderr
