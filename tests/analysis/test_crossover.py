"""Tests of the crossover map: the fastest mode at each size and device count, the sizes at which it changes, and certainty."""

import numpy as np
import pytest

from scaling.analysis import size_series
from scaling.analysis.cases import method_of
from scaling.analysis.ratios import estimate_ratio
from scaling.analysis.size_series import fastest_mode_maps
from scaling.analysis.timings import pool_processes
from tests.support.records import rank


def maps_of(records):
    return fastest_mode_maps(rank(records), pool_processes(records))


@pytest.fixture
def two_modes(make_record):
    """Return a function that makes records; jacfwd takes 1 ms per point and jacrev 64 ms, both divided by the devices."""

    def make(spread=0.001, points=(16, 32, 128, 256), devices=(1, 2), processes=2, **fields):
        records = []
        for count in devices:
            for n in points:
                for mode, ms in (("jacfwd", n), ("jacrev", 64)):
                    seconds = [ms * 1e-3 / count * (1 + spread * (5 * i % 13 - 6)) for i in range(13)]
                    case = {"mode": mode, "points": n, "devices": count, "api": "shard_map"}
                    records += [
                        make_record(seconds=seconds, replicate=i, **case, **fields) for i in range(processes)
                    ]
        return records

    return make


def test_each_size_and_device_count_has_its_fastest_mode(two_modes):
    (result,) = maps_of(two_modes())
    assert (result.sizes, result.devices, result.swept) == ((16, 32, 128, 256), (1, 2), "points")
    modes = {at: cell.fastest.case.mode for at, cell in result.cells.items()}
    assert modes == {(n, d): "jacfwd" if n < 64 else "jacrev" for n in result.sizes for d in result.devices}
    assert all(cell.certainty == "sure" for cell in result.cells.values())


def test_crossover_lies_where_the_interpolated_times_intersect(two_modes):
    (result,) = maps_of(two_modes())
    assert [(crossover.devices, crossover.below, crossover.above) for crossover in result.crossovers] == [
        (1, 32, 128),
        (2, 32, 128),
    ]
    for crossover in result.crossovers:
        assert (crossover.before.mode, crossover.after.mode) == ("jacfwd", "jacrev")
        assert crossover.at == pytest.approx(64) and not crossover.doubts


def test_indistinguishable_times_have_no_crossover(two_modes):
    (result,) = maps_of(two_modes(spread=0.1, points=(60, 68), processes=1))
    assert result.crossovers == () and not any(cell.distinguished for cell in result.cells.values())


def test_indistinguishable_sizes_lie_within_the_crossover_around_them(two_modes):
    (result,) = maps_of(two_modes(spread=0.1, points=(16, 60, 68, 256), devices=(1,), processes=1))
    assert [(crossover.below, crossover.above, crossover.doubts) for crossover in result.crossovers] == [
        (16, 256, ("measured in one process",))
    ]


def test_crossover_is_not_sure_if_a_third_mode_may_be_faster(two_modes, make_record):
    third = [
        make_record(mode="linearize", points=32, api="shard_map", seconds=[s] * 13, replicate=i)
        for i, s in enumerate((0.03, 0.036))
    ]
    (result,) = maps_of([*two_modes(devices=(1,)), *third])
    (crossover,) = result.crossovers
    assert (crossover.before.mode, crossover.after.mode) == ("jacfwd", "jacrev")
    assert crossover.doubts == ("another mode is not distinguished",)


def test_times_meet_between_the_two_sizes_even_if_only_pairs_show_which_mode_is_faster(make_record):
    drift = (1.0, 2.0, 3.0, 4.0, 5.0)
    records = [
        make_record(
            mode=mode, points=n, seconds=[level * factor] * 7, replicate=i, block=f"b{i} {n}", api="shard_map"
        )
        for n, faster in ((16, "jacrev"), (64, "jacfwd"))
        for mode in ("jacfwd", "jacrev")
        for i, level in enumerate(drift)
        for factor in [(1.01 if n == 16 and i == 2 else 0.95) if mode == faster else 1.0]
    ]
    (crossover,) = maps_of(records)[0].crossovers
    assert 16 < crossover.at < 64


def test_crossover_requires_both_modes_on_both_sides(two_modes):
    records = [r for r in two_modes(devices=(1,)) if (r.case.mode, r.case.points) != ("jacrev", 32)]
    (crossover,) = maps_of(records)[0].crossovers
    assert (crossover.below, crossover.above, crossover.at) == (16, 128, pytest.approx(64))
    one_mode_per_size = [
        r for r in two_modes(devices=(1,)) if (r.case.mode == "jacfwd") is (r.case.points < 64)
    ]
    assert maps_of(one_mode_per_size)[0].crossovers == ()


