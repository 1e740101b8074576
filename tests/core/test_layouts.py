"""Tests of layouts: splits, meshes, chunks, blocks, reductions, storage and rematerialization do not change a derivative.

They multiply the axes of tests/contract by meshes of eight devices, chunks and blocks with remainders, reductions, host storage,
rematerialization, mixed modes, and the gradient of a sum over points.
"""

import dataclasses
import os
import subprocess
import sys

import pytest

from tests.support.devices import HERE, ONCE, reason_to_skip, run_once  # isort: skip  # before JAX is used
import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from scaling.core import compile_case, layout, run_case, workload
from scaling.core.case import AUTO, REDUCTIONS, REMATS, Case, Refusal
from scaling.core.derivative import describe_derivative
from scaling.core.inputs import input_structs
from scaling.core.record import Record
from scaling.study import case_rules

pytestmark = pytest.mark.thin(30, "thorough")

PROBLEMS = {  # few device counts divide these sizes evenly
    "rbf": {"workload": "rbf", "points": 7, "sizes": {"m": 5}},
    "rbf in three dimensions": {"workload": "rbf", "points": 5, "variant": "squared", "sizes": {"d": 3, "m": 11}},
    "rbf grad": {"workload": "rbf", "target": "grad", "sizes": {"m": 13}},
    "linear by W": {"workload": "linear", "points": 5, "sizes": {"p": 3, "o": 7}},
    "linear by both": {"workload": "linear", "points": 3, "sizes": {"p": 2, "o": 5}, "wrt": "W+X"},
    "linear as a whole batch": {"workload": "linear", "points": 3, "sizes": {"p": 3, "o": 5}, "batch": "whole"},
    "residual by both": {"workload": "residual", "points": 9, "wrt": "m+d"},
    "residual scalar": {"workload": "residual", "points": 10, "wrt": "d+m", "variant": "scalar"},
    "residual Hessian": {"workload": "residual", "points": 3, "wrt": "d+m", "variant": "scalar", "target": "hessian"},
    "poisson": {"workload": "poisson", "points": 11},
    "poisson as a whole batch": {"workload": "poisson", "points": 11, "batch": "whole"},
    "stencil": {"workload": "stencil", "points": 3, "sizes": {"side": 5}},
    "arrowhead": {"workload": "arrowhead", "points": 3, "sizes": {"n": 7}},
}  # fmt: skip
MESHES = ("8x1", "4x2", "2x4", "1x8")
SUM = {"workload": "linear", "points": 12, "sizes": {"p": 3, "o": 7}}
DATA = SUM | {"split": "data", "devices": 4}
AXIS_TYPES = pytest.mark.parametrize(
    "axis_type", [AxisType.Auto, AxisType.Explicit], ids=["automatic", "explicit"]
)
SECOND_ORDER = ("residual Hessian",)
WHOLE_BATCH = ("linear as a whole batch", "poisson as a whole batch")


def run(fields: dict) -> Record:
    """Return the record of a case with a single sample."""
    case = case_rules.complete(Case(**{"dtype": "float64"} | fields))
    case = case_rules.without_trivial_blocks(describe_derivative(case, workload.build(case))).case
    return run_once(case)


def run_and_check(fields: dict, sends: bool = False) -> Record:
    """Return the record of a case; assert that it is correct and communicates only if `sends`."""
    record = run(fields)
    assert record.status == "ok", record.text
    assert record.error <= record.tolerance and record.error < 1e-10
    assert any(record.collectives.values()) == sends
    return record


def complete(problem: str, **fields) -> Case:
    """Return the completed case of a problem."""
    return case_rules.complete(Case(**PROBLEMS[problem] | fields))


@pytest.fixture
def set_axis_type(monkeypatch):
    """Return a function that creates every mesh with axes of a type; the functions of JAX have different defaults."""
    return lambda axis_type: monkeypatch.setattr(
        layout, "Mesh", lambda devices, names: Mesh(devices, names, axis_types=(axis_type,) * len(names))
    )


