"""Eight CPU devices with float64, on which tests run cases in their own process: import this module before JAX is used."""

import os

from scaling.core import environment

os.environ["XLA_FLAGS"] = environment.variables("cpu")["XLA_FLAGS"]
import jax

from scaling.core import run_case, workload
from scaling.core.case import JAX, Case
from scaling.core.derivative import describe_derivative
from scaling.core.record import Record
from scaling.core.timing import Sampling
from scaling.study import case_rules

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_enable_x64", True)

ONCE = Sampling(least=1, most=1, warm_up=0.0)
HERE = {"digest": "test", "platform": "cpu"}


def run_once(case: Case, sampling: Sampling = ONCE) -> Record:
    """Return the record of a completed case, which is checked and by default measured once."""
    count = case.devices if case.engine == JAX else 1
    return run_case.run_case(Record(case, "failed", HERE), jax.devices()[:count], "cpu", sampling)


def reason_to_skip(case: Case) -> tuple[str, str] | None:
    """Return why a completed case cannot run, as (reason, text), or None if it can."""
    built = workload.build(case)
    return case_rules.why_inapplicable(describe_derivative(case, built))
