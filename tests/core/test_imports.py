"""Tests of the imports of scaling/core: options are loaded only for the cases that use them."""

import json
import subprocess
import sys

from scaling.core.case import Case, non_default_fields
from scaling.study import case_rules

RUN = """
import json, sys
import jax
from scaling.core import run_case
from scaling.core.case import Case
from scaling.core.record import Record
from scaling.core.timing import Sampling
sampling = Sampling(least=1, most=1, warm_up=0.0)
for fields in json.loads(sys.argv[1]):
    record = Record(Case(**fields), "failed", {"digest": "test"})
    record = run_case.run_case(record, jax.devices()[:1], "cpu", sampling)
    assert record.status == "ok", record.text
    print(json.dumps([name for name in sys.modules if name.startswith("scaling.")]))
"""
LOADED_BY_ALL = {"scaling.host_monitor", "scaling.programs.hlo", "scaling.programs.program_stats"}


CASES = {  # the module that only this case loads
    None: {},
    "scaling.options.autochunk": {"chunk": "auto"},
    "scaling.options.host_offload": {"storage": "host", "block": 2},
    "scaling.options.coloring": {"seeds": "colored", "reduce": "whole"},
    "scaling.options.gram": {"reduce": "gram", "mode": "jacfwd"},
}


def modules_by_case():
    """Return the modules that are loaded after each of CASES, which run in turn in a new process."""
    common = {"workload": "rbf", "points": 4, "api": "jit", "dtype": "float32"}
    cases = [non_default_fields(case_rules.complete(Case(**common | fields))) for fields in CASES.values()]
    process = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(cases)], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    return [{*json.loads(line)} - LOADED_BY_ALL for line in process.stdout.splitlines()]


def test_a_case_loads_only_the_options_that_it_uses():
    before, *loaded = modules_by_case()
    assert not [
        name for name in before if name.startswith(("scaling.options.", "scaling.checks.", "scaling.peers."))
    ]
    for option, modules in zip([*CASES][1:], loaded, strict=True):
        assert option in modules - before
        before = modules
