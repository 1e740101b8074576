"""Laws of the answer: the fastest mode first, on how many devices, what it costs, how sure; then what holds beside it."""

import dataclasses

import pytest

from scaling.analysis import answer, findings
from tests.support import made_up


@pytest.fixture
def said(tmp_path, make_record):
    """What is said of records given as (mode, devices, points, milliseconds)."""

    def say(*rows, spread=0.001, scaling=("strong",), **fields):
        records = [
            make_record(mode=mode, devices=devices, points=points, api="shard_map",
                        seconds=[ms * 1e-3 * (1 + spread * (5 * i % 13 - 6)) for i in range(13)], **fields)
            for mode, devices, points, ms in rows
        ]  # fmt: skip
        return answer.answer_sentences(made_up.write(tmp_path / "made", records, scaling=scaling))

    return say


def test_the_headline_is_the_least_time_of_the_largest_problem_over_modes_and_devices(said):
    told = said(
        ("jacfwd", 1, 64, 12),
        ("jacfwd", 2, 64, 6.4),
        ("jacrev", 1, 64, 40),
        ("jacrev", 2, 64, 30),
        ("jacrev", 1, 16, 1),
    )
    assert told[0].startswith(
        "linear: jacfwd (vmap) is fastest on 2 devices at the largest size (o=3 p=5 points=64): 6.40 ms (6.37"
    )
    assert "the next, jacrev (vmap), takes 4.69x (" in told[0]
    assert "That is 1.88x (" in told[0] and "efficiency 0.94" in told[0]


def test_more_devices_that_do_not_pay_are_said_so(said):
    (told, *_) = said(("jacfwd", 1, 64, 5), ("jacfwd", 2, 64, 6), ("jacrev", 1, 64, 9), ("jacrev", 2, 64, 8))
    assert "is fastest on 1 device" in told and "More devices do not pay: 2 devices take 1.20x (" in told


def test_what_cannot_be_told_apart_is_no_clear_winner(said):
    told = said(("jacfwd", 1, 64, 5), ("jacrev", 1, 64, 5.01), spread=0.02)
    assert "is tied with the next, not distinguished," in told[0] and "is fastest" not in told[0]


def test_oversubscribed_times_have_no_speedup_and_are_marked(said):
    told = said(("jacfwd", 1, 64, 9), ("jacfwd", 2, 64, 5), environment={"cores": [0]})
    assert [("[oversubscribed]" in line, "on 2 devices" in line) for line in told[:2]] == [
        (False, False),
        (True, True),
    ]
    assert not [line for line in told if "as fast as" in line]


def test_where_the_fastest_mode_changes_is_said_with_the_size(said):
    rows = [
        (mode, 1, n, n if mode == "jacfwd" else 64)
        for mode in ("jacfwd", "jacrev")
        for n in (16, 32, 128, 256)
    ]
    crossing = next(line for line in said(*rows) if line.startswith("Crossover"))
    assert (
        "jacfwd (vmap) is fastest up to points = 32, jacrev (vmap) from 128 on 1 device (their times meet at about 64"
        in crossing
    )
    assert "not distinguished" not in crossing


def test_growth_is_said_with_its_exponent_for_each_mode(said):
    rows = [
        (mode, 1, n, n**2 / 100 if mode == "jacfwd" else n)
        for mode in ("jacfwd", "jacrev")
        for n in (16, 32, 64, 128, 256)
    ]
    growing = next(line for line in said(*rows) if "grows with" in line)
    assert (
        "grows with points on 1 device to the power of 1 (" in growing and "in jacrev (vmap), 2 (" in growing
    )


def test_the_law_of_a_curve_is_said_with_its_limit(said):
    rows = [("jacfwd", d, 1024, 100 * (0.1 + 0.9 / d)) for d in (1, 2, 4, 8, 16, 32, 64, 128)]
    law = next(line for line in said(*rows) if "laws of strong scaling" in line)
    assert (
        "Amdahl describes it best: serial 0.1 (" in law
        and "no more than 10.0x as fast on any number of devices" in law
    )


