"""Tests of program statistics: operations and traffic equal counts by hand, loops count every trip, and nothing is guessed."""

import os

import pytest

from scaling.core import environment
from scaling.core.derivative import describe_derivative

os.environ["XLA_FLAGS"] = environment.variables("cpu")["XLA_FLAGS"]
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import hijax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from scaling.core import layout, workload
from scaling.core.case import Case
from scaling.programs import hlo, program_stats
from scaling.programs.jaxpr_properties import rounding_properties
from scaling.programs.program_stats import OperationCounts
from scaling.study import case_rules

pytestmark = pytest.mark.thin(3, "thorough")

jax.config.update("jax_num_cpu_devices", 8)  # the number that test_contract.py uses
jax.config.update("jax_enable_x64", True)


def array(*shape: int, dtype="float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def count(function, *arguments) -> OperationCounts:
    """Return the operations of a function, which is traced and not run."""
    return program_stats.count_operations(jax.jit(function).trace(*arguments).jaxpr)


def read_costs(function, *arguments):
    compiled = jax.jit(function).lower(*arguments).compile()
    return hlo.read(compiled.as_text()), compiled.cost_analysis()["bytes accessed"]


def on_devices(function, devices=2):
    """Return the function applied by each device to its shard of the first axis."""
    mesh = Mesh(np.array(jax.devices()[:devices]), ("shard",))
    return jax.shard_map(function, mesh=mesh, in_specs=P("shard"), out_specs=P("shard"), check_vma=False)


def twice_sine(x):
    """Compute two operations and one sine per element."""
    return jnp.sin(x) * x + x


@jax.custom_vjp
def sine_with_vjp(x):
    return twice_sine(x)


sine_with_vjp.defvjp(lambda x: (twice_sine(x), x), lambda x, g: (g * x,))

x35, x3, x74, x64, kernel = array(3, 5), array(3), array(7, 4), array(64, 3), array(4, 2, 3, 3)
COUNTS = {  # function, arguments, operations, transcendental functions
    "a matrix product": (lambda a, b: a @ b, [x35, array(5, 7)], 2 * 3 * 5 * 7, 0),
    "batched products": (lambda a, b: jnp.einsum("bij,kjb->bki", a, b), [array(2, 3, 5), array(7, 5, 2)], 2 * 2 * 3 * 5 * 7, 0),
    "elementwise": (twice_sine, [x35], 30, 15),
    "integer powers": (lambda x: (x**2, x**3, x**7, x**-2), [x3], 3 * (1 + 2 + 4 + 2), 0),
    "a power of zero and one": (lambda x: (lax.integer_pow(x, 0) * x, lax.integer_pow(x, 1) * x), [x3], 3 + 3, 0),
    "no rows": (lambda a: lax.linalg.lu(a)[0], [array(0, 0)], 0, 0),
    "other powers": (lambda x: jnp.sqrt(x**1.5), [x3], 0, 6),
    "sums": (lambda x: (jnp.sum(x), jnp.max(x, 0), jnp.cumsum(x, 1), jnp.sum(x, ())), [x35], 45, 0),
    "integers": (lambda x: jnp.arange(9) * 2 + jnp.argsort(jnp.arange(9)), [x3], 0, 0),
    "data movement": (lambda x: (x.T[1:, None], jnp.where(x > 2, x, 1), x[jnp.array([0, 2])]), [x35], 0, 0),
    "a scatter": (lambda x: x.at[jnp.array([1, 1, 2])].add(1.0), [array(20)], 3, 0),
    "a convolution": (lambda x, k: lax.conv(x, k, (1, 1), "VALID"), [array(1, 2, 8, 9), kernel], 2 * 168 * 18, 0),
    "its gradient": (jax.grad(lambda x, k: jnp.sum(lax.conv(x, k, (2, 2), "VALID"))), [array(1, 2, 9, 9), kernel], 2916, 0),
    "LU and LL^T": (lambda a: (lax.linalg.lu(a)[0], lax.linalg.cholesky(a, symmetrize_input=False)), [array(2, 6, 6)], 432, 0),
    "a linear solve": (jnp.linalg.solve, [array(6, 6), array(6)], 144 + 36 + 36, 0),
    "a call": (lambda x: jax.jit(jax.jit(twice_sine))(x) + sine_with_vjp(x), [x3], 5 * 3, 2 * 3),
    "custom rules": (lambda x: jax.nn.relu(x) + jax.checkpoint(twice_sine)(x), [x3], 4 * 3, 3),
    "a scan": (lambda x: lax.scan(lambda c, row: (c + jnp.sum(row), twice_sine(row)), 0.0, x), [x74], 7 * (4 + 1 + 8), 28),
    "loops in loops": (lambda x: lax.fori_loop(0, 9, lambda i, x: lax.fori_loop(2, 6, lambda j, x: -x, x), x), [x3], 108, 0),
    "a map": (lambda x: lax.map(twice_sine, x), [x64], 64 * 6, 64 * 3),
    "a map in chunks": (lambda x: lax.map(twice_sine, x, batch_size=5), [x64], 64 * 6, 64 * 3),
    "the more expensive branch": (lambda x: lax.cond(x[0] > 0, jnp.sin, lambda x: x * x + x * 3, x), [x3], 9, 0),
    "dead code": (lambda x: (jnp.linalg.svd(x), jax.jit(lambda x: (jnp.exp(x), x * 2))(x)[1])[1], [x35], 15, 0),
    "a dead primal": (lambda x, v: jax.jvp(lambda x: x @ v.T, (x,), (v,))[1], [x35, x35], 2 * 3 * 5 * 3, 0),
    "a dead carry": (lambda x: lax.scan(lambda c, row: ((c[0] * 2, c[1] + row), -row), (x[0], x[0]), x)[0][1], [x74], 28, 0),
    "chained carries": (lambda x: lax.scan(lambda c, _: ((c[1], -c[1]), None), (x, x), None, length=6)[0][0], [x3], 18, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTS)
def test_operations_equal_a_count_by_hand(name):
    function, arguments, flops, transcendentals = COUNTS[name]
    counts = count(function, *arguments)
    assert counts == OperationCounts(flops, transcendentals)
    assert type(counts.flops) is type(counts.transcendentals) is int  # serializable as JSON
    assert program_stats.count_operations(jax.make_jaxpr(function)(*arguments)) == counts


@pytest.mark.parametrize("name", ["log2", "tanh", "arcsin", "arctanh", "interp", "polyval"])
@pytest.mark.parametrize("derivative", [False, True])
def test_functions_whose_primitives_differ_between_jax_versions_are_counted(name, derivative):
    """`log2` and 1 - x**2 are primitives since JAX 0.11; a polynomial and `searchsorted` since 0.12."""
    extra = {"interp": (jnp.arange(4.0), jnp.arange(4.0)), "polyval": (x3,)}.get(name, ())
    function = {"polyval": lambda x, _: jnp.polyval(jnp.array([1.0, 2.0, 3.0, 4.0]), x)}.get(
        name, getattr(jnp, name)
    )
    if derivative:
        function = jax.grad(lambda x, *extra, function=function: jnp.sum(function(x, *extra)))
    counts = count(function, x35, *extra)
    assert counts.flops is not None and counts.flops + counts.transcendentals >= x35.size


class _Expanded(getattr(hijax, "HiPrim", None) or hijax.VJPHiPrimitive):
    """A primitive that JAX expands when it lowers it, such as `jax.custom_remat` in JAX 0.11."""

    def __init__(self, aval):
        self.in_avals, self.out_aval, self.params = (aval,), aval, {}
        super().__init__()

    def expand(self, x):
        return jnp.cumsum(twice_sine(x), axis=1)


def test_an_expanded_primitive_has_the_operations_and_rounding_of_its_expansion():
    plain = lambda x: jnp.cumsum(twice_sine(x), axis=1)  # noqa: E731
    expanded = lambda x: _Expanded(jax.typeof(x))(x)  # noqa: E731
    assert count(expanded, x35) == count(plain, x35) == OperationCounts(45, 15)
    properties, expected = rounding_properties(expanded, x35), rounding_properties(plain, x35)
    for name in ("terms", "bits", "width", "has_batching_rule"):
        assert getattr(properties, name) == getattr(expected, name)


def test_a_call_is_inlined_and_a_loop_or_a_shard_of_the_same_shapes_is_not():
    calls = [jax.jit(twice_sine), jax.checkpoint(twice_sine), sine_with_vjp]
    loops = [lambda x: lax.fori_loop(0, 3, lambda _, x: -x, x), lambda x: lax.while_loop(jnp.any, jnp.cos, x)]
    functions = [*calls, on_devices(twice_sine, 1), *loops, lambda x: lax.cond(True, jnp.sin, jnp.cos, x)]
    equations = [jax.make_jaxpr(function)(x35).eqns[-1] for function in functions]
    for per_device, expected in ((False, 3), (True, 4)):
        found = [program_stats.called_jaxpr(e, per_device) is not None for e in equations]
        assert found == [k < expected for k in range(7)]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: lax.while_loop(lambda x: jnp.sum(x) > 0, lambda x: x - 1, x),
        lambda x: lax.fori_loop(0, jnp.int32(x[0]), lambda i, x: x * 2, x),
        lambda x: lax.while_loop(lambda c: c[0] < 9, lambda c: (c[0] + 1, c[1] * 2), (0, x)),
        lambda x: lax.scan(
            lambda c, _: (lax.while_loop(lambda c: c[0] < 1, lambda c: c * 2, c), None), x, None, length=3
        )[0],
        lambda x: jnp.abs(x + 1j),
        lambda x: jnp.linalg.svd(x[:, None])[1],
        lambda x: jax.pure_callback(np.sin, x, x) * 2,
    ],
)
def test_a_function_with_uncountable_operations_has_unknown_counts(function):
    assert count(function, x3) == OperationCounts(None, None)


