"""The blocks of chunk=auto: the largest that fit, whatever memory does as they shrink."""

from scaling.core.case import Case
from scaling.core.shape import DerivativeShape, LinearMapPart
from scaling.core.workload import Workload, uniform
from scaling.options.autochunk import BlockSizes, MemoryNeed, find_blocks

CASE = Case("mine", points=12, mode="jacfwd", chunk="auto", api="jit")
WORKLOAD = Workload(lambda x: x, {"x": uniform(40)}, wrt="x")
SIZES = DerivativeShape(3, 40, 40, 40, False, 3, (LinearMapPart("jacfwd", ("x",), 40),))


def found(needed, limit, case=CASE, known=None, hopeless=0):
    """What is found where a program of (points, seeds, on the host) at a time needs so many bytes."""

    def need(blocks):
        of = needed(blocks.block or 12, blocks.chunk or 40, blocks.storage == "host")
        return MemoryNeed(of, of <= limit, hopeless > limit)

    return find_blocks(case, WORKLOAD, SIZES, need, known)


def test_all_at_once_is_tried_first_and_taken_if_it_fits():
    assert found(lambda points, seeds, host: 480, 480).probes == ((BlockSizes(), 480),)


def test_what_does_more_at_a_time_is_taken():
    assert found(lambda points, seeds, host: 100 * points + seeds, 650).blocks == BlockSizes(block=6)
    assert found(lambda points, seeds, host: points + 100 * seeds, 1100).blocks == BlockSizes(chunk=10)


def test_of_as_much_points_are_cut():
    assert found(lambda points, seeds, host: points * seeds, 240).blocks == BlockSizes(block=6)


def test_the_first_that_fits_is_refined_once():
    assert found(lambda points, seeds, host: 100 * points + seeds, 500).blocks == BlockSizes(block=4)
    assert found(lambda points, seeds, host: 100 * points + seeds, 399).blocks == BlockSizes(block=3)


def test_memory_that_grows_as_blocks_shrink_hides_nothing_that_fits():
    odd = lambda points, seeds, host: {12: 100, 6: 900, 3: 50}.get(points, 70) if seeds == 40 else 1000  # noqa: E731
    assert found(odd, 60).blocks == BlockSizes(block=3)


def test_where_neither_fits_one_point_is_taken_by_some_of_its_seeds():
    assert found(
        lambda points, seeds, host: 1000 * (points - 1) + 100 * (seeds - 1) + 1, 500
    ).blocks == BlockSizes(1, 5)


def test_the_host_is_asked_only_where_the_device_cannot_and_the_case_lets_it():
    import dataclasses

    only_there = lambda points, seeds, host: 10 * points if host else 1000  # noqa: E731
    assert found(only_there, 60).blocks == BlockSizes(6, None, "host")
    assert found(only_there, 60, dataclasses.replace(CASE, storage="device")).blocks is None
    at_once = found(lambda points, seeds, host: 10, 60, dataclasses.replace(CASE, storage="host"))
    assert at_once.blocks.storage == "host"
    in_chunks_there = lambda points, seeds, host: seeds if host else 1000  # noqa: E731
    assert found(in_chunks_there, 60, dataclasses.replace(CASE, batch="whole")).blocks is None


def test_a_result_that_is_too_large_by_itself_is_not_compiled_again_and_again():
    probes = found(lambda points, seeds, host: 10 * points if host else 1000, 60, hopeless=999).probes
    assert [blocks for blocks, _ in probes if blocks.storage == "device"] == [BlockSizes()]


def test_what_fitted_before_is_tried_first_and_given_up_where_it_does_not():
    known = BlockSizes(block=3)
    assert found(lambda points, seeds, host: 100 * points, 650, known=known).probes == ((known, 300),)
    assert found(lambda points, seeds, host: 100 * points, 250, known=known).blocks == BlockSizes(block=2)


def test_where_nothing_fits_the_least_is_told():
    nothing = found(lambda points, seeds, host: 7 + points * seeds, 5)
    assert nothing.blocks is None and nothing.least_bytes == 8