def test_a_weak_curve_is_said_for_each_device_and_a_strong_one_that_the_headline_told_is_not_said_twice(said):
    counted = {"flops": 1e6, "compulsory_bytes": 1000000}
    told = said(
        *(("jacfwd", d, 16 * d, 5 * (1 + 0.25 * (d > 1))) for d in (1, 2, 4)),
        scaling=("strong", "weak"),
        **counted,
    )
    (weak,) = [line for line in told if line.startswith("Weak scaling")]
    assert (
        "on 4 devices: scaled speed-up 3.20x (" in weak
        and "efficiency 0.8" in weak
        and "points=16 for each device" in weak
    )
    assert not [line for line in told if line.startswith("Strong scaling")]


def test_what_grows_with_its_devices_without_constant_work_is_never_called_weak(said):
    rows = [("jacfwd", d, 16 * d, 5) for d in (1, 2, 4)]
    told = said(*rows, scaling=("weak",), flops=None, compulsory_bytes=1000000)
    assert not [line for line in told if line.startswith("Weak scaling")]
    assert [line for line in told if line.startswith("Not weak scaling")]


def test_at_a_glance_there_is_a_row_for_each_family_and_device_count_and_the_headlines(tmp_path):
    found = findings.read(made_up.write(tmp_path / "made", made_up.study(400)))
    rows, said = answer.summarize(found)
    assert len(rows) == len({(row[0].split(" ")[0], row[1]) for row in rows}) and len(rows) < len(
        found.fastest
    )
    assert said[: len(answer.describe_fastest(found))] == answer.describe_fastest(found)
    assert [line for line in said if "failed" in line] and not [
        line for line in said if line.startswith("Crossover")
    ]


def test_the_headline_of_strong_and_weak_grids_together_is_the_largest_problem_on_every_device_count(said):
    strong, weak = [("jacfwd", d, 64, 8 / d) for d in (1, 2, 4)], [("jacfwd", d, 64 * d, 8) for d in (2, 4)]
    told = said(*strong, *weak, scaling=("strong", "weak"), flops=1e6, compulsory_bytes=1000000)
    assert "on 4 devices at the size (o=3 p=5 points=64): 2.00 ms" in told[0] and "That is 4.00x" in told[0]


def test_between_times_that_are_not_told_apart_no_crossover_is_claimed(said):
    rows = [(mode, 1, n, n if mode == "jacfwd" else 64) for mode in ("jacfwd", "jacrev") for n in (63, 65)]
    assert not [line for line in said(*rows, spread=0.02) if line.startswith("Crossover")]


def test_a_crossover_of_one_process_is_not_sure(said):
    rows = [(mode, 1, n, n if mode == "jacfwd" else 64) for mode in ("jacfwd", "jacrev") for n in (16, 256)]
    crossing = next(line for line in said(*rows) if line.startswith("Crossover"))
    assert crossing.endswith("; not sure: one process.")


def test_a_law_that_is_far_off_is_said_to_be_and_that_of_a_weak_curve_is_of_each_device(said):
    told = said(*(("jacfwd", d, 64, 5 / d**1.5) for d in (1, 2, 4, 8)))
    assert "Amdahl describes it best, though off by " in next(
        line for line in told if "laws of strong" in line
    )
    told = said(
        *(("jacfwd", d, 16 * d, 5 + d) for d in (2, 4, 8)),
        scaling=("weak",),
        flops=1e6,
        compulsory_bytes=1000000,
    )
    assert "points=16 for each device, jacfwd" in next(line for line in told if "laws of weak" in line)


def test_what_ended_without_a_reason_is_counted_without_one(tmp_path, make_record):
    told = answer.answer_sentences(
        made_up.write(tmp_path / "made", [make_record("failed"), make_record("skipped", points=8)])
    )
    assert told[1:] == ["1 case failed: 1 for no reason given.", "1 case skipped: 1 for no reason given."]