def modes_of(problem: str) -> tuple[str, ...]:
    return ("fwd_over_rev", "rev_over_rev") if problem in SECOND_ORDER else ("jacfwd", "jacrev")


@AXIS_TYPES
@pytest.mark.parametrize(
    "fields",
    [
        {"split": "both", "mesh": "2x4", "devices": 8},
        {"split": "both", "mesh": "2x4", "devices": 8, "mode": "jacrev", "chunk": 2},
        {"split": "both", "mesh": "2x2", "devices": 4, "storage": "host", "block": 2},
        {"split": "both", "mesh": "2x2", "devices": 4, "api": "pmap"},
        {"split": "seeds", "devices": 2, "wrt": "m", "variant": "scalar", "mode": "jacrev"},
    ],
    ids=str,
)
def test_explicit_and_automatic_mesh_axes_give_the_same_result(fields, axis_type, set_axis_type):
    set_axis_type(axis_type)
    run_and_check({"mode": "jacfwd"} | PROBLEMS["residual by both"] | fields)


@AXIS_TYPES
def test_a_data_parallel_gradient_is_the_same_on_explicit_and_automatic_axes(axis_type, set_axis_type):
    set_axis_type(axis_type)
    run_and_check(DATA | {"points": 8, "wrt": "W", "mode": "jacrev"}, sends=True)


