"""Tests of the sentences of the answer: the fastest method, its device count, its cost and its certainty, then other findings."""

import re

import pytest

from scaling.analysis import answers, curves, findings
from tests.support import made_up


@pytest.fixture
def answer(tmp_path):
    """Return a function from records to the sentences of the answer."""
    return lambda records, scaling=("strong",): answers.answer_sentences(
        findings.read(made_up.write(tmp_path / "made", records, scaling=scaling))
    )


@pytest.fixture
def headline(answer, make_record):
    """Return a function from the times of the processes on each number of devices to the first sentence of the answer."""
    return lambda times, samples=7: answer([
        make_record(devices=devices, seconds=[s] * samples, replicate=i)
        for devices, levels in times.items()
        for i, s in enumerate(levels)
    ])[0]  # fmt: skip


@pytest.fixture
def ask(answer, make_record):
    """Return a function from rows (mode, devices, points, milliseconds) to the sentences of the answer."""

    def answer_rows(*rows, spread=0.001, scaling=("strong",), **fields):
        records = [
            make_record(mode=mode, devices=devices, points=points, api="shard_map",
                        seconds=[ms * 1e-3 * (1 + spread * (5 * i % 13 - 6)) for i in range(13)], **fields)
            for mode, devices, points, ms in rows
        ]  # fmt: skip
        return answer(records, scaling)

    return answer_rows


def find_sentence(words, lines):
    """Return the only sentence that contains the words."""
    (sentence,) = [line for line in lines if words in line]
    return sentence


def crossing(sizes, scale=1):
    """Return rows of jacfwd, whose time grows with the size, and of jacrev, whose time is that of jacfwd at size 64."""
    return [
        (mode, 1, scale * n, n if mode == "jacfwd" else 64) for mode in ("jacfwd", "jacrev") for n in sizes
    ]


def test_headline_is_the_shortest_time_of_the_largest_problem(ask):
    lines = ask(
        ("jacfwd", 1, 64, 12),
        ("jacfwd", 2, 64, 6.4),
        ("jacrev", 1, 64, 40),
        ("jacrev", 2, 64, 30),
        ("jacrev", 1, 16, 1),
    )
    assert lines[0].startswith("linear o=3 p=5 points=64: jacfwd (vmap) is fastest, 6.40 ms (6.37")
    assert "on 2 devices, shard_map, points split; jacrev (vmap) takes 4.69x (" in lines[0]
    assert ". Speed-up: 1.88x (" in lines[0]
    assert lines[0].count("Efficiency: 0.94") == 1
    assert ". Efficiency of at least 0.5: on up to 2 devices" in lines[0]


def test_the_fastest_mode_by_size_is_reported_where_it_changes(ask):
    sentence = find_sentence("against points", ask(*crossing((16, 32, 128, 256), 10_007)))
    assert sentence == (
        "Fastest mode of linear with o=3 p=5 against points on 1 device: jacfwd (vmap) at 160,112 to 320,224; "
        "jacrev (vmap) at 1,280,896 to 2,561,792; not sure: measured in one process."
    )
    assert not [line for line in ask(*crossing((16, 32, 64))) if line.startswith("Fastest mode of")]
    sentence = find_sentence("against points", ask(*crossing((16, 128)), ("jacrev", 1, 512, 70)))
    assert "; jacrev (vmap) at 128; not determined at 512; " in sentence  # no other mode was measured there


def test_growth_is_reported_with_the_exponent_of_each_mode(ask):
    rows = [
        (mode, 1, n, n**2 / 100 if mode == "jacfwd" else n)
        for mode in ("jacfwd", "jacrev")
        for n in (16, 32, 64, 128, 256)
    ]
    sentence = find_sentence("grows with", ask(*rows))
    assert "with o=3 p=5 grows with points on 1 device, shard_map, points split: exponent 1.00 (" in sentence
    assert "in jacrev (vmap), 2.00 (" in sentence


