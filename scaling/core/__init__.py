"""Define and run one case, and import the optional modules that only some cases need (`load_option`).

The way from a study in conf/ to a scaling curve:

    study/configuration.py, grid.py      make a `Case` of each combination of values
    launcher/schedule.py, supervise.py   send the cases without a result to worker processes
    jax_worker.py                        calls prepare_case, take_turn and finish_case of run_case.py
    analysis/timings.py, curves.py       pool the records of a case, and join cases that differ in devices

Read the modules of this folder in this order: case, modes, reductions, workload, inputs, derivative, layout,
compile_case, reference, check, timing, record, run_case. They import other folders by `load_option` only.
"""

import importlib
from typing import Any

_OPTIONAL_MODULES = {  # the comments name the cases that need a module
    "advisor": "scaling.advice.advisor",  # mode=auto
    "autochunk": "scaling.options.autochunk",  # chunk=auto
    "coloring": "scaling.options.coloring",  # seeds=colored
    "compilation_cache": "scaling.options.compilation_cache",  # cache
    "computed_reference": "scaling.checks.computed_reference",  # a function without a closed form
    "data_parallel": "scaling.options.data_parallel",  # reduce=points
    "finite_step": "scaling.checks.finite_step_bound",  # mode=finite_difference
    "gram": "scaling.options.gram",  # reduce=gram
    "host_monitor": "scaling.host_monitor",
    "host_offload": "scaling.options.host_offload",  # storage=host
    "laplacian": "scaling.options.laplacian",  # target=laplacian
    "peers": "scaling.peers.interface",  # engine
    "pmap": "scaling.options.pmap",  # api=pmap
    "program_stats": "scaling.programs.program_stats",
    "pytrees": "scaling.options.pytrees",  # inputs and outputs that are pytrees
    "rounding_check": "scaling.checks.rounding_check",  # errors over their tolerance
    "sampled_check": "scaling.checks.sampled_check",  # a slow reference
    "sparse_jacobians": "scaling.options.sparse_jacobians",  # seeds=colored, or a workload with a pattern
    "workload_sources": "scaling.options.workload_sources",  # a workload of the user
}


def load_option(name: str) -> Any:
    """Import and return an optional module of this package by its short name, such as "coloring"."""
    return importlib.import_module(_OPTIONAL_MODULES[name])