def program(**fields) -> layout.Program:
    case = case_rules.complete(Case(**{"api": "jit"} | fields))
    return layout.lay_out(describe_derivative(case, workload.build(case)), jax.devices()[: case.devices])


def count_case(**fields) -> OperationCounts:
    """Return the operations of a case. A `pmap` function has no `trace`."""
    laid_out = program(**fields)
    return program_stats.count_operations(jax.make_jaxpr(laid_out.function)(*laid_out.arguments.values()))


N, LAYER = 8, {"workload": "linear", "sizes": {"p": 6, "o": 4}, "points": 8}
ROWS = {"workload": "rbf", "formulation": "rowwise", "sizes": {"m": 12}, "points": 8}


def test_the_operations_of_a_linear_layer_are_the_products_of_its_seeds():
    p, o = 6, 4
    forward = N * (p * o) * (2 * p * o + o)  # each seed (p, o): x_i @ seed, a sum of o; x_i @ W is dead code
    reverse = N * o * (2 * p * o + p * o)  # each row: a sum of outer products
    assert count_case(**LAYER, mode="jacfwd") == OperationCounts(forward, 0)
    assert count_case(**LAYER, mode="jacrev") == OperationCounts(reverse, 0)
    for chunk in (5, 8):  # of 24 seeds, with a remainder and without
        assert count_case(**LAYER, mode="jacfwd", chunk=chunk) == OperationCounts(forward, 0)


