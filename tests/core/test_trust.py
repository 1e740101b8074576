"""What would make a time a lie is caught: a timer that does not wait, a folded input, a dropped output, a wrong derivative."""

import dataclasses
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from scaling.core import check, layout, process_cache, run_case, workload
from scaling.core.case import Case
from scaling.core.record import Record
from scaling.core.timing import Sampling
from scaling.options import host_monitor
from scaling.study import completion

pytestmark = pytest.mark.thin(2, "contract")

FEW = Sampling(least=7, most=9, seconds=0.1, warm_up=0.001)
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


def run(case, sampling=FEW):
    blank = Record(case, "failed", {"digest": "test", "platform": "cpu"})
    return run_case.run_case(blank, jax.devices()[: case.devices], "cpu", sampling)


def case_of(name, **more):
    return completion.complete(Case(**PROBLEMS[name] | {"api": "jit"} | more))


def with_function(monkeypatch, change):
    """Every program's function changed by `change(function, arguments) -> function`."""
    whole = layout.lay_out

    def changed(*words, **more):
        program = whole(*words, **more)
        return dataclasses.replace(program, function=jax.jit(change(program.function, program.arguments)))

    monkeypatch.setattr(layout, "lay_out", changed)


def run_once(case):
    """What a case's program gives."""
    built = workload.build(case)
    program = layout.lay_out(case, built, jax.devices()[:1])
    return program.function(*layout.place_inputs(case, built, program))


class Pending:
    """A result that is not there yet: waiting for it takes 10 ms of a clock that a test holds."""

    def __init__(self, clock):
        self.clock = clock

    def block_until_ready(self):
        self.clock[0] += 0.010
        return self


@pytest.mark.parametrize("waits", [True, False])
def test_a_timer_that_does_not_wait_tells_another_time_than_the_device_took(monkeypatch, waits):
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def ask():
        clock[0] += 1e-6
        return Pending(clock)

    monkeypatch.setattr(
        run_case,
        "_compile_jax_program",
        lambda *_: run_case.PlacedProgram(SimpleNamespace(coloring=None), ask, lambda result: None),
    )
    monkeypatch.setattr(check, "verdict", lambda *_, **__: check.Verdict(0.0, 1.0, None))
    if not waits:
        monkeypatch.setattr(
            run_case, "make_waiter", lambda example: lambda result: clock.__setitem__(0, clock[0] + 1e-5)
        )
    process_cache.clear()
    process_cache.cached("dispatch_latency", ("jit", True, 1), lambda: 1e-5)
    record = run(case_of("poisson"))
    assert record.status == "ok", record.text
    assert (record.seconds == pytest.approx([0.010001] * len(record.seconds))) == waits


def test_when_a_call_returns_its_outputs_are_there():
    """Without waiting they are not: the device is still at work."""
    x = jnp.ones((500, 500))
    compiled = (
        jax.jit(lambda x: [jax.lax.fori_loop(0, 20, lambda _, y: y @ x / 500, x), x + 1]).lower(x).compile()
    )
    wait = run_case.make_waiter(compiled(x))
    assert not all(leaf.is_ready() for leaf in compiled(x))
    assert all(leaf.is_ready() for leaf in wait(compiled(x)))


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_program_into_which_the_inputs_are_folded_is_a_wrong_answer(monkeypatch, name):
    """It answers for the inputs that it was compiled with: so each case is checked on inputs that only come when it is called."""
    case, other = case_of(name), case_of(name, data_seed=1)
    built = workload.build(other)
    folded = layout.place_inputs(other, built, layout.lay_out(other, built, jax.devices()[:1]))
    assert run(case).status == "ok"
    with_function(monkeypatch, lambda function, _: lambda *given: function(*folded))
    record = run(case)
    assert (record.status, record.reason, record.seconds) == ("failed", "wrong_answer", [])


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_input_that_matters_is_an_argument_of_the_compiled_program(name):
    case = case_of(name)
    built = workload.build(case)
    program = layout.lay_out(case, built, jax.devices()[:1])
    traced = program.function.trace(*program.arguments.values())
    _, used = jax.interpreters.partial_eval.dce_jaxpr(
        traced.jaxpr.jaxpr, [True] * len(traced.jaxpr.jaxpr.outvars)
    )
    due = sum(
        x.size * x.dtype.itemsize
        for x, counts in zip(program.arguments.values(), used, strict=True)
        if counts
    )
    assert traced.lower().compile().memory_analysis().argument_size_in_bytes == due > 0


def test_a_part_of_the_output_that_is_not_computed_is_a_wrong_answer(monkeypatch):
    def half(leaf):
        return jnp.where(jnp.arange(leaf.size).reshape(leaf.shape) < leaf.size // 2, leaf, 0)

    with_function(monkeypatch, lambda function, _: lambda *given: jax.tree.map(half, function(*given)))
    record = run(case_of("linear by seeds"))
    assert (record.status, record.reason) == ("failed", "wrong_answer")


def test_an_output_that_is_left_out_fails_its_case(monkeypatch):
    """Of two inputs, the derivative by the first alone."""
    with_function(monkeypatch, lambda function, _: lambda *given: jax.tree.leaves(function(*given))[:1])
    record = run(case_of("residual by both", mode="jacrev"))
    assert record.status == "failed" and record.seconds == []


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_output_is_waited_for(name):
    """That of each input, where there are several."""

    class Output:
        waited = 0

        def block_until_ready(self):
            Output.waited += 1
            return self

    count = len(jax.tree.leaves(run_once(case_of(name, mode="jacrev"))))
    outputs = [Output() for _ in range(count)] if count > 1 else Output()
    run_case.make_waiter(outputs)(outputs)
    assert Output.waited == count


def test_what_needs_more_memory_than_there_is_is_skipped_with_both_figures_before_anything_is_allocated(
    monkeypatch,
):
    from scaling.core import memory

    monkeypatch.setattr(memory, "available_bytes", lambda: 100)
    monkeypatch.setattr(layout, "place_inputs", lambda *_: 1 / 0)
    process_cache.clear()
    process_cache.cached("dispatch_latency", ("jit", True, 1), lambda: 1e-5)
    record = run(case_of("poisson"))
    assert (record.status, record.reason) == ("skipped", "too_large")
    assert record.text.startswith("needs ") and record.text.endswith("has 100 B") and record.output_bytes


def test_what_goes_wrong_after_some_turns_leaves_no_time(monkeypatch):
    case = case_of("poisson")
    started = run_case.prepare_case(
        Record(case, "failed", {"digest": "test"}), run_case.ProcessGroup(jax.devices()[:1], "cpu"), FEW
    )
    assert not run_case.take_turn(started) and started.record.seconds
    monkeypatch.setattr(host_monitor, "start_meter", lambda *where: 1 / 0)
    assert run_case.take_turn(started) and started.ended
    record = started.record
    assert (record.status, record.reason, record.seconds) == ("failed", "error", [])
