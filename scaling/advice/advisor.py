"""Implement `scaling.advise`, which measures candidates, and `mode=auto`, which only predicts their times.

Candidates are cases that compute the same derivative with different modes, chunks, blocks and device counts.
candidates.py lists and compiles the candidates, and measurement.py measures them.
"""

import dataclasses
import functools
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from scaling.advice import candidates, measurement, plain_code
from scaling.advice.advice import NO_ADVICE, Advice
from scaling.advice.problem import Problem, make_problem, name_user_function, registered
from scaling.core import environment
from scaling.core.case import Case, Refusal, check_names
from scaling.core.compile_case import Stages
from scaling.core.formatting import format_count
from scaling.core.record import Record, RecordFields
from scaling.core.run_case import CaseEnded, ProcessGroup
from scaling.plan.hardware import Hardware, find_compiler, find_model, read_hardware

_COMPILING_SECONDS = 30.0  # seconds after which no compilation begins, unless half of the budget is longer
_DEFAULTS: dict[str, Any] = {"budget": 30.0, "devices": 1, "hardware": None, "note": None}


def advise(
    function: Callable[..., Any],
    points: Mapping[str, Any],
    shared: Mapping[str, Any] | None = None,
    *,
    wrt: str | None = None,
    target: str = "jacobian",
    import_line: str = "",
    compile_cores: Sequence[int] = (),
    **options: Any,
) -> Advice:
    """Return an `Advice` on a function.

    Threads compile on the CPU cores `compile_cores`, by default those of this process. `scaling.advise`
    documents the other arguments.
    """
    problem = make_problem(function, points, shared, wrt, target, import_line)
    check_names("option", options, _DEFAULTS)
    options = _DEFAULTS | options
    _check_options(**options)  # before the sparsity pattern is detected
    is_gauss_newton = target == "gauss_newton"
    with registered(problem) as base:
        coloring = None if is_gauss_newton else candidates.find_coloring(base, problem.transforms)

    def write(case: Case) -> Callable[..., Any]:
        """Return the function that the code to paste defines for one device."""
        code = plain_code.write_code(problem, dataclasses.replace(case, devices=1), coloring)
        return plain_code.execute_code(problem, code)

    coded_modes = [candidates.CODED] if coloring or is_gauss_newton else []
    with registered(problem, write, coded_modes) as base:
        # The code to paste cannot split seeds.
        advice = advise_case(base, **options, may_split_seeds=False, compile_cores=compile_cores)
    if is_gauss_newton and any(record.status == "ok" for record in advice.records.values()):
        _check_reverse_mode(problem)
    return dataclasses.replace(advice, problem=problem, coloring=coloring)


def _check_reverse_mode(problem: Problem) -> None:
    """Raise `Refusal` if reverse mode computes a wrong gradient of a weighted sum of the outputs.

    Gauss-Newton products need this check, because both the product and its reference use reverse mode. A
    wrong derivative rule would cause the same error in both.
    """

    @functools.wraps(problem.function)
    def weighted_sum(*inputs: Any) -> Any:
        generator, outputs = np.random.default_rng(0), jax.tree.leaves(problem.function(*inputs))
        return sum((generator.uniform(0.5, 1.5, y.shape).astype(y.dtype) * y).sum() for y in outputs)

    with registered(dataclasses.replace(problem, function=weighted_sum, target="jacobian")) as base:
        record = measurement.check_case(dataclasses.replace(base, mode="jacrev")).record
    if record.reason == "wrong_answer":
        text = name_user_function(record.text or "")
        raise Refusal(f"{NO_ADVICE}: its gradient in reverse mode: {text}")