def test_the_operations_of_a_rowwise_kernel_equal_the_formula():
    m = 12
    value = 1 + 4 * m  # exp(-0.5 * (-2 x y + (x + y))), by hand
    assert count_case(**ROWS, mode="value") == OperationCounts(N * value, N * m)
    forward = N * (value + 2 * m) + 3 * m + 1  # the seed is the same for all points
    assert count_case(**ROWS, mode="jacfwd") == OperationCounts(forward, N * m)
    assert count_case(**ROWS, mode="jacrev") == OperationCounts(N * (value + m * (5 * m + 2) + m), N * m)


@pytest.mark.parametrize("api", ["shard_map", "pmap"])
@pytest.mark.parametrize(("problem", "mode"), [(LAYER, "jacfwd"), (LAYER, "jacrev"), (ROWS, "jacrev")])
def test_operations_are_per_device(problem, mode, api):
    on_one, on_two = (count_case(**problem, mode=mode, api=api, devices=devices) for devices in (1, 2))
    assert on_one == count_case(**problem, mode=mode)
    assert on_two == OperationCounts(on_one.flops // 2, on_one.transcendentals // 2)
    assert on_two == count_case(**problem | {"points": 4}, mode=mode)


@pytest.mark.parametrize("api", ["shard_map", "pmap"])
@pytest.mark.parametrize(
    "problem", [LAYER, ROWS, {"workload": "residual", "points": 400}, {"workload": "poisson", "points": 800}]
)
@pytest.mark.parametrize("mode", ["jacfwd", "jacrev", "linearize", "analytic"])
def test_without_loops_traffic_agrees_with_the_cost_analysis_of_xla(problem, mode, api):
    laid_out = program(**problem, mode=mode, api=api, devices=2)
    compiled = laid_out.function.lower(*laid_out.arguments.values()).compile()
    accessed = compiled.cost_analysis()["bytes accessed"]  # more, if a fusion broadcasts a parameter
    costs = hlo.read(compiled.as_text())
    assert 0.9 * accessed <= costs.hbm_bytes <= accessed
    assert type(costs.hbm_bytes) is type(costs.collective_bytes) is int
    assert costs.collective_bytes == 0 and not any(costs.collectives.values())


def test_the_traffic_of_a_map_includes_every_iteration():
    costs, accessed = read_costs(lambda x: lax.map(lambda row: jnp.sin(row).sum(), x), array(64, 512))
    assert 1 <= costs.hbm_bytes / (4 * 64 * 512) < 4  # more than one access per row if two kernels use it
    assert accessed < costs.hbm_bytes / 30


def test_the_traffic_of_a_chunked_jacobian_does_not_depend_on_the_chunk_size():
    layer = LAYER | {"sizes": {"p": 64, "o": 4}}
    traffic = {}
    for chunk in (16, 32):
        laid_out = program(**layer, mode="jacfwd", chunk=chunk)
        compiled = laid_out.function.lower(*laid_out.arguments.values()).compile()
        traffic[chunk] = hlo.read(compiled.as_text()).hbm_bytes
        seeds = 4 * (64 * 4) ** 2  # float32, written once and read once
        assert 2 * seeds < traffic[chunk] < 3 * seeds
        assert traffic[chunk] > 3 * compiled.cost_analysis()["bytes accessed"]
    assert traffic[16] == pytest.approx(traffic[32], rel=0.1)


@pytest.mark.parametrize(
    ("kind", "send", "size"),
    [
        ("all-reduce", lambda x: lax.psum(x, "shard"), 12),
        ("all-gather", lambda x: lax.all_gather(x, "shard").reshape(-1), 24),
        ("reduce-scatter", lambda x: lax.psum_scatter(x, "shard", tiled=True), 12),
        ("all-to-all", lambda x: lax.all_to_all(x.reshape(2, 6), "shard", 0, 0), 12),
        ("collective-permute", lambda x: lax.ppermute(x, "shard", [(0, 1), (1, 0)]), 12),
    ],
)
def test_the_bytes_of_a_collective_are_the_larger_of_its_input_and_output(kind, send, size):
    costs, _ = read_costs(on_devices(send), array(24))
    assert costs.collective_bytes == 4 * size
    assert {name: n for name, n in costs.collectives.items() if n} == {kind: 1}


# HLO as XLA writes it for a GPU: 64 trips that read a row of x, write a row of y, and reduce the row over devices.
LOOP = """\
HloModule written, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%take (all: f32[64,256], at: s32[]) -> f32[1,256] {
  %all = f32[64,256]{1,0} parameter(0)
  %seen = f32[64,1,256]{2,1,0} bitcast(%all)
  %at = s32[] parameter(1)
  %zero = s32[] constant(0)
  %row = f32[1,1,256]{2,1,0} dynamic-slice(%seen, %at, %zero, %zero), dynamic_slice_sizes={1,1,256}
  ROOT %sine = f32[1,1,256]{2,1,0} sine(%row), metadata={op_name="jit(f)/sin (calls=%add)"}
}

%put (all: f32[64,256], new: f32[1,256], at: s32[]) -> (f32[64,256], f32[1,256]) {
  %all = f32[64,256]{1,0} parameter(0)
  %new = f32[1,256]{1,0} parameter(1)
  %at = s32[] parameter(2)
  %zero = s32[] constant(0)
  %placed = f32[64,256]{1,0} dynamic-update-slice(%all, %new, %at, %zero)
  %half = f32[1,256]{1,0} negate(%new)
  ROOT %both = (f32[64,256]{1,0}, f32[1,256]{1,0}) tuple(%placed, %half)
}

%body (state: (s32[], f32[64,256], f32[64,256])) -> (s32[], f32[64,256], f32[64,256]) {
  %state = (s32[], f32[64,256]{1,0}, /*index=2*/f32[64,256]{1,0}) parameter(0)
  %k = s32[] get-tuple-element(%state), index=0
  %x = f32[64,256]{1,0} get-tuple-element(%state), index=1
  %y = f32[64,256]{1,0} get-tuple-element(%state), index=2
  %row = f32[1,256]{1,0} fusion(%x, %k), kind=kLoop, calls=%take, control-predecessors={%y}
  %start = f32[1,256]{1,0} all-reduce-start(%row), channel_id=1, replica_groups={{0,1}}, to_apply=%add
  %done = f32[1,256]{1,0} all-reduce-done(%start)
  %gather = ((f32[1,256]{1,0}), f32[2,256]{1,0}) all-gather-start(%done), channel_id=2, dimensions={0}
  %gathered = f32[2,256]{1,0} all-gather-done(%gather)
  %put = (f32[64,256]{1,0}, f32[1,256]{1,0}) fusion(%y, %done, %k), kind=kLoop, calls=%put
  %next = f32[64,256]{1,0} get-tuple-element(%put), index=0
  ROOT %state.1 = (s32[], f32[64,256]{1,0}, f32[64,256]{1,0}) tuple(%k, %x, %next)
}

%more (state: (s32[], f32[64,256], f32[64,256])) -> pred[] {
  %state = (s32[], f32[64,256]{1,0}, f32[64,256]{1,0}) parameter(0)
  %k = s32[] get-tuple-element(%state), index=0
  %end = s32[] constant(64)
  ROOT %less = pred[] compare(%k, %end), direction=LT
}

ENTRY %main (x: f32[64,256], k: s32[]) -> f32[64,256] {
  %x = f32[64,256]{1,0} parameter(0)
  %k = s32[] parameter(1)
  %y = f32[64,256]{1,0} copy(%x)
  %state = (s32[], f32[64,256]{1,0}, f32[64,256]{1,0}) tuple(%k, %x, %y)
  %loop = (s32[], f32[64,256]{1,0}, f32[64,256]{1,0}) while(%state), condition=%more, body=%body, backend_config={TRIPS}
  ROOT %result = f32[64,256]{1,0} get-tuple-element(%loop), index=2
}
"""


def test_a_loop_that_slices_and_updates_arrays_moves_only_their_rows():
    row = 4 * 256
    costs = hlo.read(LOOP.replace("TRIPS", '"known_trip_count":{"n":"64"}'))
    # XLA does not evaluate the condition if it knows the number of trips.
    per_trip = (row + 4 + row) + (row + row) + (row + 2 * row) + (row + 4 + row + row)
    assert costs.hbm_bytes == 2 * 64 * row + 64 * per_trip
    assert costs.collective_bytes == 64 * (row + 2 * row)
    assert {kind: n for kind, n in costs.collectives.items() if n} == {"all-reduce": 1, "all-gather": 1}
    for unknown in (LOOP.replace("TRIPS", ""), LOOP.replace("body=", "corpus=")):
        partial = hlo.read(unknown)
        assert (partial.hbm_bytes, partial.collective_bytes) == (None, None)
        assert partial.collectives == costs.collectives


PARTS = """\
HloModule written

%small (s: (bf16[40])) -> bf16[40] {
  %s = (bf16[40]{0}) parameter(0)
  %x = bf16[40]{0} get-tuple-element(%s), index=0
  ROOT %minus = bf16[40]{0} negate(%x)
}

%large (l: bf16[40]) -> bf16[40] {
  %l = bf16[40]{0} parameter(0)
  %once = bf16[40]{0} negate(%l)
  ROOT %again = bf16[40]{0} multiply(%once, %once)
}

%outer (o: bf16[40]) -> bf16[40] {
  %o = bf16[40]{0} parameter(0)
  ROOT %chosen = bf16[40]{0} conditional(%o, %o, %o), branch_computations={%small, %large}
}

%count (x: pred[9,16], i: s32[3,1], u: pred[3,16]) -> pred[9,16] {
  %x = pred[9,16]{1,0} parameter(0)
  %i = s32[3,1]{1,0} parameter(1)
  %u = pred[3,16]{1,0} parameter(2)
  ROOT %set = pred[9,16]{1,0} scatter(%x, %i, %u), to_apply=%small
}

%fresh (four: bf16[4], at: s32[]) -> bf16[40] {
  %four = bf16[4]{0} parameter(0)
  %at = s32[] parameter(1)
  %zero = bf16[] constant(0)
  %zeros = bf16[40]{0} broadcast(%zero), dimensions={}
  ROOT %placed = bf16[40]{0} dynamic-update-slice(%zeros, %four, %at)
}

ENTRY %main (a: bf16[40], b: pred[9,16], i: s32[3,1], u: pred[3,16]) -> pred[9,16] {
  %a = bf16[40]{0} parameter(0)
  %b = pred[9,16]{1,0} parameter(1)
  %i = s32[3,1]{1,0} parameter(2)
  %u = pred[3,16]{1,0} parameter(3)
  %called = bf16[40]{0} call(%a), to_apply=%outer
  %apart = ((bf16[40]{0}), bf16[40]{0}, s32[]) async-start(%called), calls=%large
  %back = bf16[40]{0} async-done(%apart)
  %product = (bf16[20]{0}, s8[4194304]{0}) custom-call(%back), custom_call_target="a library's"
  %slice = bf16[4]{0} slice(%a), slice={[0:4]}
  %two = s32[] constant(2)
  %whole = bf16[40]{0} fusion(%slice, %two), kind=kLoop, calls=%fresh
  ROOT %set = pred[9,16]{1,0} fusion(%b, %i, %u), kind=kInput, calls=%count
}
"""


def test_calls_branches_scatters_and_library_calls_count_the_bytes_they_move():
    large = (80 + 80) + (80 + 80)  # an operand used twice is read once
    library, slices, filled, scatter = 80 + 40, 8 + 8, 8 + 4 + 80, 48 + 12 + 48 + 48
    assert hlo.read(PARTS).hbm_bytes == 2 * large + library + slices + filled + scatter


def test_text_that_is_not_an_hlo_program_is_an_error():
    with pytest.raises(AssertionError):
        hlo.read("")