@pytest.mark.covering(1)
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_every_mesh_of_eight_devices_gives_the_reference_for_uneven_sizes(problem, mesh):
    fields = PROBLEMS[problem] | {"split": "both", "mesh": mesh, "devices": 8}
    if problem in WHOLE_BATCH and mesh != "1x8":
        case = case_rules.complete(Case(**fields))
        assert reason_to_skip(case)[0] == "not_defined"
        return
    for mode, api in zip(modes_of(problem), ("shard_map", "pmap"), strict=True):
        record = run_and_check(fields | {"mode": mode, "api": api})
        seeds = describe_derivative(record.case, workload.build(record.case)).seeds
        points = record.case.points
        over_points, over_seeds = record.case.mesh_shape
        computed = -(-points // over_points) * over_points * -(-seeds // over_seeds) * over_seeds
        assert record.padding == pytest.approx(1 - points * seeds / computed)


@pytest.mark.thin(31, "thorough")  # another reduction in each default item
@pytest.mark.covering(2)
@pytest.mark.parametrize("reduce", [name for name in REDUCTIONS if name != "points"])
@pytest.mark.parametrize("mode", ["jacfwd", "jacrev", "mixed"])
@pytest.mark.parametrize(
    "problem",
    ["linear by both", "linear as a whole batch", "residual by both", "rbf in three dimensions", "arrowhead"],
)
def test_every_reduction_is_the_same_in_chunks_and_blocks_and_over_devices(problem, mode, reduce):
    fields = PROBLEMS[problem] | {"mode": mode, "reduce": reduce}
    case = case_rules.complete(Case(**fields))
    if reason_to_skip(case):
        return
    run_and_check(fields | {"api": "jit", "chunk": 3, "block": 2})
    mesh = "2x2" if problem not in WHOLE_BATCH else "1x4"
    run_and_check(fields | {"split": "both", "mesh": mesh, "devices": 4, "chunk": 2})


def test_an_inapplicable_reduction_has_a_specific_reason():
    explanations = {}
    for problem, mode, reduce in (
        ("linear as a whole batch", "jacrev", "gram"),
        ("residual by both", "mixed", "gram"),
        ("poisson as a whole batch", "jacrev", "norm"),
    ):
        case = complete(problem, mode=mode, reduce=reduce, api="jit")
        reason, explanations[problem] = reason_to_skip(case)
        assert reason == "not_defined"
    assert len(set(explanations.values())) == 3


def test_a_chunked_forward_gram_matrix_recomputes_all_columns_for_each_chunk():
    fields = PROBLEMS["linear by W"] | {"mode": "jacfwd", "reduce": "gram", "api": "jit"}
    assert run_and_check(fields).passes == 21
    assert run_and_check(fields | {"chunk": 8}).passes == 21 + 3 * 21
    assert run_and_check(fields | {"mode": "jacrev", "chunk": 2}).passes == 7


@pytest.mark.covering(2)
@pytest.mark.parametrize("chunk", [None, 4, 100])
@pytest.mark.parametrize("mode", ["jacfwd", "jacrev", "finite_difference"])
@pytest.mark.parametrize(
    ("api", "split", "mesh"), [("jit", "points", None), ("shard_map", "both", "2x2"), ("pmap", "both", "4x1")]
)
def test_a_jacobian_stored_on_the_host_is_correct_and_never_whole_on_a_device(mode, chunk, api, split, mesh):
    fields = PROBLEMS["residual by both"] | {"mode": mode, "storage": "host", "block": 2, "chunk": chunk}
    record = run(fields | {"api": api, "split": split, "mesh": mesh, "devices": 1 if api == "jit" else 4})
    assert record.status == "ok", record.text
    assert record.error <= record.tolerance
    assert record.output_bytes < 9 * 21 * 22 * 8 / 2


def test_every_call_recomputes_the_whole_jacobian_stored_on_the_host():
    """The second call must not depend on the result of the first."""
    case = complete("residual by both", mode="jacrev", storage="host", block=4, api="jit")
    group = run_case.ProcessGroup(jax.devices()[:1], "cpu")
    prepared = run_case._compile_and_check(run_case.Attempt(Record(case, "ok", HERE), group, ONCE))
    first = prepared.call().copy()
    prepared.call()[:] = np.nan
    assert np.array_equal(prepared.call(), first) and first.shape == prepared.derivative.result_shape


@pytest.mark.covering(1)
@pytest.mark.parametrize("remat", REMATS)
@pytest.mark.parametrize(
    ("problem", "mode"),
    [("residual by both", "jacrev"), ("residual Hessian", "fwd_over_rev"), ("residual by both", "mixed")],
)
def test_the_rematerialization_policy_does_not_change_the_result(problem, mode, remat):
    run_and_check(PROBLEMS[problem] | {"mode": mode, "remat": remat, "api": "jit"})


def test_forward_mode_ignores_the_rematerialization_policy():
    fields = PROBLEMS["residual by both"] | {"mode": "jacfwd", "api": "jit"}
    assert case_rules.complete(Case(**fields | {"remat": "dots_saveable"})) == case_rules.complete(
        Case(**fields)
    )


@pytest.mark.parametrize("forward", [None, "m", "d"])
@pytest.mark.parametrize(("split", "mesh", "devices"), [("points", None, 3), ("both", "2x2", 4)])
def test_mixed_mode_gives_the_whole_jacobian(forward, split, mesh, devices):
    record = run_and_check(
        PROBLEMS["residual by both"]
        | {"mode": "mixed", "forward": forward, "split": split, "mesh": mesh, "devices": devices}
    )
    assert record.passes == (21 + 21 if forward == "d" else 1 + 21)


@pytest.mark.default
def test_a_product_in_mixed_mode_has_as_tangents_the_inputs_of_its_forward_part():
    run_and_check(PROBLEMS["residual by both"] | {"mode": "mixed", "reduce": "vector", "api": "jit"})


@pytest.mark.parametrize("forward", ["x", "m+d", "m+m", ""])
def test_invalid_forward_inputs_of_mixed_mode_are_rejected(forward):
    with pytest.raises(Refusal, match="forward"):
        case = complete("residual by both", mode="mixed", forward=forward)
        describe_derivative(case, workload.build(case))


@pytest.mark.covering(2)
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("api", ["shard_map", "pmap"])
@pytest.mark.parametrize("mode", ["jacfwd", "jacrev", "grad_of_sum", "value"])
def test_a_data_parallel_gradient_needs_one_all_reduce_of_its_own_size(mode, api, overlap):
    record = run_and_check(DATA | {"mode": mode, "api": api, "overlap": overlap}, sends=True)
    assert record.collective_bytes == 8 * (1 if mode == "value" else 21)
    assert {kind for kind, count in record.collectives.items() if count} == {"all-reduce"}


def test_a_sum_over_points_is_correct_in_blocks_in_chunks_and_on_meshes():
    for fields in (
        {"mode": "jacrev", "block": 5},
        {"mode": "jacfwd", "chunk": 4, "block": 5},
        {"mode": "jacrev", "batch": "whole"},
    ):
        run_and_check(SUM | {"reduce": "points", "api": "jit"} | fields)
    on_mesh = {"reduce": "points", "split": "both", "mesh": "4x2", "devices": 8, "mode": "jacfwd"}
    run_and_check(PROBLEMS["rbf"] | on_mesh)
    run_and_check(
        PROBLEMS["poisson"] | {"points": 8, "mode": "value", "split": "data", "devices": 4}, sends=True
    )
    for api in ("shard_map", "pmap"):
        run_and_check(SUM | {"points": 4, "split": "data", "mode": "jacrev", "api": api})


def test_the_copy_of_a_gradient_on_every_device_is_checked(monkeypatch):
    """A device that omits the all-reduce has a wrong copy."""
    psum = jax.lax.psum

    def psum_without_device_2(tree, axis):
        return jax.tree.map(lambda x: jax.numpy.where(jax.lax.axis_index(axis) == 2, x, psum(x, axis)), tree)

    monkeypatch.setattr(jax.lax, "psum", psum_without_device_2)
    record = run(DATA | {"mode": "jacrev"})
    assert (record.status, record.reason) == ("failed", "wrong_answer")


@pytest.mark.parametrize(
    "problem", ["rbf", "linear by W", "residual by both", "poisson as a whole batch", "arrowhead"]
)
def test_automatic_blocks_fit_into_the_memory_limit_and_are_recorded(problem):
    fields = PROBLEMS[problem] | {"mode": "jacfwd" if "poisson" in problem else "jacrev", "api": "jit"}
    fields |= {"points": 40} if problem != "arrowhead" else {"sizes": {"n": 60}}
    undivided = run_and_check(fields)
    peak = undivided.argument_bytes + undivided.temp_bytes + undivided.output_bytes
    limit = max(peak // 2, peak // 4 + undivided.argument_bytes)
    record = run_and_check(fields | {"chunk": AUTO, "memory_limit": limit})
    blocks = record.blocks
    chosen = {name: blocks[name] for name in ("block", "chunk", "storage")}
    needed = {tuple(probe[name] for name in chosen): probe["bytes"] for probe in blocks["probes"]}
    assert needed[tuple(chosen.values())] <= limit
    assert blocks["limit_bytes"] == limit
    undivided_bytes = needed[None, None, "device"]  # tried first; None if inputs and result exceed the limit
    assert undivided_bytes is None or undivided_bytes > limit
    assert chosen != {"block": None, "chunk": None, "storage": "device"}


def test_a_program_that_fits_is_not_divided_into_blocks():
    record = run_and_check(PROBLEMS["rbf"] | {"mode": "jacrev", "api": "jit", "chunk": AUTO})
    assert record.blocks["block"] is None and record.blocks["chunk"] is None
    assert len(record.blocks["probes"]) == 1


def test_known_blocks_are_tried_first():
    case = complete("rbf", mode="jacrev", api="jit", chunk=AUTO, memory_limit=10**6)
    known = {"block": 3, "chunk": None, "storage": "device"}
    group = run_case.ProcessGroup(jax.devices()[:1], "cpu")
    prepared = run_case.prepare_case(Record(case, "failed", HERE), group, ONCE, known)
    assert (first := prepared.record.blocks["probes"][0]) | known == first


@pytest.mark.parametrize("fields", [{"chunk": AUTO}, {"chunk": None}, {"chunk": 1, "block": 1}])
def test_a_case_that_fits_in_no_block_is_skipped_before_inputs_are_placed(fields, monkeypatch):
    monkeypatch.setattr(layout, "place_inputs", lambda *_: pytest.fail("something was placed"))
    monkeypatch.setattr(run_case, "_dispatch_latency", lambda *_: 1e-6)
    record = run(PROBLEMS["rbf"] | {"mode": "jacrev", "api": "jit", "memory_limit": 64} | fields)
    assert (record.status, record.reason) == ("skipped", "too_large")
    assert "may have 64.0 B" in record.text


SCRIPT = """
import re
from pathlib import Path
from scaling.core import run_case
from scaling.core.case import Case
from scaling.core.record import Record
from scaling.core.timing import Sampling
from scaling.study import case_rules
import jax

fields = {"points": 1000, "mode": "jacrev", "api": "jit", "chunk": "auto", "memory_limit": 14 * 10**7}
case = case_rules.complete(Case("rbf", **fields))
group = run_case.ProcessGroup(jax.devices()[:1], "cpu")
record = run_case.prepare_case(Record(case, "failed", {"digest": "test"}), group, Sampling()).record  # one checked run
needed = record.argument_bytes + record.output_bytes + record.temp_bytes
peak = 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
print(record.status, record.passes, record.error <= record.tolerance, needed, peak)
"""


@pytest.mark.thorough
def test_four_gigabytes_of_jacobian_rows_are_reduced_within_the_memory_limit():
    """The Jacobian has 1,000 points, rows and columns. The program keeps its limit and the process needs less than a quarter.

    `ru_maxrss` would be wrong: a process starts with the peak of its parent, here that of all earlier tests.
    """
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=os.environ, check=False
    )
    status, passes, is_correct, needed, peak = process.stdout.split()
    assert (status, passes, is_correct) == ("ok", "1000", "True"), process.stderr
    assert int(needed) <= 1.4e8
    assert int(peak) < 4 * 1000**3 / 4


def test_an_indivisible_split_is_skipped_with_the_meshes_that_are_possible():
    case = complete("rbf", mode="jacrev", split="seeds", devices=4)
    reason, text = reason_to_skip(case)
    assert reason == "indivisible" and "mesh=1x4" in text
    with pytest.raises(Refusal, match=r"mesh=3x1.*choose from 4x1, 2x2, 1x4"):
        case_rules.complete(dataclasses.replace(case, split="both", mesh="3x1"))


@pytest.mark.covering(2)
@pytest.mark.parametrize(
    ("split", "mesh", "devices", "api"),
    [
        ("points", None, 1, "jit"),
        ("points", None, 3, "pmap"),
        ("seeds", None, 4, "shard_map"),
        ("both", "2x4", 8, "shard_map"),
    ],
)
@pytest.mark.parametrize("mode", ["jacfwd", "jacrev", "linearize", "mixed", "finite_difference"])
@pytest.mark.parametrize("problem", ["stencil", "arrowhead"])
def test_colored_seeds_give_every_nonzero_in_every_split(problem, mode, split, mesh, devices, api):
    fields = {"mode": mode, "split": split, "mesh": mesh, "devices": devices, "api": api}
    record = run(PROBLEMS[problem] | {"seeds": "colored"} | fields)
    assert record.status == "ok", record.text
    assert record.error <= record.tolerance and not any(record.collectives.values())
    assert record.nonzeros == {"stencil": 5 * 25, "arrowhead": 3 * 7 - 2}[problem]
    assert record.passes == sum(record.colors.values())
    assert record.detect_seconds > 0 and record.color_seconds > 0


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    "division",
    [{"chunk": 2}, {"block": 2}, {"storage": "host", "block": 2}, {"chunk": AUTO, "memory_limit": 6000}],
)
@pytest.mark.parametrize(("problem", "mode"), [("stencil", "jacfwd"), ("arrowhead", "mixed")])
def test_colored_seeds_work_with_chunks_blocks_and_host_storage(problem, mode, division):
    run_and_check(PROBLEMS[problem] | {"mode": mode, "seeds": "colored", "api": "jit"} | division)