@pytest.mark.parametrize("fields, what", [({"engine": "torch"}, "torch"), ({"mode": "value"}, "values"),
                                          ({"mode": "analytic"}, "derivatives written by hand")])  # fmt: skip
def test_where_no_mode_of_jax_was_measured_that_is_said(tmp_path, make_record, fields, what):
    found = findings.read(made_up.write(tmp_path / "made", [make_record(**fields)]))
    expected = f"No mode of JAX was measured, so that none is called the fastest; what was measured: {what}."
    assert answer.answer_sentences(found)[0] == answer.summarize(found)[1][0] == expected


def test_a_derivative_by_hand_is_not_left_out_where_one_mode_was_measured(said):
    (told, *_) = said(("jacfwd", 1, 64, 5), ("analytic", 1, 64, 4))
    assert told.startswith("linear: only jacfwd (vmap) and analytic were measured, on 1 device")
    (told, *_) = said(("jacfwd", 1, 64, 5))
    assert told.startswith("linear: only jacfwd (vmap) was measured, on 1 device")


def test_a_time_under_that_of_an_empty_call_makes_no_mode_the_fastest(said):
    (told, *_) = said(("jacfwd", 1, 64, 0.006), ("jacrev", 1, 64, 5), floor_seconds=9e-6)
    assert "no mode is called the fastest" in told and "is fastest" not in told
    assert "6.00 µs" in told and "not distinguishable from an empty call (9.00 µs)" in told


def test_what_is_distinguished_but_not_sure_says_why(said):
    (told, *_) = said(("jacfwd", 1, 64, 1), ("jacrev", 1, 64, 5), floor_seconds=2e-4)
    assert "is fastest" in told and "; not sure: under ten empty calls, one process" in told


def test_a_ratio_whose_interval_says_nothing_is_not_determined(said):
    (told, *_) = said(("jacfwd", 1, 64, 1), ("jacrev", 1, 64, 1.2), spread=0.166)
    assert "the ratio to the next, jacrev (vmap), is not determined (" in told and "1.20x" not in told


def test_the_blocks_of_chunk_auto_are_said_as_the_record_has_them_with_the_memory_of_all_at_once(said):
    probes = [{"block": None, "chunk": None, "storage": "device", "bytes": 8_100_000_000},
              {"block": 48, "chunk": None, "storage": "device", "bytes": 399_000_000}]  # fmt: skip
    blocks = {"block": 48, "chunk": None, "storage": "device", "limit_bytes": 400_000_000, "probes": probes}
    held = {"argument_bytes": 1_000_000, "output_bytes": 98_000_000, "temp_bytes": 300_000_000}
    (told, *_) = said(("jacfwd", 1, 64, 5), ("jacrev", 1, 64, 9), chunk="auto", blocks=blocks, **held)
    assert (
        "jacfwd (vmap), chunk=auto (all seeds and 48 points at a time, 399 MB against 8.10 GB of all at once)"
        in told
    )


def test_a_speedup_that_does_not_begin_at_one_device_names_its_baseline(said):
    told = said(("jacfwd", 2, 64, 12), ("jacfwd", 4, 64, 6.4), ("jacrev", 2, 64, 40), ("jacrev", 4, 64, 30))
    assert "That is 1.88x (" in told[0] and "as fast as the same program on 2 devices" in told[0]


def test_the_fewest_devices_that_are_not_distinguished_from_the_fastest_are_recommended(said):
    noise = [("jacfwd", 1, 64, 12), ("jacfwd", 2, 64, 6.1), ("jacfwd", 4, 64, 6), ("jacrev", 2, 64, 30)]
    (told, *_) = said(*noise, spread=0.02)
    assert "is fastest on 4 devices" in told or "jacfwd (vmap) was measured, on 4 devices" in told
    assert "Recommended: 2 devices, not distinguished from 4 devices (jacfwd (vmap) takes 1.02x" in told
    assert ", efficiency 0.98 (0." in told
    (told, *_) = said(("jacfwd", 1, 64, 12), ("jacfwd", 2, 64, 6.4))
    assert (
        "Recommended: 2 devices, the fewest that are not distinguished from the fastest, efficiency 0.94 ("
        in told
    )