def test_weak_scaling_has_a_sentence_and_strong_scaling_of_the_headline_is_not_repeated(ask):
    counted = {"flops": 1e6, "compulsory_bytes": 1000000}
    lines = ask(
        *(("jacfwd", d, 16 * d, 5 * (1 + 0.25 * (d > 1))) for d in (1, 2, 4)),
        scaling=("strong", "weak"),
        **counted,
    )
    weak = find_sentence("Weak scaling", lines)
    assert "on 4 devices: scaled speed-up 3.20x (" in weak
    assert "efficiency 0.8" in weak
    assert "points=16 for each device" in weak
    assert not [line for line in lines if line.startswith("Strong scaling")]


def test_growing_points_without_constant_work_are_not_called_weak_scaling(ask):
    rows = [("jacfwd", d, 16 * d, 5) for d in (1, 2, 4)]
    lines = ask(*rows, scaling=("weak",), flops=None, compulsory_bytes=1000000)
    assert not [line for line in lines if line.startswith("Weak scaling")]
    assert [line for line in lines if line.startswith("Not weak scaling")]


def test_a_dtype_is_named_unless_it_is_float32(answer, make_record):
    records = [
        make_record(devices=d, dtype=dtype, seconds=[8 / d] * 9)
        for d in (1, 2, 4)
        for dtype in ("float32", "float64")
    ]
    lines = answer(records)
    assert [line.split(" o=")[0] for line in lines[:2]] == ["linear", "linear float64"]


def test_summary_has_the_failures(tmp_path):
    study = findings.read(made_up.write(tmp_path / "made", made_up.study(400)))
    assert [line for line in answers.answer_sentences(study) if "failed" in line]


def test_modes_without_a_time_for_the_problem_are_named(answer, make_record):
    lost = {"status": "failed", "seconds": []}
    records = [
        make_record(mode="jacfwd", seconds=[1.0] * 9),
        make_record(mode="jacrev", reason="timeout", **lost),
        make_record(mode="finite_difference", **lost),
        make_record(mode="linearize", reason="too_large", **lost | {"status": "skipped"}),
        make_record(mode="vmap_grad", reason="not_defined", **lost | {"status": "skipped"}),  # no rival
        make_record(mode="analytic", reason="error", **lost),  # written by hand
        make_record(mode="jacrev", points=9, reason="crashed", **lost),  # another problem
    ]
    (first, *_) = answer(records)
    untimed = (
        "finite_difference (vmap) (no reason given), jacrev (vmap) (timeout), linearize (vmap) (too_large)"
    )
    assert f". Not timed on 1 device: {untimed}." in first


def test_a_faster_handwritten_derivative_is_named(ask):
    rows = [("jacfwd", 1, 64, 10), ("jacrev", 1, 64, 40)]
    assert "not ranked" not in ask(*rows, ("analytic", 1, 64, 10))[0]
    assert "not ranked" not in ask(*rows, ("analytic", 1, 16, 4))[0]  # another problem
    first = ask(*rows, ("analytic", 1, 64, 4))[0]
    assert re.search(
        r"\. Faster, but not ranked: analytic takes 0\.40x \(.*\) as long, not sure: measured", first
    )


def test_headline_of_strong_and_weak_grids_uses_the_largest_problem_on_all_device_counts(ask):
    strong, weak = [("jacfwd", d, 64, 8 / d) for d in (1, 2, 4)], [("jacfwd", d, 64 * d, 8) for d in (2, 4)]
    lines = ask(*strong, *weak, scaling=("strong", "weak"), flops=1e6, compulsory_bytes=1000000)
    assert lines[0].startswith("linear o=3 p=5 points=64: ") and "on 4 devices" in lines[0]
    assert ". Speed-up: 4.00x" in lines[0]


def test_headline_is_of_the_largest_problem_on_enough_device_counts_as_the_figure_is(tmp_path, make_record):
    counts = {16: (1, 2, 4, 8), 64: (1, 2, 4), 256: (1, 2)}
    records = [
        make_record(points=points, devices=d, seconds=[points / d] * 9, api="shard_map")
        for points, devices in counts.items()
        for d in devices
    ]
    study = findings.read(made_up.write(tmp_path, records, scaling=["strong"]))
    assert "points=64" in answers.answer_sentences(study)[0]
    ((curve, *_), *_) = curves.curves_of_largest_problems(study.curves)
    assert curve.case.points == 64