def test_mixed_mode_needs_few_colored_seeds_for_an_arrowhead():
    fields = PROBLEMS["arrowhead"] | {"sizes": {"n": 40}, "seeds": "colored", "api": "jit"}
    assert [run_and_check(fields | {"mode": mode}).passes for mode in ("jacfwd", "jacrev")] == [40, 40]
    assert run_and_check(fields | {"mode": "mixed"}).passes <= 4


def test_hessians_can_use_colored_seeds():
    record = run_and_check(
        PROBLEMS["residual Hessian"] | {"mode": "fwd_over_rev", "seeds": "colored", "api": "jit"}
    )
    assert record.nonzeros == 22 * 22  # every output depends on every input


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_coloring_that_lacks_or_mixes_entries_gives_a_wrong_answer(batch, mixed, monkeypatch):
    from scaling.options import coloring as colorings

    find_coloring = colorings.find_coloring

    def find_wrong_coloring(*arguments):
        coloring = find_coloring(*arguments)
        if mixed:
            return dataclasses.replace(coloring, columns=np.where(coloring.columns == 1, 0, coloring.columns))
        is_kept = np.arange(coloring.pattern.rows.size) != 7
        pattern = dataclasses.replace(
            coloring.pattern, rows=coloring.pattern.rows[is_kept], cols=coloring.pattern.cols[is_kept]
        )
        return dataclasses.replace(coloring, pattern=pattern, by_row=coloring.by_row[is_kept])

    monkeypatch.setattr(colorings, "find_coloring", find_wrong_coloring)
    record = run(PROBLEMS["stencil"] | {"points": batch, "mode": "jacfwd", "seeds": "colored", "api": "jit"})
    assert (record.status, record.reason) == ("failed", "wrong_answer")