def advise_case(
    base: Case,
    budget: float,
    devices: int | Sequence[int],
    hardware: str | None,
    note: Callable[[str], None] | None,
    may_split_seeds: bool = True,
    compile_cores: Sequence[int] = (),
) -> Advice:
    """Return an `Advice` on the derivative that `base` computes, whose AD mode and layout are ignored.

    If `may_split_seeds` is true, the seeds are partitioned when there are more devices than points.
    Threads compile on the CPU cores `compile_cores`, by default those of this process. `scaling.advise`
    documents the other arguments.
    """
    other_machine = _check_options(budget, devices, hardware, note)
    devices = devices if isinstance(devices, Sequence) else [devices]
    note = note or (lambda text: None)
    cases, excluded, derivative = candidates.list_candidates(base, list(map(int, devices)), may_split_seeds)
    entries = (
        f"{derivative.outputs:,} x {derivative.inputs:,} entries at {format_count(base.points, 'point')}"
    )
    note(f"{format_count(len(cases), 'candidate')} for {entries}")
    fields: dict[Case, RecordFields] = {case: {"status": "planned"} for case in cases}
    stages, records = dict[Case, Stages](), dict[Case, Record]()
    if model := other_machine or find_model(jax.devices()[0]):  # without a model, all candidates are measured
        seconds = max(_COMPILING_SECONDS, budget / 2)
        fields, stages = candidates.predict_candidates(cases, model, note, seconds, compile_cores)
    machine = other_machine.title if other_machine else f"this machine ({jax.devices()[0].platform})"
    platform = other_machine.platform if other_machine else jax.default_backend()
    xla_options = environment.fusion_options() if platform == "cpu" else {}
    if budget and not other_machine and len(fields) == len(cases):  # not interrupted
        records = measurement.measure_candidates(fields, stages, budget, note)
    return Advice(tuple(cases), excluded, derivative, fields, records, machine, xla_options)


def _check_options(budget: Any, devices: Any, hardware: Any, note: Any) -> Hardware | None:
    """Return the model of the machine to compile for, or None for this machine.

    Raise `Refusal` if an option is invalid, a device count is not available, or a compiler is missing.
    """
    other_machine = None if hardware in (None, "cpu") else read_hardware(hardware)
    if isinstance(budget, bool) or not isinstance(budget, numbers.Real) or not 0 <= float(budget) < math.inf:
        raise Refusal(f"budget must be a number of seconds, zero or more, not {budget!r}")
    if not (note is None or callable(note)):
        raise Refusal(f"note must be a function of one line of text, such as print, not {note!r}")
    if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
        raise Refusal("jax_disable_jit is set, and advice compares compiled programs: unset it")
    available, counts = jax.devices(), devices if isinstance(devices, Sequence) else [devices]
    for count in counts or [devices]:
        if not isinstance(count, numbers.Integral) or isinstance(count, bool) or int(count) < 1:
            raise Refusal(f"devices must be positive integers, such as [1, 2], not {count!r}")
        if other_machine is not None:
            other_machine.check_devices(int(count))
        elif int(count) > len(available):
            text = f"JAX has {len(available)} {available[0].platform} devices here"
            fix = "set jax_num_cpu_devices before JAX starts, or hardware=NAME"
            raise Refusal(f"devices={count}: {text}; use fewer, or {fix}")
    if other_machine is not None:
        find_compiler(other_machine)
    return other_machine


def choose_case(case: Case, group: ProcessGroup) -> Case:
    """Return a copy of `case` (mode=auto) with the AD mode and options that are predicted to be fastest.

    Raise `CaseEnded` if conf/hardware has no model of the machine, or if no time can be predicted, for
    example because no candidate fits into memory. In the second case, the exception has the status, reason
    and text of the first candidate. The reason is "not_offered" if only its time is unknown.
    """
    base = dataclasses.replace(case, mode=case.ad_mode.name)
    cases, excluded, derivative = candidates.list_candidates(base)
    model = find_model(jax.devices()[0])
    if model is None:
        text = f"mode=auto needs the rates of the machine, and conf/hardware has none for {group.devices[0]}"
        raise CaseEnded("skipped", "not_offered", text)
    fields, _ = candidates.predict_candidates(cases, model)
    advice = Advice(tuple(cases), excluded, derivative, fields, {}, model.title)
    try:
        return advice.best
    except Refusal as error:  # whose text is that of the first candidate with a reason
        outcome = next((fields[candidate] for candidate in advice.cases if advice.reason(candidate)), {})
        status = "failed" if outcome.get("status") == "failed" else "skipped"
        raise CaseEnded(status, outcome.get("reason") or "not_offered", f"mode=auto: {error}") from None
