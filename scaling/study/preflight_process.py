"""Main program of the preflight process: import the user's module, call it, check cases, explain errors.

Each line of standard input is a request in JSON about one cell (a case as given in a study), with the fields
"case" and "scaling". The process imports the user's modules of the cell, and sends the event "begin". It
completes the case by the rules of case_rules.py, and checks its inputs, shapes and reference. The reply is
the event "answer", with the completed case or an error message, or "refused" if the memory ran out.
"""

import math
import os
from collections.abc import Callable, Mapping
from json import loads  # bound here, because a user's module may replace `json.loads`
from typing import Any

import jax
import numpy as np
from jaxlib import xla_client

from scaling.core import environment, workload
from scaling.core.case import (
    SECOND,
    Case,
    Refusal,
    TooLarge,
    from_dict,
    module_names,
    problem_fields,
    to_dict,
)
from scaling.core.derivative import Derivative, describe_derivative
from scaling.core.environment import PROGRAM_VARIABLES, hide_secrets, scrub
from scaling.core.formatting import format_location
from scaling.core.inputs import exact_inputs, input_structs
from scaling.options.sparse_jacobians import validated_pattern
from scaling.peers import interface
from scaling.study.case_rules import complete, unused_fields, why_inapplicable, without_trivial_blocks
from scaling.study.grid import GridCell
from scaling.study.preflight import without_layout
from scaling.study.user_workload import MAX_CHECKED_ELEMENTS, check_inputs, find_module
from scaling.worker import Channel, die_with_parent

_MAX_WORKLOADS = 8  # number of cached workloads; the parent sends the cells of one workload consecutively
_MAX_TEXT = 300  # maximum length of an exception message, in characters
# JAX setting that the case or the launcher sets, or that changes programs -> what to set instead
_FIXES = {name.lower(): f"the environment variable {name}" for name in PROGRAM_VARIABLES} | {
    "jax_default_matmul_precision": "precision in the study",
    "jax_enable_x64": "dtype=float64 in the study",
    "jax_platforms": "the environment variable JAX_PLATFORMS",
    "jax_num_cpu_devices": "devices=N in the study",
    "jax_disable_jit": "jit=false in the study",
    "jax_default_device": "cluster.platform",
    "jax_enable_compilation_cache": "cache=warm in the study",
}


def main() -> None:
    """Read requests from standard input until it ends, and send a reply to each."""
    channel = Channel()
    die_with_parent(loads(channel.requests.readline())["parent"])
    environment.limit_process()
    # This reads XLA_FLAGS without starting a backend. An unknown flag ends the process.
    xla_client.CompileOptions()
    settings = jax.config.values
    channel.send_event(event="started")
    for line in channel.requests:
        request = loads(line)
        cell = GridCell(from_dict(request["case"]), request["scaling"])
        reply = call_user_code(cell, lambda: channel.send_event(event="begin"))
        if changes := describe_changes(settings):
            reply = {"event": "answer", "refusal": f"{cell.case.workload} {changes}"}
        channel.send_event(**reply)
    os._exit(0)  # skip the exit handlers of user modules


def describe_changes(settings: Mapping[str, Any]) -> str | None:
    """Return a text that names the JAX settings that a user's module changed, or None if it changed none.

    `settings` are the values before the module was imported.
    """
    current = jax.config.values
    changed = [name for name in _FIXES if current.get(name) != settings.get(name)]
    if not changed:
        return None
    texts = [f"{name} from {settings[name]!r} to {current[name]!r}" for name in changed]
    fixes = " and ".join(_FIXES[name] for name in changed)
    return f"changed {', '.join(texts)}; remove that code, and set {fixes} instead"


def check_cell(cell: GridCell) -> dict[str, Any]:
    """Complete a case as given in a study, check whether the case can run, and return the answer as a dict.

    The entry "case" is the completed case. "unfit" is None, or the reason and a text if the case cannot run.
    "unused" contains the fields without effect (`unused_fields`). Raise `Refusal` if the case is invalid.
    """
    is_jitted = cell.case.jit and cell.case.engine == interface.JAX
    if is_jitted and jax.config.jax_disable_jit:  # type: ignore[attr-defined]
        raise Refusal("JAX_DISABLE_JIT is set, so that no case with jit=true can be compiled: unset it")
    completed = complete(cell.case, _make_workload)
    if (scaled := cell.scaled(completed)) != completed:
        completed = complete(scaled, _make_workload)  # some targets always have one point
    built = workload.build(completed, _make_workload)
    if completed.workload not in module_names("workloads"):
        inputs_key = without_layout(completed)
        workload.cached("inputs", inputs_key, lambda: check_inputs(completed, built), _MAX_WORKLOADS)
    try:
        derivative = without_trivial_blocks(describe_derivative(completed, built))
        completed = derivative.case
        inapplicable = why_inapplicable(derivative) or _why_indivisible(completed)
        if inapplicable is None and completed.workload not in module_names("workloads"):
            by_hand_key = without_layout(completed)
            workload.cached("by hand", by_hand_key, lambda: _check_by_hand(derivative), _MAX_WORKLOADS)
            key = problem_fields(completed), completed.formulation, completed.ad_mode.is_value
            workload.cached("reference", key, lambda: _check_reference(derivative), _MAX_WORKLOADS)
    except TooLarge as error:
        inapplicable = "too_large", scrub(str(error))[:_MAX_TEXT]
    return {
        "event": "answer", "case": to_dict(completed), "unfit": inapplicable,
        "unused": unused_fields(cell.case), "workload_digest": workload.source_digest(completed.workload),
        "engine": list(interface.package_versions(completed.engine).items()),
    }  # fmt: skip