def test_case_that_failed_in_an_older_environment_and_then_succeeded_is_not_counted(answer, make_record):
    failed = make_record("failed", digest="old", reason="error", started_at="2026-01-01T00:00:00+00:00")
    records = [failed, make_record(digest="new", started_at="2026-01-02T00:00:00+00:00")]
    lines = answer(records)
    assert not [line for line in lines if "failed" in line]


def test_failed_replicates_of_a_case_are_counted_as_in_the_status(answer, make_record):
    failed = [make_record("failed", reason="error", replicate=i) for i in range(3)]
    lines = answer(failed)
    assert "3 cases failed, each replicate counted: 3 error: an exception." in lines


def test_failures_without_a_reason_are_counted(tmp_path, make_record):
    records = [make_record("failed"), make_record("skipped", points=8)]
    lines = answers.answer_sentences(findings.read(made_up.write(tmp_path / "made", records)))
    assert lines[1:3] == ["1 case failed: 1 for no reason given.", "1 case skipped: 1 for no reason given."]


@pytest.mark.parametrize("fields", [{"engine": "torch"}, {"mode": "value"}, {"mode": "analytic"}], ids=str)
def test_study_without_a_jax_mode_is_reported_as_such(tmp_path, make_record, fields):
    study = findings.read(made_up.write(tmp_path / "made", [make_record(**fields)]))
    sentence = answers.answer_sentences(study)[0]
    assert sentence.startswith(
        "No mode that is ranked was measured: mode=auto, values, handwritten derivatives"
    )


def test_change_of_a_returned_list_does_not_change_the_next_answer(tmp_path, make_record):
    study = findings.read(made_up.write(tmp_path, [make_record()]))
    for derive in (answers.answer_sentences, answers.measured_answers):
        derive(study).clear()
        assert derive(study)


def test_single_mode_is_not_called_the_fastest(ask):
    (first, *_) = ask(("jacfwd", 1, 64, 5), ("analytic", 1, 64, 4))
    assert first.startswith("linear o=3 p=5 points=64: jacfwd (vmap), 5.00 ms")
    assert (
        "; no other mode measured. Measured on 1 device only. Faster, but not ranked: analytic takes 0.80x"
        in first
    )


def test_time_below_an_empty_call_has_no_speedup(ask):
    (first, *_) = ask(("jacfwd", 1, 64, 0.04), ("jacfwd", 2, 64, 0.01), floor_seconds=1.2e-5)
    assert "; not distinguished from an empty call" in first
    assert "speed-up" not in first and "efficiency" not in first


def test_reasons_for_uncertainty_are_reported(ask):
    (first, *_) = ask(("jacfwd", 1, 64, 1), ("jacrev", 1, 64, 5), floor_seconds=2e-4)
    assert "is fastest" in first
    assert "; not sure: under 10x the overhead of a call, measured in one process" in first


def test_ratio_with_a_wide_interval_is_reported_as_not_determined(ask):
    (first, *_) = ask(("jacfwd", 1, 64, 1), ("jacrev", 1, 64, 1.2), spread=0.166)
    assert "; not distinguished" in first
    assert "the ratio to jacrev (vmap) is not determined (" in first and "1.20x" not in first


def test_blocks_of_chunk_auto_are_reported(ask):
    blocks = {"block": 48, "chunk": None, "storage": "device", "limit_bytes": 400_000_000, "probes": []}
    (first, *_) = ask(("jacfwd", 1, 64, 5), ("jacrev", 1, 64, 9), chunk="auto", blocks=blocks)
    assert "jacfwd (vmap), chunk=auto (all seeds and 48 points at a time)" in first


def test_blocks_that_differ_between_processes_are_all_named(answer, make_record):
    (first, *_) = answer(
        make_record(chunk="auto", blocks={"chunk": chunk}, replicate=i, seconds=[1.0] * 9)
        for i, chunk in enumerate((4, 2, 4))
    )
    assert "(4 seeds and all points at a time or 2 seeds and all points at a time)" in first


def test_speedup_states_its_baseline_if_that_is_not_one_device(ask):
    lines = ask(("jacfwd", 2, 64, 12), ("jacfwd", 4, 64, 6.4), ("jacrev", 2, 64, 40), ("jacrev", 4, 64, 30))
    assert re.search(
        r"\. Speed-up: 1.88x \([^)]*\) over the same program on 2 devices\. ",
        lines[0],
    )
    (first, *_) = ask(("jacrev", 1, 64, 60), ("jacfwd", 2, 64, 12), ("jacfwd", 4, 64, 6.4))
    assert "Other device counts: jacrev (vmap) on 1 device takes 9.38x (" in first


