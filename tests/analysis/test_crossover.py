"""Tests of the crossover map: the fastest mode at each size and device count, runs of sizes with the same mode, and certainty."""

import numpy as np
import pytest

from scaling.analysis.cases import method_of
from scaling.analysis.sweeps import fastest_mode_maps
from tests.support.records import rank


def maps_of(records):
    return fastest_mode_maps(rank(records))


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


def modes(runs):
    """Return runs of sizes with the mode in place of the name of the method."""
    return [(name.partition(" ")[0], *sizes) for name, *sizes in runs]


def test_adjacent_sizes_with_the_same_fastest_mode_form_a_run(two_modes):
    (result,) = maps_of(two_modes())
    for devices in (1, 2):
        assert modes(result.size_ranges(devices)) == [("jacfwd", 16, 32), ("jacrev", 128, 256)]
        assert result.doubts(devices) == []


def test_sizes_at_which_no_mode_is_distinguished_form_a_run_without_a_mode(two_modes):
    (result,) = maps_of(two_modes(spread=0.1, points=(16, 60, 68, 256), devices=(1,), processes=1))
    assert modes(result.size_ranges(1)) == [("jacfwd", 16, 16), ("", 60, 68), ("jacrev", 256, 256)]
    assert result.doubts(1) == ["measured in one process"]
    (result,) = maps_of(two_modes(devices=(1,), points=(16, 128), floor_seconds=0.07))  # an empty call
    assert modes(result.size_ranges(1)) == [("", 16, 128)] and result.doubts(1) == []


def test_a_mode_must_be_distinguished_from_a_third_one(two_modes, make_record):
    third = [
        make_record(mode="linearize", points=32, api="shard_map", seconds=[s] * 13, replicate=i)
        for i, s in enumerate((0.03, 0.036))
    ]
    (result,) = maps_of([*two_modes(devices=(1,)), *third])
    assert modes(result.size_ranges(1)) == [("jacfwd", 16, 16), ("", 32, 32), ("jacrev", 128, 256)]


def test_the_only_mode_at_a_size_is_not_the_fastest_even_with_several_settings(two_modes, make_record):
    one_mode_per_size = [
        r for r in two_modes(devices=(1,)) if (r.case.mode == "jacfwd") is (r.case.points < 64)
    ]
    slower = {"chunk": 1, "api": "shard_map"}
    settings = [
        make_record(
            mode=r.case.mode,
            points=r.case.points,
            seconds=[2 * s for s in r.seconds],
            replicate=r.replicate,
            **slower,
        )
        for r in one_mode_per_size
    ]
    (result,) = maps_of([*one_mode_per_size, *settings])
    assert modes(result.size_ranges(1)) == [("", 16, 256)]


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
    assert all(len(m.cells) == 8 and len(m.size_ranges(1)) == 2 for m in maps)


def test_unmeasured_cells_are_empty_and_a_single_size_makes_no_map(two_modes):
    records = two_modes()
    (result,) = maps_of([r for r in records if (r.case.points, r.case.devices) != (256, 2)])
    assert (256, 2) not in result.cells and (256, 1) in result.cells and len(result.cells) == 7
    assert maps_of(two_modes(points=(16,))) == []


def test_change_of_api_alone_begins_no_run(two_modes, make_record):
    """Each cell uses the faster of two apis, and a change of the api alone begins no run."""
    faster = [
        make_record(mode="jacfwd", points=n, api="pmap", seconds=[n * 9e-4 + i * 1e-8 for i in range(13)])
        for n in (16, 32)
    ]
    (result,) = maps_of(two_modes(devices=(1,)) + faster)
    assert result.cells[16, 1].fastest.case.api == "pmap"
    assert result.cells[128, 1].fastest.case.api == "shard_map"
    expected = ["jacfwd", "jacfwd", "jacrev", "jacrev"]
    assert [method_of(cell.fastest.case).mode for _, cell in sorted(result.cells.items())] == expected
    assert len(result.size_ranges(1)) == 2


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


def test_chance_differences_among_many_comparisons_are_doubted(make_record):
    """Equal modes with noise between processes: chance distinguishes some of them, and each has a doubt."""
    random, doubts = np.random.default_rng(7), []
    for _ in range(40):
        records = [
            make_record(mode=mode, points=n, devices=count, api="shard_map", seconds=[level] * 7, replicate=i)
            for n in (16, 32, 64, 128, 256, 512, 1024, 2048)
            for count in (1, 2, 4)
            for mode in ("jacfwd", "jacrev")
            for i, level in enumerate(n * 1e-3 / count * np.exp(0.02 * random.standard_normal(4)))
        ]
        (result,) = maps_of(records)
        doubts += [
            result.doubts(n)
            for n in (1, 2, 4)
            if {"jacfwd", "jacrev"} <= {mode for mode, *_ in modes(result.size_ranges(n))}
        ]
    assert doubts and all(each == ["chance may explain one of 24 comparisons"] for each in doubts)


def test_a_mode_that_chance_may_distinguish_from_a_noisy_third_one_has_a_doubt(make_record):
    """The runner-up is certainly slower, but the times of a third mode vary between its processes."""
    noise = {"jacfwd": (1.0, 0.001), "jacrev": (1.5, 0.001), "linearize": (2.0, 0.3)}
    records = [
        make_record(mode=mode, points=n, devices=1, api="jit", seconds=[level] * 7, replicate=i)
        for n in (16, 32, 64, 128)
        for mode, (seconds, spread) in noise.items()
        for i, level in enumerate(n * seconds * np.exp(spread * np.array([-1, 1, -1, 1])))
    ]
    (result,) = maps_of(records)
    assert [mode for mode, *_ in modes(result.size_ranges(1))] == ["jacfwd"]
    assert result.doubts(1) == ["chance may explain one of 4 comparisons"]
