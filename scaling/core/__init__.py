"""Run one case (a function, a differentiation method and devices): compile, check, time and record it.

Core knows one case and its record. Other packages do the rest of the way from `conf/` to a curve:

    study       compose reads conf/ with Hydra; grid expands the grids of a study to cases; completion
                fills in the defaults of the workload; preflight rejects bad input before anything starts
    workers     schedule omits the cases that are done and groups the others by process; supervise alternates
                the cases of one problem: it sends requests to a worker, which calls
    core          run_case.prepare_case, take_turn (once per turn) and finish_case; then store.Writer
                appends the record to a JSON lines file
    analysis    curves groups the records by problem and method and computes speed-ups, with the intervals of
                ratios; scaling_fits fits scaling laws
    report      draws the curves

In core, a case takes this path; run_case lists the calls:

    case        the fields of a case, its key and its label
    workload    builds the function and describes its inputs (inputs generates them)
    shape       derives the linear maps, seeds and result shape from case and workload
    modes       define the linear map of each AD mode; reductions, what is computed from its slices
    jacobian    computes the derivative of one device; layout partitions it over devices; gather assembles it
    compile_case  compiles what layout returns, within the limits that memory computes
    timing      samples the run time
    reference   computes the expected result; check compares, within the limits of tolerances
    record      the measurements of a run; store appends and loads records
"""
