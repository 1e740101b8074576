"""Laws of the crossover map: what is fastest at each size and device count, where it changes, and how sure that is."""

import pytest

from scaling.analysis.crossover import fastest_mode_maps
from scaling.analysis.curves import fastest_methods, method_of, pool_processes


def mapped(records):
    return fastest_mode_maps(fastest_methods(records), pool_processes(records))


@pytest.fixture
def timed(make_record):
    """Records of two modes over points and devices: forward takes `points` ms, reverse 64 ms whatever their number."""

    def make(spread=0.001, points=(16, 32, 128, 256), devices=(1, 2), processes=2, **fields):
        records = []
        for count in devices:
            for n in points:
                for mode, ms in (("jacfwd", n), ("jacrev", 64)):
                    seconds = [ms * 1e-3 / count * (1 + spread * (5 * i % 13 - 6)) for i in range(13)]
                    where = {"mode": mode, "points": n, "devices": count, "api": "shard_map"}
                    records += [
                        make_record(seconds=seconds, replicate=i, **where, **fields) for i in range(processes)
                    ]
        return records

    return make


def test_every_size_and_device_count_has_the_fastest_mode_of_its_own(timed):
    (found,) = mapped(timed())
    assert (found.sizes, found.devices, found.swept) == ((16, 32, 128, 256), (1, 2), "points")
    modes = {at: cell.first.case.mode for at, cell in found.cells.items()}
    assert modes == {(n, d): "jacfwd" if n < 64 else "jacrev" for n in found.sizes for d in found.devices}
    assert all(cell.sure for cell in found.cells.values())


def test_the_line_flips_where_straight_lines_through_both_times_cross(timed):
    (found,) = mapped(timed())
    assert [(flip.devices, flip.below, flip.above) for flip in found.crossovers] == [
        (1, 32, 128),
        (2, 32, 128),
    ]
    for flip in found.crossovers:
        assert (flip.before.mode, flip.after.mode) == ("jacfwd", "jacrev")
        assert flip.at == pytest.approx(64) and flip.sure


def test_no_crossover_is_claimed_between_times_that_cannot_be_told_apart(timed):
    (found,) = mapped(timed(spread=0.1, points=(60, 68), processes=1))
    assert found.crossovers == () and not any(cell.distinguished for cell in found.cells.values())


def test_what_cannot_be_told_apart_lies_within_the_crossover_around_it(timed):
    (found,) = mapped(timed(spread=0.1, points=(16, 60, 68, 256), devices=(1,), processes=1))
    assert [(flip.below, flip.above, flip.doubts) for flip in found.crossovers] == [
        (16, 256, ("one process",))
    ]


def test_both_modes_were_measured_on_both_sides_of_a_crossover(timed):
    records = [r for r in timed(devices=(1,)) if (r.case.mode, r.case.points) != ("jacrev", 32)]
    (flip,) = mapped(records)[0].crossovers
    assert (flip.below, flip.above, flip.at) == (16, 128, pytest.approx(64))
    alone = [r for r in timed(devices=(1,)) if (r.case.mode == "jacfwd") is (r.case.points < 64)]
    assert mapped(alone)[0].crossovers == ()


def test_times_under_that_of_an_empty_call_cross_nowhere(timed):
    assert mapped(timed(devices=(1,), points=(16, 128), floor_seconds=0.07))[0].crossovers == ()


def test_maps_never_mix_environments_families_or_held_sizes(timed):
    several = timed() + timed(digest="f" * 12) + timed(dtype="float64") + timed(sizes={"p": 9, "o": 3})
    found = mapped(several)
    assert sorted((m.environment[:1], m.case.dtype, m.held) for m in found) == [
        ("e", "float32", "o=3 p=5"), ("e", "float32", "o=3 p=9"), ("e", "float64", "o=3 p=5"), ("f", "float32", "o=3 p=5"),
    ]  # fmt: skip
    assert all(len(m.cells) == 8 and len(m.crossovers) == 2 for m in found)


def test_what_was_not_measured_leaves_its_cell_empty_and_one_size_makes_no_map(timed):
    records = timed()
    (found,) = mapped([r for r in records if (r.case.points, r.case.devices) != (256, 2)])
    assert (256, 2) not in found.cells and (256, 1) in found.cells and len(found.cells) == 7
    assert mapped(timed(points=(16,))) == []


def test_a_way_to_call_a_mode_is_no_other_mode(timed, make_record):
    """The fastest of two apis is taken in each cell; a change of api alone is no flip."""
    faster = [
        make_record(mode="jacfwd", points=n, api="pmap", seconds=[n * 9e-4 + i * 1e-8 for i in range(13)])
        for n in (16, 32)
    ]
    (found,) = mapped(timed(devices=(1,)) + faster)
    assert found.cells[16, 1].first.case.api == "pmap" and found.cells[128, 1].first.case.api == "shard_map"
    assert [method_of(cell.first.case).mode for _, cell in sorted(found.cells.items())] == [
        "jacfwd",
        "jacfwd",
        "jacrev",
        "jacrev",
    ]
    assert len(found.crossovers) == 1


def test_points_that_grow_with_their_devices_are_not_the_size_that_is_swept(timed, make_record):
    weak = [
        make_record(mode="jacfwd", sizes={"p": 5, "o": 3}, points=16 * d, devices=d, api="shard_map")
        for d in (1, 2, 4, 8, 16)
    ]
    sizes = [
        make_record(mode="jacfwd", sizes={"p": p, "o": 3}, points=16, devices=d, api="shard_map")
        for p in (5, 6, 7)
        for d in (1, 2)
    ]
    (found,) = mapped(weak + sizes)
    assert (found.swept, found.held, found.sizes, found.devices) == ("p", "points=16 o=3", (5, 6, 7), (1, 2))
