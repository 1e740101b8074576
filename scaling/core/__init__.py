"""Run one case (a function, a differentiation method and devices): compile, check, time and record it.

This package handles a single case. Together with other packages, it turns a study in `conf/` into curves:

    study       compose reads conf/ with Hydra; grid expands the grids of a study into cases; completion
                fills in the defaults of the workload; preflight rejects bad input before anything starts
    workers     schedule omits the cases that are done and groups the others by process; supervise alternates
                the cases of one problem by sending requests to a worker process
    core        the worker calls run_case.prepare_case, take_turn (once per turn) and finish_case; then
                store.Writer appends the record to a JSON lines file
    analysis    curves groups the records by problem and method and computes speed-ups with confidence
                intervals; scaling_fits fits scaling laws
    report      draws the curves

The modules of core, in the order in which a case passes through them (run_case.py lists the calls):

    case        the fields of a case, its key and its label
    workload    builds the function and describes its inputs (inputs generates them)
    shape       derives the linear maps, seeds and result shape from case and workload
    modes       defines the linear map of each AD mode
    reductions  defines what is computed from the rows or columns of a Jacobian, such as their sum
    jacobian    computes the part of the derivative that belongs to one device; layout partitions the
                computation over devices; gather assembles the result on the host
    compile_case  compiles the program that layout returns and checks its memory needs (memory)
    timing      samples the run time
    reference   computes the expected result; check compares it with the result, within the tolerances
                that tolerances computes
    record      defines the record of a run; store appends and loads records
"""
