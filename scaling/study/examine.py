"""The process that answers questions about cases before a study starts: `python -m scaling.study.examine`.

It imports JAX and the user's modules that its job names, and writes an event on a line each:

    {"event": "ready"}                       JAX is imported
    {"event": "imported"}                    the user's modules are imported
    {"event": "answer", ...}                 to the next question: fields of a completed case, or a refusal
    {"event": "failure", "reason", "text", "fix"}   instead of the next one; no more is asked of this process

The questions are cells of a study. A module may do anything in here; see preflight.py for what becomes of it.
"""

import functools
import json
import os
from collections.abc import Callable
from typing import Any

import jax

from scaling.core import memory, shape, workload
from scaling.core.case import Case, Refusal, from_dict, to_dict
from scaling.core.environment import hide_secrets, scrub
from scaling.options.program.jaxpr_flops import ELEMENTWISE, subjaxprs
from scaling.peers import interface
from scaling.study.applicability import why_inapplicable
from scaling.study.completion import complete, unused_fields, without_trivial_blocks
from scaling.study.grid import GridCell, UnusedField
from scaling.study.preflight import without_layout
from scaling.study.user_workload import find_module
from scaling.workers import event_channel, module_side_effects, process_memory
from scaling.workers.child_process import signal_name

_REMEMBERED = 8  # problems: the launcher asks about the cases of one problem one after another
_TEXT = 300  # characters of an exception


def main() -> None:
    """Answer the questions on standard input, in their order."""
    channel = event_channel.open_channel()
    event_channel.die_with_parent(os.getppid())
    job = json.loads(channel.requests.readline())
    process_memory.raise_oom_score()
    process_memory.limit_process()
    changes = module_side_effects.watch_for_changes()
    channel.send_event(event="ready")

    def send(name: str, do: Callable[[], dict[str, Any]]) -> None:
        event = _guarded(name, do)
        if "refusal" not in event and (changed := changes()):
            event = _failure("error", *changed)
        channel.send_event(**event)

    cells = [GridCell(from_dict(cell["case"]), cell["scaling"]) for cell in job["cells"]]
    send(" and ".join(job["modules"]), lambda: _import(cells[0].case))
    for cell in cells:
        send(cell.case.workload, lambda cell=cell: answer(cell))  # type: ignore[misc]
    os._exit(0)  # whatever a module wants to do at exit


def _import(case: Case) -> dict[str, Any]:
    """Import the user's modules of a case."""
    find_module(case.workload)
    if case.engine != interface.JAX:
        interface.module(case.engine)
    return {"event": "imported"}


def answer(cell: GridCell) -> dict[str, Any]:
    """Complete a case, and return why it cannot run, if it cannot.

    Raise `Refusal` if the case does not divide evenly.
    """
    completed = complete(cell.case, _make)
    if (scaled := cell.scaled(completed)) != completed:
        completed = complete(scaled, _make)  # some targets have one point, however scaled
    built = workload.build(completed, _make)
    unused = _unused(cell.case, completed, built)
    try:
        sizes = shape.derivative_shape(completed, built)
        completed = without_trivial_blocks(completed, sizes)
        unfit = why_inapplicable(completed, built, sizes) or _indivisible(completed)
    except shape.TooLarge as error:
        unfit = "too_large", scrub(str(error))[:_TEXT]
    return {
        "event": "answer", "case": to_dict(completed), "unfit": unfit,
        "workload_digest": workload.digest(completed.workload),
        "engine": list(interface.versions(completed.engine).items()), "unused": unused,
    }  # fmt: skip


def _unused(stated: Case, completed: Case, built: workload.Workload) -> dict[str, UnusedField]:
    """Return the fields of a case, as a study states it, that have no effect."""
    unused = unused_fields(stated)
    lower = completed.engine == interface.JAX and completed.precision != "highest"
    if lower and not multiplies(completed, built):
        because = "workload", "variant", "formulation", "batch"
        unused["precision"] = UnusedField("on a function that multiplies no matrices", because)
    return unused


def multiplies(case: Case, built: workload.Workload) -> bool:
    """Return false only where neither the function of a case nor its reduction can multiply matrices."""
    if built.reduction.products or case.ad_mode.by_workload:
        return True  # or written by hand, in a function that is not traced here
    function, inputs = built.function, shape.point_structs(case, built)
    if case.batch == "whole" and built.whole is not None:
        points, shared = shape.input_structs(case, built)
        function, inputs = built.whole, {**points, **shared}
    return _may_multiply(jax.make_jaxpr(lambda inputs: function(**inputs))(inputs).jaxpr)


def _may_multiply(jaxpr: Any) -> bool:
    """Return whether a jaxpr may multiply matrices.

    Operations that are not known to do something else count as such.
    """
    for equation in jaxpr.eqns:
        name, inner = equation.primitive.name, subjaxprs(equation)
        if name not in ELEMENTWISE and (not inner or name.startswith("custom")):
            return True
        if any(_may_multiply(getattr(each, "jaxpr", each)) for each in inner):
            return True
    return False


def _indivisible(case: Case) -> tuple[str, str] | None:
    """Say why one point cannot be divided; points that could divide, and do not, are a `Refusal`."""
    devices = case.axes[0]
    if case.engine != interface.JAX or case.split == "both" or not (rest := case.points % devices):
        return None
    if case.points > 1:
        near = case.points - rest, case.points - rest + devices
        raise Refusal(
            f"points={case.points} of {case.workload} do not divide over devices={case.devices}: "
            f"take points={' or '.join(str(n) for n in near if n)}, leave the pair out with where, "
            f"or fill up with split=both mesh={devices}x1"
        )
    text = f"{case.target} of {case.workload} has one point, which is not cut; split=seeds may be"
    return "indivisible", text


def _make(case: Case) -> Any:
    return _make_problem(without_layout(case))


@functools.lru_cache(_REMEMBERED)
def _make_problem(problem: Case) -> Any:
    """Call `workload(case)`, once for the cases that differ in their layout only."""
    return workload.make_user_workload(problem)


def _guarded(name: str, do: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the event that something makes; what is raised in a user's module is a refusal, or a failure."""
    try:
        return do()
    except Refusal as refusal:
        cause = refusal.__context__
        if cause is not None and memory.is_out_of_memory(f"{type(cause).__name__}: {cause}"):
            return _failure("out_of_memory", f"raised {type(cause).__name__}")
        return {"event": "answer", "refusal": hide_secrets(str(refusal))}
    except MemoryError:
        return _failure("out_of_memory", "raised MemoryError")
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        return _failure("killed", f"ended with status {status} (SystemExit)")
    except KeyboardInterrupt:
        return _failure("killed", f"raised KeyboardInterrupt, as signal 2{signal_name(2)} would,")
    except Exception as error:
        return {"event": "answer", "refusal": f"{name}: {type(error).__name__}: {scrub(str(error))[:_TEXT]}"}
    except BaseException as error:
        text = f"{type(error).__name__}: {scrub(str(error))[:_TEXT]}"
        return _failure("error", f"raised {text.removesuffix(': ')}")


def _failure(reason: str, text: str, fix: str | None = None) -> dict[str, Any]:
    return {"event": "failure", "reason": reason, "text": text, "fix": fix}


if __name__ == "__main__":
    main()
