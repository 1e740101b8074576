"""Tests of failing cases: status, reason and text of the record that the worker writes."""

import dataclasses
import json
import os
import sys
import threading
import time
import types

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import multihost_utils

from scaling import jax_worker, worker
from scaling.core import compile_case, layout, run_case, workload
from scaling.core.case import AUTO, Case
from scaling.core.record import Record
from scaling.core.timing import Sampling
from scaling.study import case_rules
from tests.support.devices import HERE, run_once

LINEAR = {"workload": "linear", "points": 6, "sizes": {"p": 3, "o": 2}}


def test_the_recorded_text_of_an_exception_contains_no_path_and_no_secret(monkeypatch):
    def fail(*_):
        raise ValueError("no s3cr3t-v4lue in /home/ada/project/\udcff.csv")  # a file name that is not UTF-8

    monkeypatch.setenv("SOME_TOKEN", "s3cr3t-v4lue")
    monkeypatch.setattr(workload, "build", fail)
    record = run_once(Case(**LINEAR, api="jit"))
    assert (record.status, record.reason) == ("failed", "error")
    assert record.text.startswith("ValueError: no <SOME_TOKEN> in \udcff.csv")
    assert "s3cr3t" not in record.text and "/home" not in record.text


@pytest.mark.parametrize("split", ["points", "seeds"])
def test_a_program_with_unexpected_collectives_fails(split, monkeypatch):
    lay_out = layout.lay_out

    def add_all_reduce(*args, **kwargs):
        program = lay_out(*args, **kwargs)

        def function(*inputs):
            return jax.tree.map(lambda a: a + 0 * jnp.sum(a), program.function(*inputs))

        return dataclasses.replace(program, function=jax.jit(function))

    case = case_rules.complete(Case(**LINEAR, split=split, devices=2))
    for lay_out_program, outcome in ((lay_out, ("ok", None)), (add_all_reduce, ("failed", "collective"))):
        monkeypatch.setattr(layout, "lay_out", lay_out_program)
        record = run_once(case)
        assert (record.status, record.reason) == outcome, record.text


@pytest.mark.parametrize(
    ("step", "call", "fields"),
    [("compile_stages", 1, {}), ("compile_stages", 2, {}), ("describe_derivative", 1, {"seeds": "colored"})],
    ids=["compiles the empty program", "compiles the case", "traces the function"],
)
def test_a_step_that_fails_in_one_process_ends_the_case_in_all(step, call, fields, monkeypatch):
    values, calls, barrier = {}, [], threading.Barrier(2, timeout=20)
    original = getattr(compile_case, step)

    def gather(own):  # as the collective of JAX, it needs equally many values in all processes
        values[threading.current_thread().name] = own
        barrier.wait()
        rows = [values["process 0"], values["process 1"]]
        barrier.wait()
        assert len(rows[0]) == len(rows[1])
        return rows

    def fail_in_process_1(*args):
        calls.append(threading.current_thread().name)
        if calls.count("process 1") == call and calls[-1] == "process 1":
            raise MemoryError("no memory")
        return original(*args)

    monkeypatch.setattr(compile_case, step, fail_in_process_1)
    case = case_rules.complete(Case(**LINEAR, api="jit", chunk=AUTO, memory_limit=10**6, **fields))
    monkeypatch.setattr(run_case, "_dispatch_latency", run_case._dispatch_latency.__wrapped__)  # not cached

    def run(rank):
        group = run_case.ProcessGroup(jax.devices()[:1], "cpu", gather, processes=2)
        results[rank] = run_case.prepare_case(Record(case, "failed", HERE), group, Sampling()).record

    results = {}
    processes = [threading.Thread(target=run, args=(rank,), name=f"process {rank}") for rank in (0, 1)]
    [process.start() for process in processes]
    [process.join() for process in processes]
    assert [results[rank].reason for rank in (0, 1)] == ["out_of_memory"] * 2
    assert (
        results[0].text == "process 1 of 2: MemoryError: no memory" + results[1].text.partition("memory")[2]
    )


def test_a_process_whose_collective_fails_ends_after_the_process_that_caused_it(monkeypatch, capsys):
    """Otherwise, its record says that Gloo failed, not that another process was killed."""
    waits = []
    monkeypatch.setattr(multihost_utils, "process_allgather", lambda _: 1 / 0)
    monkeypatch.setattr(time, "sleep", waits.append)
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit):
        jax_worker._all_gather([1.0])
    assert waits == [jax_worker._PEER_EXIT_SECONDS] and "division by zero" in capsys.readouterr().err


def test_a_last_call_that_does_not_fit_in_memory_ends_the_case(monkeypatch, make_record):
    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(run_case, "_check_another_call", fail)
    events, group = [], run_case.ProcessGroup([], "cpu")
    requests = [json.dumps({"do": "finish", "key": "key"})]
    channel = types.SimpleNamespace(requests=requests, send_event=lambda **event: events.append(event))
    loop = jax_worker.CaseLoop({}, channel, group, {})
    loop.attempts["key"] = run_case.Attempt(make_record(), group, Sampling())
    loop.run()
    assert [(event["event"], event["reason"]) for event in events] == [("end", "out_of_memory")]
    assert json.loads(events[0]["line"])["reason"] == "out_of_memory"


def test_a_fork_of_a_worker_sends_no_record(monkeypatch, make_record):
    """A function that is not compiled may fork at each call, also at the last one."""
    channel = object.__new__(worker.Channel)
    channel._pid = os.getppid()  # as in a fork
    monkeypatch.setattr(os, "_exit", sys.exit)
    group = run_case.ProcessGroup([], "cpu")
    loop = jax_worker.CaseLoop({}, channel, group, {})
    loop.attempts["key"] = run_case.Attempt(make_record(), group, Sampling(), ended=True)
    with pytest.raises(SystemExit):
        loop._end("key")
