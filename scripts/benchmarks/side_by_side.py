"""Measure cases in alternating turns in this process, on one core. Several benchmarks import this module."""

import os
import sys

from scaling.core import environment
from scaling.launcher import cores

CORES = cores.usable_cores()[:1]
os.sched_setaffinity(0, CORES)
if not os.environ.get("SCALING_BENCH"):  # restart, because XLA and glibc read these variables at start-up
    os.execve(
        sys.executable,
        [sys.executable, *sys.argv],
        os.environ | environment.variables("cpu") | {"SCALING_BENCH": "1"},
    )

import jax

from scaling.core import run_case, workload
from scaling.core.case import Case
from scaling.core.derivative import describe_derivative
from scaling.core.record import Record
from scaling.core.timing import Sampling
from scaling.study import case_rules

HERE = {"digest": "benchmark", "platform": "cpu"}


def complete_case(**fields: object) -> Case:
    """Return a case on one device with these fields, and defaults for all others."""
    case = case_rules.complete(Case(**{"api": "jit", **fields}))  # type: ignore[arg-type]
    return case_rules.without_trivial_blocks(describe_derivative(case, workload.build(case))).case


def measure_in_turns(cases: list[Case], seconds: float = 2.0) -> list[Record]:
    """Check all cases, and sample them in turns until each has enough samples. Return their records.

    `seconds` is the time to sample each case.
    """
    sampling = Sampling(least=9, seconds=seconds)
    group = run_case.ProcessGroup(jax.devices()[:1], "cpu")
    attempts = [run_case.prepare_case(Record(case, "failed", HERE), group, sampling) for case in cases]
    active = [attempt for attempt in attempts if not attempt.ended]
    while active:
        active = [attempt for attempt in active if not run_case.take_turn(attempt) and not attempt.ended]
    return [attempt.record for attempt in attempts]