def test_up_to_how_many_devices_the_efficiency_stays_above_a_threshold_is_said(tmp_path, make_record):
    rows = [(1, 12), (2, 6.4), (4, 4.5), (8, 4.0)]
    records = [
        make_record(devices=d, points=64, api="shard_map", seconds=[ms * 1e-3 * (1 + 1e-3 * (5 * i % 7)) for i in range(7)])
        for d, ms in rows
    ]  # fmt: skip
    folder = made_up.write(tmp_path / "made", records, scaling=["strong"])
    stays = {
        0.3: "up to 8 devices, the most measured",
        0.5: "up to 4 devices",
        0.9: "up to 2 devices",
        1: "up to 1 device.",
    }
    for efficiency, words in stays.items():
        told = answer.answer_sentences(findings.read(folder, efficiency=efficiency))[0]
        assert f"efficiency stays at {efficiency} or above {words}" in told


def test_a_problem_that_does_not_fit_on_one_device_says_so_with_its_baseline(tmp_path, make_record):
    def of(devices, ms, **fields):
        times = [ms * 1e-3 * (1 + 1e-3 * (5 * i % 7)) for i in range(7)]
        return make_record(devices=devices, points=64, api="shard_map", **{"seconds": times} | fields)

    skipped = of(1, 1, status="skipped", reason="too_large", seconds=[])
    for more, words in (
        ([skipped], "on 2 devices, the fewest that it fits on, efficiency"),
        ([], "on 2 devices, efficiency"),
    ):
        folder = made_up.write(tmp_path / str(len(more)), [of(2, 12), of(4, 6.4), *more], scaling=["strong"])
        assert f"as fast as the same program {words}" in answer.answer_sentences(folder)[0]


def test_nodes_and_node_hours_stand_beside_devices_where_several_nodes_were_used(said):
    rows = [("jacfwd", 4, 64, 7.2), ("jacrev", 4, 64, 30)]
    (told, *_) = said(*rows, environment={"cores": None, "platform": "gpu", "hosts": ["a", "b"]})
    assert "on 4 devices of 2 nodes (4.00 node-hours for a million calls) at" in told
    (told, *_) = said(*rows, environment={"cores": None, "platform": "gpu", "hosts": ["a"]})
    assert "node" not in told


def test_a_ratio_of_pairs_that_is_not_that_of_the_medians_says_so(tmp_path, make_record):
    drift, records = (1.0, 2.0, 4.0), []
    for i, level in enumerate(drift):
        for mode, factor in (("jacfwd", 1.0), ("jacrev", (1.5, 1.5, 1.9)[i])):
            seconds = [level * factor * (1 + 1e-4 * (5 * k % 7)) for k in range(7)]
            records.append(
                make_record(mode=mode, seconds=seconds, replicate=i, block=f"b{i}", floor_seconds=1e-6)
            )
    told = answer.answer_sentences(made_up.write(tmp_path / "made", records, scaling=["strong"]))[0]
    assert "(from 3 pairs in turns; the medians give 1.50x)" in told and "takes 1.62x (" in told
    apart = [dataclasses.replace(r, block=None) for r in records]
    told = answer.answer_sentences(made_up.write(tmp_path / "apart", apart, scaling=["strong"]))[0]
    assert "pairs in turns" not in told


def test_modes_that_tie_are_said_to_tie_and_are_never_sure(said):
    (told, *_) = said(("jacfwd", 1, 64, 5), ("jacrev", 1, 64, 5.01), spread=0.02)
    assert (
        "jacfwd (vmap) is tied with the next, not distinguished, on 1 device" in told
        and "not sure" not in told
    )