def test_a_time_that_no_speedup_is_over_is_stated_and_the_others_are_not_repeated(ask):
    others = [("jacfwd", 4, 64, 6.4), ("jacrev", 4, 64, 30)]
    (first, *_) = ask(("jacfwd", 1, 64, 20), ("jacrev", 1, 64, 12), *others)
    assert "over the same program on one device" in first
    assert "Other device counts: jacrev (vmap) on 1 device takes 1.88x (" in first
    (first, *_) = ask(("jacfwd", 2, 64, 12), ("jacrev", 2, 64, 40), *others)
    assert "Speed-up: 1.88x (" in first and "Other device counts" not in first


def test_smallest_device_count_not_distinguished_from_the_fastest_is_recommended(ask):
    rows = [("jacfwd", 1, 64, 12), ("jacfwd", 2, 64, 6.1), ("jacfwd", 4, 64, 6), ("jacrev", 2, 64, 30)]
    (first, *_) = ask(*rows, spread=0.02)
    assert ": jacfwd (vmap) is fastest, 6.10 ms (" in first and "on 2 devices, shard_map" in first
    words = r"Other device counts: jacfwd \(vmap\) on 4 devices takes 0.98x \([^)]*\) as long\. "
    assert re.search(words, first)
    assert "; not sure: measured in one process; device count not distinguished. " in first
    assert ". Speed-up: 1.97x (1." in first
    assert first.count("Efficiency: ") == 1 and "Efficiency: 0.98 (0." in first


def test_largest_device_count_above_the_efficiency_threshold_is_reported(tmp_path, make_record):
    rows = [(1, 12), (2, 6.4), (4, 4.5), (8, 4.0)]
    records = [
        make_record(devices=d, points=64, api="shard_map", seconds=[ms * 1e-3 * (1 + 1e-3 * (5 * i % 7)) for i in range(7)],
                    replicate=process)
        for d, ms in rows
        for process in range(2)
    ]  # fmt: skip
    folder = made_up.write(tmp_path / "made", records, scaling=["strong"])
    expected = {
        0.3: "up to 8 devices, the most that were measured",
        0.5: "up to 4 devices",
        0.9: "up to 2 devices",
        1: "up to 1 device.",
    }
    for efficiency, words in expected.items():
        first = answers.answer_sentences(findings.read(folder, efficiency=efficiency))[0]
        assert f"Efficiency of at least {efficiency}: on {words}" in first


def test_baseline_of_a_problem_too_large_for_one_device_is_explained_without_a_claim_on_other_counts(
    tmp_path, make_record
):
    def make(devices, ms, **fields):
        times = [ms * 1e-3 * (1 + 1e-3 * (5 * i % 7)) for i in range(7)]
        return make_record(devices=devices, points=64, api="shard_map", **{"seconds": times} | fields)

    skipped = make(1, 1, status="skipped", reason="too_large", seconds=[])
    reason = "on 4 devices, as it did not fit on 1 device. "  # 2 devices were not measured
    for more, words in (([skipped], reason), ([], "on 4 devices. ")):
        folder = made_up.write(
            tmp_path / str(len(more)), [make(4, 12), make(8, 6.4), *more], scaling=["strong"]
        )
        assert f") over the same program {words}" in answers.answer_sentences(findings.read(folder))[0]


@pytest.mark.parametrize(("unpaired", "ratio"), [((), "1.62x"), ((2,), "1.50x")])
def test_ratio_of_modes_is_that_of_their_times_unless_only_some_processes_alternated(
    answer, make_record, unpaired, ratio
):
    records = [
        make_record(
            mode=mode, seconds=[level * factor * (1 + 1e-4 * (5 * k % 7)) for k in range(7)], replicate=i,
            block=None if i in unpaired else f"b{i}", floor_seconds=1e-6,
        )
        for i, level in enumerate((1.0, 2.0, 4.0))
        for mode, factor in (("jacfwd", 1.0), ("jacrev", (1.5, 1.5, 1.9)[i]))
    ]  # fmt: skip
    first = answer(records)[0]
    assert "2.00 s" in first and f"takes {ratio} (" in first


