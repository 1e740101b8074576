"""Tests of failing cases: status, reason and text of the record that the worker writes."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from scaling.core import layout, workload
from scaling.core.case import Case
from scaling.study import completion
from tests.support.devices import run_once

LINEAR = {"workload": "linear", "points": 6, "sizes": {"p": 3, "o": 2}}


def test_the_recorded_text_of_an_exception_contains_no_path_and_no_secret(monkeypatch):
    def fail(*_):
        raise ValueError("no s3cr3t-v4lue in /home/ada/project/data.csv")

    monkeypatch.setenv("SOME_TOKEN", "s3cr3t-v4lue")
    monkeypatch.setattr(workload, "build", fail)
    record = run_once(Case(**LINEAR, api="jit"))
    assert (record.status, record.reason) == ("failed", "error")
    assert record.text.startswith("ValueError: no <SOME_TOKEN> in data.csv")
    assert "s3cr3t" not in record.text and "/home" not in record.text


@pytest.mark.parametrize("split", ["points", "seeds"])
def test_a_program_with_unexpected_collectives_fails(split, monkeypatch):
    lay_out = layout.lay_out

    def add_all_reduce(*args, **kwargs):
        program = lay_out(*args, **kwargs)

        def function(*inputs):
            return jax.tree.map(lambda a: a + 0 * jnp.sum(a), program.function(*inputs))

        return dataclasses.replace(program, function=jax.jit(function))

    case = completion.complete(Case(**LINEAR, split=split, devices=2))
    for lay_out_program, outcome in ((lay_out, ("ok", None)), (add_all_reduce, ("failed", "collective"))):
        monkeypatch.setattr(layout, "lay_out", lay_out_program)
        record = run_once(case)
        assert (record.status, record.reason) == outcome, record.text