def test_times_below_an_empty_call_have_no_crossover(two_modes):
    assert maps_of(two_modes(devices=(1,), points=(16, 128), floor_seconds=0.07))[0].crossovers == ()


def test_maps_never_mix_environments_families_or_fixed_sizes(two_modes):
    records = (
        two_modes()
        + two_modes(digest="f" * 12)
        + two_modes(dtype="float64")
        + two_modes(sizes={"p": 9, "o": 3})
    )
    maps = maps_of(records)
    assert sorted((m.environment[:1], m.case.dtype, m.fixed_sizes) for m in maps) == [
        ("e", "float32", "o=3 p=5"), ("e", "float32", "o=3 p=9"), ("e", "float64", "o=3 p=5"), ("f", "float32", "o=3 p=5"),
    ]  # fmt: skip
    assert all(len(m.cells) == 8 and len(m.crossovers) == 2 for m in maps)


def test_unmeasured_cells_are_empty_and_a_single_size_makes_no_map(two_modes):
    records = two_modes()
    (result,) = maps_of([r for r in records if (r.case.points, r.case.devices) != (256, 2)])
    assert (256, 2) not in result.cells and (256, 1) in result.cells and len(result.cells) == 7
    assert maps_of(two_modes(points=(16,))) == []


def test_change_of_api_alone_is_no_crossover(two_modes, make_record):
    """Each cell uses the faster of two apis, and a change of the api alone is no crossover."""
    faster = [
        make_record(mode="jacfwd", points=n, api="pmap", seconds=[n * 9e-4 + i * 1e-8 for i in range(13)])
        for n in (16, 32)
    ]
    (result,) = maps_of(two_modes(devices=(1,)) + faster)
    assert result.cells[16, 1].fastest.case.api == "pmap"
    assert result.cells[128, 1].fastest.case.api == "shard_map"
    expected = ["jacfwd", "jacfwd", "jacrev", "jacrev"]
    assert [method_of(cell.fastest.case).mode for _, cell in sorted(result.cells.items())] == expected
    assert len(result.crossovers) == 1


def test_points_that_grow_with_the_device_count_are_not_the_swept_size(two_modes, make_record):
    weak = [
        make_record(mode="jacfwd", sizes={"p": 5, "o": 3}, points=16 * d, devices=d, api="shard_map")
        for d in (1, 2, 4, 8, 16)
    ]
    sizes = [
        make_record(mode="jacfwd", sizes={"p": p, "o": 3}, points=16, devices=d, api="shard_map")
        for p in (5, 6, 7)
        for d in (1, 2)
    ]
    (result,) = maps_of(weak + sizes)
    expected = ("p", "points=16 o=3", (5, 6, 7), (1, 2))
    assert (result.swept, result.fixed_sizes, result.sizes, result.devices) == expected


def test_chance_differences_among_many_comparisons_make_no_sure_crossover(make_record):
    """Equal modes with noise between processes: some maps show a crossover, and none of them is sure."""
    random, doubts = np.random.default_rng(7), []
    for _ in range(40):
        records = [
            make_record(mode=mode, points=n, devices=count, api="shard_map", seconds=[level] * 7, replicate=i)
            for n in (16, 32, 64, 128, 256, 512, 1024, 2048)
            for count in (1, 2, 4)
            for mode in ("jacfwd", "jacrev")
            for i, level in enumerate(n * 1e-3 / count * np.exp(0.02 * random.standard_normal(4)))
        ]
        doubts += [crossover.doubts for crossover in maps_of(records)[0].crossovers]
    assert doubts and set(doubts) == {("chance may explain it among 24 comparisons",)}


def test_the_number_of_estimated_ratios_is_proportional_to_the_number_of_sizes(make_record, monkeypatch):
    """The fastest of two indistinguishable modes changes by chance from size to size."""
    ratios = []
    monkeypatch.setattr(
        size_series, "estimate_ratio", lambda *pair: ratios.append(pair) or estimate_ratio(*pair)
    )
    rng, counts = np.random.default_rng(0), {}
    for sizes in (20, 40):
        ratios.clear()
        records = [
            make_record(mode=mode, points=n, seconds=list(n * rng.uniform(1, 1.1, 7)), replicate=i)
            for n in range(1, sizes + 1)
            for mode in ("jacfwd", "jacrev")
            for i in range(2)
        ]
        maps_of(records)
        counts[sizes] = len(ratios)
    assert counts[20] >= 20 and counts[40] <= 2 * counts[20]
