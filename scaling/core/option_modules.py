"""Import optional modules by name, such as sparse Jacobians, when a case needs them.

No other module of scaling/core imports an optional module. The following lists show each module with the
functions that the core calls. For every case of JAX:

    program_stats        measure_work; the FLOPs, bytes and collectives of the compiled program
    host_monitor         read_host, start_meter, find_disturbances, MARKS; other load on the host

For some cases:

    compilation_cache    persistent_cache(state, compile), CacheUnavailable; for `cache`
    sparse               detect_coloring, gather_indices, read_entries, gather_entries; for `seeds=colored`
    autochunk            compile_largest; for `chunk=auto`
    host_offload         plan_offload, make_offload_runner; for `storage=host`
    data_parallel        sum_derivative; for a sum over the points
    finite_step          result_bounds, input_bounds; for `mode=finite_difference`
    laplacian            jet, forward_laplacian; for the modes of these names
    pytrees              flatten_inputs, concatenate_leaves, concatenate_blocks; for pytrees of arrays
    computed_reference   examine, with_reference, session; for a function without a closed form
    reevaluate           reevaluate_failures; whether rounding explains an error over its tolerance
    sampled_reference    compare_samples, sum_over_outputs, compared_shares; if all entries take too long
    advisor              choose_case; for `mode=auto`
    peers                module, formulations, collected; for `engine`
"""

import importlib
from types import ModuleType

_MODULES = {
    "advisor": "scaling.advice.advisor",
    "autochunk": "scaling.options.autochunk",
    "compilation_cache": "scaling.options.compilation_cache",
    "computed_reference": "scaling.options.reference.computed_reference",
    "data_parallel": "scaling.options.data_parallel",
    "finite_step": "scaling.options.reference.finite_step_bound",
    "host_monitor": "scaling.options.host_monitor",
    "host_offload": "scaling.options.host_offload",
    "laplacian": "scaling.options.laplacian",
    "peers": "scaling.peers.interface",
    "program_stats": "scaling.options.program.program_stats",
    "pytrees": "scaling.options.pytrees",
    "sampled_reference": "scaling.options.reference.sampled_reference",
    "reevaluate": "scaling.options.reference.reevaluate",
    "sparse": "scaling.options.sparse.case_coloring",
}


def load(option: str) -> ModuleType:
    """Import and return the module of an option, such as "sparse"."""
    return importlib.import_module(_MODULES[option])