@pytest.mark.parametrize(
    "fields",
    [
        {"workload": "linear", "mode": "jacrev"},
        {"workload": "stencil", "mode": "grad_of_sum"},
        {"workload": "residual", "mode": "analytic"},
    ],
)
def test_a_case_that_cannot_use_colored_seeds_has_a_reason(fields):
    case = case_rules.complete(Case(**fields | {"seeds": "colored", "points": 4}))
    reason, text = reason_to_skip(case)
    assert reason == "not_defined" and text


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("reduce", [None, "outputs", "inputs", "norm", "gram"])
@pytest.mark.parametrize("split", [{"devices": 1}, {"devices": 2, "split": "seeds"}])
def test_the_size_of_a_result_on_the_host_is_that_of_its_array(dtype, reduce, split):
    fields = {
        "workload": "linear",
        "points": 4,
        "sizes": {"p": 4, "o": 6},
        "api": "shard_map",
        "storage": "host",
        "block": 2,
    }
    case = case_rules.complete(Case(dtype=dtype, reduce=reduce, **fields | split))
    derivative = describe_derivative(case, workload.build(case))
    compiled = compile_case.compile_case(derivative, jax.devices()[: case.devices])
    call, _ = compile_case.make_runner(compiled)
    inputs_on_host = sum(
        x.size * x.dtype.itemsize for x in input_structs(case, derivative.workload)[0].values()
    )
    assert compiled.offload.host_bytes - inputs_on_host == call().nbytes


@pytest.mark.parametrize("changes", [{}, {"dtype": "float32"}, {"storage": "host", "block": 2}])
@pytest.mark.parametrize("devices", [1, 2])
def test_the_record_has_the_compulsory_bytes_of_one_device(changes, devices):
    """They are the inputs, read once, and the result, written once, in any number of blocks."""
    fields = {
        "workload": "rbf",
        "variant": "squared",
        "points": 12,
        "sizes": {"d": 3, "m": 11},
        "api": "shard_map",
    }
    record = run(fields | {"devices": devices} | changes)
    numbers = 12 * 3 // devices + 11 * 3 + 12 * 3 // devices  # points, shared input, and gradients
    assert record.status == "ok" and record.compulsory_bytes == numbers * (4 if changes.get("dtype") else 8)