def _why_indivisible(case: Case) -> tuple[str, str] | None:
    """Return ("indivisible", text) if a single point would be split over several devices, otherwise None.

    Raise `Refusal` if a case has several points that do not divide evenly over its devices.
    """
    devices = case.mesh_shape[0]
    if case.engine != interface.JAX or case.split == "both" or not (remainder := case.points % devices):
        return None
    if case.points > 1:
        larger = case.points - remainder + devices
        problem = f"points={case.points} of {case.workload} do not divide over devices={case.devices}"
        fix = f"take points={larger}, leave out this pair of points and devices with where"
        raise Refusal(f"{problem}: {fix}, or fill up with split=both mesh={devices}x1")
    text = f"{case.target} of {case.workload} has one point, which cannot be partitioned; use split=seeds"
    return "indivisible", text


def _check_by_hand(derivative: Derivative) -> None:
    """Raise `Refusal` if JAX cannot trace the handwritten derivative that a case uses."""
    case, built = derivative.case, derivative.workload
    if case.engine == interface.JAX and (by_hand := built.whole_modes.get(case.mode)):
        points, shared = input_structs(case, built)

        def differentiate(**inputs: Any) -> Any:
            result = by_hand(**inputs)
            if built.reduction.sums_points:  # an axis of one point, as the gathered result has
                result = jax.tree.map(lambda block: block[None], result)
            return workload.join_blocks(case, built, result)

        try:
            workload.evaluate_shape(case, differentiate, {**points, **shared})
        except Refusal as refusal:
            raise Refusal(f"mode={case.mode}: {refusal}") from None


def _check_reference(derivative: Derivative) -> None:
    """Raise `Refusal` if a workload has an invalid sparsity pattern, or a reference with wrong shapes."""
    case, built, is_second = derivative.case, derivative.workload, derivative.case.target in SECOND
    largest_input = max(math.prod(spec.shape) for spec in built.inputs.values())
    columns = derivative.outputs if is_second else derivative.inputs
    references = {"reference": (built.reference, (1, derivative.outputs, columns))}
    if built.pattern and not is_second and max(derivative.outputs, columns) <= MAX_CHECKED_ELEMENTS:
        pattern = validated_pattern(*built.pattern(), derivative.outputs, columns)
        references["nonzeros"] = built.nonzeros, (1, 1, len(pattern.rows))
    for name, (reference, shape) in references.items():
        if reference is None or max(math.prod(shape), largest_input) > MAX_CHECKED_ELEMENTS:
            continue
        result = reference(exact_inputs(case, built, 0, 1))
        shapes = {} if case.ad_mode.is_value else {"derivative": shape}
        for attribute, expected in {**shapes, "value": (1, derivative.values)}.items():
            returned = np.asarray(getattr(result, attribute, None)).shape
            if returned != expected:
                what = f"a Reference whose {attribute} has the shape {expected} at one point"
                raise Refusal(f"the {name} of {case.workload!r} must return {what}, not {returned}")


def _make_workload(case: Case) -> Any:
    case = without_layout(case)
    return workload.cached("made", case, lambda: workload.make_from_module(case), _MAX_WORKLOADS)


def call_user_code(cell: GridCell, report_import: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Import the user's modules of a case, call `report_import`, and return the result of `check_cell`.

    If the user's code raises an exception, return a dict with an error message.
    """
    try:
        find_module(cell.case.workload)
        if cell.case.engine != interface.JAX:
            interface.import_peer(cell.case.engine)
        report_import()
        return check_cell(cell)
    except BaseException as error:  # also SystemExit
        cause = error.__context__ if isinstance(error, Refusal) else error
        if cause is not None and environment.is_out_of_memory(f"{type(cause).__name__}: {cause}"):
            return {"event": "refused", "reason": "out_of_memory", "text": f"raised {type(cause).__name__}"}
        if isinstance(error, Refusal):
            return {"event": "answer", "refusal": hide_secrets(str(error))}
        sizes = "".join(f" {name}={size}" for name, size in cell.case.sizes.items())
        message = f"{type(error).__name__}: {scrub(str(error))[:_MAX_TEXT]}".removesuffix(": ")
        if "Workload.__init__()" in message:  # a misspelt or missing field
            message += f"; the fields are {', '.join(workload.Workload.__dataclass_fields__)}"
        return {
            "event": "answer",
            "refusal": f"{cell.case.workload}{sizes}: {message}{format_location(error)}",
        }


if __name__ == "__main__":
    main()
