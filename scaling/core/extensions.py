"""Features beyond the dense path, each in a module that is imported when a case first asks for it.

The core names no module of an option but in this table. What it expects of each:

    compilation_cache    persistent_cache(case, processes, compile) -> context manager; for `cache`
    sparse               detect_coloring, gather_indices, read_entries, gather_entries; for `seeds=colored`
    autochunk            compile_largest(...) -> CompiledCase; for `chunk=auto`
    host_offload         plan_offload(...) -> StepPlan, make_offload_runner(compiled); for `storage=host`
    data_parallel        sum_derivative; for a sum over points
    finite_step          result_bounds, input_bounds; for `mode=finite_difference`
    pytrees              flatten_inputs, concatenate_leaves, concatenate_blocks; for pytrees of arrays
    reevaluate           reevaluate_failures(comparisons); for entries that fail the check
    computed_reference   examine, with_reference, session; for a function without a closed form
    sampled_reference    compare_samples, sum_over_outputs, compared_shares; where that would take too long
    host_monitor         read_host, start_meter, find_disturbances, MARKS; what else the machine does
    program_stats        measure_work(compiled, devices) -> ProgramWork; what a program computes and moves
    peers                another system that differentiates; for `engine`
"""

import importlib
from types import ModuleType

_MODULES = {
    "autochunk": "scaling.options.autochunk",
    "compilation_cache": "scaling.options.compilation_cache",
    "computed_reference": "scaling.options.reference.computed_reference",
    "data_parallel": "scaling.options.data_parallel",
    "finite_step": "scaling.options.reference.finite_step_bound",
    "host_monitor": "scaling.options.host_monitor",
    "host_offload": "scaling.options.host_offload",
    "peers": "scaling.peers.interface",
    "program_stats": "scaling.options.program.program_stats",
    "pytrees": "scaling.options.pytrees",
    "reevaluate": "scaling.options.reference.reevaluate",
    "sampled_reference": "scaling.options.reference.sampled_reference",
    "sparse": "scaling.options.sparse.case_coloring",
}


def load(feature: str) -> ModuleType:
    """Return the module of a feature."""
    return importlib.import_module(_MODULES[feature])
