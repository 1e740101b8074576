"""Failures: what a record says of a case that goes wrong in its worker."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from scaling.core import layout, run_case, workload
from scaling.core.case import Case
from scaling.core.record import Record
from scaling.study import completion
from tests.support.devices import HERE, ONCE

LINEAR = {"workload": "linear", "points": 6, "sizes": {"p": 3, "o": 2}}


def run(case):
    """Return the record of a case, measured once."""
    return run_case.run_case(Record(case, "failed", HERE), jax.devices()[: case.devices], "cpu", ONCE)


def test_the_text_of_an_exception_has_no_path_and_no_secret(monkeypatch):
    def fail(*_):
        raise ValueError("no s3cr3t-v4lue in /home/ada/project/data.csv")

    monkeypatch.setenv("SOME_TOKEN", "s3cr3t-v4lue")
    monkeypatch.setattr(workload, "build", fail)
    record = run(Case(**LINEAR, api="jit"))
    assert (record.status, record.reason) == ("failed", "error")
    assert record.text.startswith("ValueError: no <SOME_TOKEN> in data.csv")
    assert "s3cr3t" not in record.text and "/home" not in record.text


@pytest.mark.parametrize("split", ["points", "seeds"])
def test_a_program_that_communicates_where_nothing_is_to_be_sent_has_failed(split, monkeypatch):
    plain = layout.lay_out

    def with_a_sum(*words, **more):
        made = plain(*words, **more)

        def function(*given):
            return jax.tree.map(lambda a: a + 0 * jnp.sum(a), made.function(*given))

        return dataclasses.replace(made, function=jax.jit(function))

    case = completion.complete(Case(**LINEAR, split=split, devices=2))
    for program, outcome in ((plain, ("ok", None)), (with_a_sum, ("failed", "collective"))):
        monkeypatch.setattr(layout, "lay_out", program)
        record = run(case)
        assert (record.status, record.reason) == outcome, record.text