def test_tied_modes_are_not_called_unsure(ask):
    (first, *_) = ask(("jacfwd", 1, 64, 5), ("jacrev", 1, 64, 5.01), spread=0.02)
    assert "; not distinguished. " in first and "not sure" not in first


def test_curve_is_not_called_the_fastest_if_a_curve_with_another_baseline_is_faster(ask):
    rows = [*(("jacfwd", d, 64, 8 / d) for d in (1, 2, 4)), *(("jacrev", d, 64, 4 / d) for d in (2, 4))]
    lines = ask(*rows)
    assert "jacrev (vmap) is fastest, 1.00 ms" in lines[0] and "on 4 devices" in lines[0]
    assert not [line for line in lines if line.startswith("Strong scaling")]


def test_empty_calls_have_no_sentence_on_their_scaling(ask):
    rows = [(mode, d, 64, 0.01) for mode in ("jacfwd", "jacrev") for d in (1, 2)]
    assert not [line for line in ask(*rows, floor_seconds=2e-5) if line.startswith("Strong scaling")]


def test_mode_that_is_faster_in_pairs_is_the_fastest(answer, make_record):
    records = [
        make_record(mode=mode, seconds=[level * factor] * 7, replicate=i, block=f"b{i}")
        for i, level in enumerate((1.0, 1.5, 2.0, 2.6, 3.3))
        for mode, factor in (("jacfwd", 1.0), ("jacrev", 1.01 if i == 2 else 0.9))
    ]
    first = answer(records)[0]
    assert "jacrev (vmap) is fastest, 1.76 s" in first
    assert "takes 1.09x (1.02 to 1.16) as long; " in first


def test_too_few_samples_for_an_interval_recommend_no_number_of_devices(headline):
    first = headline({d: (8 / d,) for d in (1, 2, 4)}, samples=3)
    assert "recommended: too few samples to compare 4 devices with 1 device. Efficiency: " in first
    words = (
        "up to 4 devices, the most that were measured; not sure: too few samples, measured in one process."
    )
    assert words in first


def test_ratio_that_is_not_determined_recommends_no_number_of_devices(headline):
    first = headline({1: (1.0, 1.6), 8: (0.3, 0.5)})
    assert "No number of devices can be recommended: the ratio to jacfwd (vmap) on 1 device is not" in first
    assert "Efficiency: not determined (0." in first


def test_only_the_two_fastest_other_device_counts_are_stated(headline):
    first = headline({d: (64.0 / d,) * 3 for d in (1, 2, 4, 8, 16, 32)})
    assert re.search(
        r"Other device counts: [^;]* on 16 devices [^;]*; [^;]* on 8 devices .* and 2 more\. ", first
    )


@pytest.mark.parametrize("count", [1, 3])
def test_what_one_process_says_of_the_device_counts_is_not_sure(headline, count):
    first = headline({d: (s,) * count for d, s in ((1, 4.0), (2, 2.0), (4, 3.0))})
    assert ". Other device counts: jacfwd (vmap) on 4 devices takes 1.50x (1.50 to 1.50) as long. " in first
    assert first.endswith("Efficiency of at least 0.5: on up to 2 devices.")  # the doubt is stated once
    devices = "device count not sure: measured in one process" if count == 1 else "device count sure"
    assert f"; no other mode measured; {devices}. " in first


def test_limit_of_the_efficiency_is_not_sure_if_the_next_number_of_devices_may_reach_it(headline):
    rows = ((1, 1.0, 0.0), (4, 0.8, 0.0), (8, 0.49, 0.1))
    first = headline({d: [s / (d * e) for s in (1 - spread, 1.0, 1 + spread)] for d, e, spread in rows})
    assert "of at least 0.5: on up to 4 devices; not sure: 0.49 (0.38 to 0.63) on 8 devices." in first


def test_efficiency_of_the_answer_states_its_baseline(headline):
    """Two devices have an efficiency of 1 relative to themselves; their efficiency relative to one is unknown."""
    first = headline({2: (4.0,) * 3, 4: (4.6,) * 3})
    assert first.endswith("Efficiency relative to 2 devices of at least 0.5: on up to 2 devices.")
