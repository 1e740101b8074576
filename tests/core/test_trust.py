"""Tests that a misleading time is rejected: no wait for the result, folded inputs, missing outputs, wrong derivatives."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scaling import host_monitor
from scaling.core import check, layout, run_case, timing, workload
from scaling.core.case import Case
from scaling.core.derivative import describe_derivative
from scaling.core.record import Record
from scaling.core.timing import Sampling
from scaling.study import case_rules

pytestmark = pytest.mark.thin(2, "thorough")

FEW_SAMPLES = Sampling(least=7, most=9, seconds=0.1, warm_up=0.001)
PROBLEMS = {
    "linear by seeds": {"workload": "linear", "points": 6, "sizes": {"p": 5, "o": 3}, "mode": "jacrev"},
    "rbf summed": {
        "workload": "rbf",
        "points": 7,
        "sizes": {"m": 9, "d": 2},
        "variant": "squared",
        "mode": "jacfwd",
    },
    "residual by both": {"workload": "residual", "points": 4, "wrt": "d+m", "mode": "linearize"},
    "poisson": {"workload": "poisson", "points": 11, "mode": "jacrev"},
}


def run(case, sampling=FEW_SAMPLES):
    blank = Record(case, "failed", {"digest": "test", "platform": "cpu"})
    return run_case.run_case(blank, jax.devices()[: case.devices], "cpu", sampling)


def case_of(name, **fields):
    return case_rules.complete(Case(**PROBLEMS[name] | {"api": "jit"} | fields))


def change_programs(monkeypatch, change):
    """Replace the function of every program by `change(function, arguments)`."""
    lay_out = layout.lay_out

    def lay_out_changed(*arguments, **keywords):
        program = lay_out(*arguments, **keywords)
        return dataclasses.replace(program, function=jax.jit(change(program.function, program.arguments)))

    monkeypatch.setattr(layout, "lay_out", lay_out_changed)


def call_once(case):
    """Return the output of the program of a case."""
    built = workload.build(case)
    program = layout.lay_out(describe_derivative(case, built), jax.devices()[:1])
    return program.function(*layout.place_inputs(program))


class Pending:
    """A result that is not ready. Waiting for it takes 10 ms on a fake clock."""

    def __init__(self, clock):
        self.clock = clock

    def block_until_ready(self):
        self.clock[0] += 0.010
        return self


@pytest.mark.parametrize("waits", [True, False])
def test_only_a_timer_that_waits_measures_the_time_of_the_device(monkeypatch, waits):
    clock = [0.0]
    monkeypatch.setattr(timing, "perf_counter", lambda: clock[0])

    def call():
        clock[0] += 1e-6
        return Pending(clock)

    monkeypatch.setattr(
        run_case,
        "_compile_jax_program",
        lambda *_: run_case.PlacedProgram(None, call, lambda result: np.zeros(1)),
    )
    monkeypatch.setattr(check, "verdict", lambda *_, **__: check.Verdict(0.0, 1.0, None))
    if not waits:
        monkeypatch.setattr(
            run_case, "make_waiter", lambda example: lambda result: clock.__setitem__(0, clock[0] + 1e-5)
        )
    monkeypatch.setattr(run_case, "_dispatch_latency", lambda *_: 1e-5)
    record = run(case_of("poisson"))
    assert record.status == "ok", record.text
    assert (record.seconds == pytest.approx([0.010001] * len(record.seconds))) == waits


def test_the_outputs_of_a_call_are_ready_after_waiting():
    """Without waiting they are not, since the device is still computing."""
    x = jnp.ones((500, 500))
    compiled = (
        jax.jit(lambda x: [jax.lax.fori_loop(0, 20, lambda _, y: y @ x / 500, x), x + 1]).lower(x).compile()
    )
    wait = run_case.make_waiter(compiled(x))
    assert not all(leaf.is_ready() for leaf in compiled(x))
    assert all(leaf.is_ready() for leaf in wait(compiled(x)))


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_program_with_constant_folded_inputs_is_a_wrong_answer(monkeypatch, name):
    """It ignores its arguments and returns the result for the inputs with which it was compiled."""
    case, other_case = case_of(name), case_of(name, data_seed=1)
    built = workload.build(other_case)
    program = layout.lay_out(describe_derivative(other_case, built), jax.devices()[:1])
    folded = layout.place_inputs(program)
    assert run(case).status == "ok"
    change_programs(monkeypatch, lambda function, _: lambda *args: function(*folded))
    record = run(case)
    assert (record.status, record.reason, record.seconds) == ("failed", "wrong_answer", [])


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_used_input_is_an_argument_of_the_compiled_program(name):
    case = case_of(name)
    built = workload.build(case)
    program = layout.lay_out(describe_derivative(case, built), jax.devices()[:1])
    traced = program.function.trace(*program.arguments.values())
    _, used = jax.interpreters.partial_eval.dce_jaxpr(
        traced.jaxpr.jaxpr, [True] * len(traced.jaxpr.jaxpr.outvars)
    )
    expected = sum(
        x.size * x.dtype.itemsize
        for x, is_used in zip(program.arguments.values(), used, strict=True)
        if is_used
    )
    assert traced.lower().compile().memory_analysis().argument_size_in_bytes == expected > 0


def test_a_program_that_computes_half_of_its_output_is_a_wrong_answer(monkeypatch):
    def half(leaf):
        return jnp.where(jnp.arange(leaf.size).reshape(leaf.shape) < leaf.size // 2, leaf, 0)

    change_programs(monkeypatch, lambda function, _: lambda *args: jax.tree.map(half, function(*args)))
    record = run(case_of("linear by seeds"))
    assert (record.status, record.reason) == ("failed", "wrong_answer")


def test_a_program_that_omits_an_output_fails(monkeypatch):
    """It returns the derivative with respect to the first of two inputs only."""
    change_programs(monkeypatch, lambda function, _: lambda *args: jax.tree.leaves(function(*args))[:1])
    record = run(case_of("residual by both", mode="jacrev"))
    assert record.status == "failed" and record.seconds == []


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_output_is_waited_for(name):

    class Output:
        waited = 0

        def block_until_ready(self):
            Output.waited += 1
            return self

    count = len(jax.tree.leaves(call_once(case_of(name, mode="jacrev"))))
    outputs = [Output() for _ in range(count)] if count > 1 else Output()
    run_case.make_waiter(outputs)(outputs)
    assert Output.waited == count


@pytest.mark.parametrize(
    "fields, total, outcome, rest",
    [
        ({}, 100, ("skipped", "too_large"), "has 100 B"),
        ({}, 10**9, ("failed", "out_of_memory"), "has 100 B, the rest is in use"),
        ({"chunk": "auto"}, 10**9, ("failed", "out_of_memory"), "has 100 B, the rest is in use"),
    ],
)
def test_a_case_that_does_not_fit_is_not_allocated_and_is_skipped_if_it_never_fits(
    fields, total, outcome, rest, monkeypatch
):
    from scaling.core import compile_case

    monkeypatch.setattr(compile_case, "available_bytes", lambda idle=False: total if idle else 100)
    monkeypatch.setattr(layout, "place_inputs", lambda *_: 1 / 0)
    monkeypatch.setattr(run_case, "_dispatch_latency", lambda *_: 1e-5)
    record = run(case_of("poisson", **fields))
    assert (record.status, record.reason) == outcome
    assert "needs " in record.text and record.text.endswith(rest) and record.output_bytes


def test_a_module_that_replaces_jit_does_not_make_a_compiled_case_run_uncompiled(monkeypatch):
    monkeypatch.setattr(jax, "jit", lambda function, **options: function)
    record = run(case_of("poisson"))
    assert record.status == "ok" and record.compile_seconds


@pytest.mark.parametrize(
    ("digest", "reason", "text"),
    [(None, "error", "unknown workload 'nowhere'"), ("b", "not_as_asked", "nowhere has changed since")],
)
def test_a_module_that_fails_to_import_in_a_worker_is_not_called_changed(digest, reason, text):
    """The worker cannot hash a module that it cannot import, so that its digest is None."""
    blank = Record(Case("nowhere"), "failed", {"digest": "test", "workload_digest": digest})
    group = run_case.ProcessGroup(jax.devices()[:1], "cpu")
    record = run_case.prepare_case(blank, group, FEW_SAMPLES, expected_digest="a").record
    assert (record.status, record.reason) == ("failed", reason) and text in record.text


def test_an_error_in_a_later_turn_discards_all_times(monkeypatch):
    case = case_of("poisson")
    running = run_case.prepare_case(
        Record(case, "failed", {"digest": "test"}),
        run_case.ProcessGroup(jax.devices()[:1], "cpu"),
        FEW_SAMPLES,
    )
    assert not run_case.take_turn(running) and running.record.seconds
    monkeypatch.setattr(host_monitor, "read_counters", lambda *where: 1 / 0)
    assert run_case.take_turn(running) and running.ended
    record = running.record
    assert (record.status, record.reason, record.seconds) == ("failed", "error", [])


@pytest.mark.parametrize(("nodes", "cores"), [(1, [0, 4]), (2, [0])])
def test_the_state_of_a_node_is_that_of_the_cores_of_all_its_processes(nodes, cores, monkeypatch):
    monkeypatch.setattr(host_monitor, "read_host", lambda platform, bound_to: {"cores": bound_to})
    blank = Record(case_of("poisson"), "failed", {"digest": "test", "cores": [0, 4]})
    group = run_case.ProcessGroup(jax.devices()[:1], "cpu", cores=[0], nodes=nodes)
    running = run_case.prepare_case(blank, group, FEW_SAMPLES)
    while not run_case.take_turn(running):
        pass
    assert running.record.before == running.record.after == {"cores": cores}


def test_a_disturbed_turn_is_marked_and_its_samples_are_kept(monkeypatch):
    turn = itertools.count()
    disturb = lambda reading: ["foreign_load"] if next(turn) == 1 else []  # noqa: E731
    monkeypatch.setattr(host_monitor, "find_disturbances", disturb)
    record = run(case_of("poisson"))
    assert record.marked == {"foreign_load": [1]}
    assert len(record.seconds) == sum(record.turns)


def test_an_exception_in_a_callback_is_described_in_one_line_without_a_traceback():
    def fail():
        raise ValueError("the table is empty")

    function = jax.jit(lambda x: jax.pure_callback(fail, jax.ShapeDtypeStruct((2,), x.dtype)) + x)
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(function(jnp.ones(2)))
    _, reason, text = run_case.describe_error(caught.value)
    assert reason == "error" and "ValueError: the table is empty" in text
    assert "Traceback" not in text and ", line " not in text
