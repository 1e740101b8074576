"""Tests of chunk=auto: it finds the largest blocks that fit, for any dependence of the memory on the block size."""

import dataclasses
from typing import NamedTuple

from scaling.core.case import Case, TooLarge
from scaling.core.compile_case import CompiledCase
from scaling.core.derivative import Derivative, LinearMapPart
from scaling.core.workload import Workload, uniform
from scaling.options.autochunk import BlockSizes, compile_largest

CASE = Case("mine", points=12, mode="jacfwd", chunk="auto", api="jit")
WORKLOAD = Workload(lambda x: x, {"x": uniform(40)}, wrt="x")
DERIVATIVE = Derivative(CASE, WORKLOAD, 3, 40, False, 3, (LinearMapPart("jacfwd", ("x",), 40),))


class Found(NamedTuple):
    blocks: BlockSizes | None
    compiled: tuple  # the block sizes of the compiled programs
    probes: tuple


def search(bytes_of, limit, case=CASE, known=None, hopeless=0):
    """Search blocks if a program needs `bytes_of(points per step, seeds per step, whether storage=host)`."""
    compiled = []

    def compile_blocks(derivative):
        case = derivative.case
        compiled.append(BlockSizes(case.block, case.chunk, case.storage or "device"))
        needed = bytes_of(case.block or 12, case.chunk or 40, case.storage == "host")
        needs = {"argument_bytes": needed, "temp_bytes": 0, "output_bytes": 0}
        return CompiledCase(derivative, "a program", None, needs)

    def describe_shortage(program):
        is_compiled, is_on_device = program.program is not None, program.derivative.case.storage is None
        needed = program.needs["argument_bytes"] if is_compiled else hopeless if is_on_device else 0
        return f"needs {needed}" if needed > limit else None

    derivative = dataclasses.replace(DERIVATIVE, case=case)
    try:
        blocks = compile_largest(derivative, compile_blocks, describe_shortage, known and vars(known)).blocks
    except TooLarge as error:
        return Found(None, tuple(compiled), error.args)
    sizes = lambda item: BlockSizes(item["block"], item["chunk"], item["storage"])  # noqa: E731
    probes = tuple((sizes(probe), probe["bytes"]) for probe in blocks["probes"])
    return Found(sizes(blocks), tuple(compiled), probes)


def test_the_undivided_program_is_tried_first_and_used_if_it_fits():
    assert search(lambda points, seeds, host: 480, 480).probes == ((BlockSizes(), 480),)


def test_the_candidate_with_more_work_per_step_is_used():
    assert search(lambda points, seeds, host: 100 * points + seeds, 650).blocks == BlockSizes(block=6)
    assert search(lambda points, seeds, host: points + 100 * seeds, 1100).blocks == BlockSizes(chunk=10)


def test_among_equal_candidates_points_are_divided():
    assert search(lambda points, seeds, host: points * seeds, 240).blocks == BlockSizes(block=6)


def test_the_first_fitting_block_size_is_refined_once():
    assert search(lambda points, seeds, host: 100 * points + seeds, 500).blocks == BlockSizes(block=4)
    assert search(lambda points, seeds, host: 100 * points + seeds, 399).blocks == BlockSizes(block=3)


def test_a_fitting_block_is_found_even_if_a_larger_block_needs_less_memory():
    irregular = lambda points, seeds, host: {12: 100, 6: 900, 3: 50}.get(points, 70) if seeds == 40 else 1000  # noqa: E731
    assert search(irregular, 60).blocks == BlockSizes(block=3)


def test_if_neither_division_fits_single_points_are_divided_by_seeds():
    assert search(
        lambda points, seeds, host: 1000 * (points - 1) + 100 * (seeds - 1) + 1, 500
    ).blocks == BlockSizes(1, 5)


def test_host_storage_is_used_only_if_the_device_is_too_small_and_the_case_allows_it():
    import dataclasses

    only_host_fits = lambda points, seeds, host: 10 * points if host else 1000  # noqa: E731
    assert search(only_host_fits, 60).blocks == BlockSizes(6, None, "host")
    assert search(only_host_fits, 60, dataclasses.replace(CASE, storage="device")).blocks is None
    undivided = search(lambda points, seeds, host: 10, 60, dataclasses.replace(CASE, storage="host"))
    assert undivided.blocks.storage == "host"
    chunks_fit_on_host = lambda points, seeds, host: seeds if host else 1000  # noqa: E731
    assert search(chunks_fit_on_host, 60, dataclasses.replace(CASE, batch="whole")).blocks is None


def test_no_program_is_compiled_for_the_device_if_the_result_exceeds_its_memory():
    found = search(lambda points, seeds, host: 10 * points if host else 1000, 60, hopeless=999)
    assert {blocks.storage for blocks in found.compiled} == {"host"} == {found.blocks.storage}


def test_known_block_sizes_are_tried_first_and_replaced_if_they_do_not_fit():
    known = BlockSizes(block=3)
    assert search(lambda points, seeds, host: 100 * points, 650, known=known).probes == ((known, 300),)
    assert search(lambda points, seeds, host: 100 * points, 250, known=known).blocks == BlockSizes(block=2)


def test_if_nothing_fits_the_memory_of_the_smallest_program_is_reported():
    found = search(lambda points, seeds, host: points * seeds + 7, 7)
    assert found.blocks is None and found.probes == ("no block size fits: needs 8",)
    assert len(found.compiled) == len(set(found.compiled)) == 33
