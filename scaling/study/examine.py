"""The process that answers questions about cases before a study starts: `python -m scaling.study.examine`.

It imports JAX and the user's modules that its job names, and writes an event on a line each:

    {"event": "ready"}                       JAX is imported
    {"event": "imported"}                    the user's modules are imported
    {"event": "answer", ...}                 to the next question: the fields of a completed case, or a refusal
    {"event": "failure", "reason", "text", "fix"}   instead of the next one; no more is asked of this process

The questions are cells of a study. A module may do anything in here; see preflight.py for what becomes of it.
"""

import dataclasses
import functools
import json
import os
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from scaling.core import memory, workload
from scaling.core.case import Case, Refusal, from_dict, to_dict
from scaling.core.environment import hide_secrets, scrub
from scaling.peers import interface
from scaling.study.completion import complete, unused_fields, without_trivial_blocks
from scaling.study.grid import GridCell, UnusedField
from scaling.study.preflight import without_layout
from scaling.study.user_workload import find_module
from scaling.workers import event_channel
from scaling.workers.child_process import signal_name

_REMEMBERED = 8  # problems: the launcher asks about the cases of one problem one after another
_TEXT = 300  # characters of an exception


def main() -> None:
    """Answer the questions on standard input, in their order."""
    kept, parent = event_channel.open_channel(), os.getppid()
    event_channel.die_with_parent(parent)
    job = json.loads(kept.orders.readline())
    memory.raise_oom_score()
    from scaling.core import shape as derivative_shape  # noqa: F401
    from scaling.workers import process_state

    memory.limit_process()
    before, make = process_state.read(), _remembering()
    kept.say(event="ready")

    def guarded(name: str, do: Callable[[], dict[str, Any]]) -> None:
        event = _guarded(name, do)
        if "refusal" not in event and (changed := process_state.changes(before)):
            event = _failure("error", *changed)
        kept.say(**event)

    guarded(" and ".join(job["modules"]), lambda: _import(job["cell"]))
    for fields in job["cells"]:
        guarded(fields["case"]["workload"], functools.partial(_answered, fields, make))
    os._exit(0)  # whatever a module wants to do at exit


def _answered(fields: dict[str, Any], make: workload.Make) -> dict[str, Any]:
    return answer(_cell(fields), make)


def _cell(fields: dict[str, Any]) -> GridCell:
    return GridCell(from_dict(fields["case"]), fields["scaling"])


def _import(fields: dict[str, Any]) -> dict[str, Any]:
    """Import the user's modules of a cell."""
    case = _cell(fields).case
    find_module(case.workload)
    if case.engine != interface.JAX:
        interface.module(case.engine)
    return {"event": "imported"}


def answer(cell: GridCell, make: workload.Make = workload.make) -> dict[str, Any]:
    """Complete a case, and say why it cannot run by its nature, if it cannot. A case that would not divide is a `Refusal`."""
    from scaling.core.shape import TooLarge, derivative_shape
    from scaling.study.applicability import why_inapplicable as why_unfit

    completed = complete(cell.case, make)
    if (scaled := cell.scaled(completed)) != completed:
        completed = complete(scaled, make)  # some targets have one point, however scaled
    built = workload.build(completed, make)
    unused = _unused(cell.case, completed)
    try:
        sizes = derivative_shape(completed, built)
        completed = without_trivial_blocks(completed, sizes)
        unfit = why_unfit(completed, built, sizes) or _indivisible(completed)
    except TooLarge as error:
        unfit = "too_large", scrub(str(error))[:_TEXT]
    return {
        "event": "answer", "case": to_dict(completed), "unfit": unfit, "workload_digest": workload.digest(completed.workload),
        "engine": list(interface.versions(completed.engine).items()), "unused": unused,
    }  # fmt: skip


def _unused(stated: Case, completed: Case) -> dict[str, UnusedField]:
    """Return the fields of a case, as a study states it, that have no effect."""
    from scaling.study.matrix_products import multiplies

    unused = unused_fields(stated)
    if (
        completed.engine == interface.JAX
        and completed.precision != "highest"
        and not multiplies(completed, workload.build(completed))
    ):
        because = "workload", "variant", "formulation", "batch"
        unused["precision"] = UnusedField("on a function that multiplies no matrices", because)
    return unused


def _indivisible(case: Case) -> tuple[str, str] | None:
    """Say why one point cannot be cut; points that could divide, and do not, are a `Refusal`."""
    if case.engine != interface.JAX or case.split == "both" or not (rest := case.points % case.axes[0]):
        return None
    if case.points > 1:
        near = case.points - rest, case.points - rest + case.axes[0]
        raise Refusal(
            f"points={case.points} of {case.workload} do not divide over devices={case.devices}: "
            f"take points={' or '.join(str(n) for n in near if n)}, leave the pair out with where, "
            f"or fill up with split=both mesh={case.axes[0]}x1"
        )
    return (
        "indivisible",
        f"{case.target} of {case.workload} has one point, which is not cut; split=seeds may be",
    )


def _remembering() -> workload.Make:
    """Return a `make` that calls `workload(case)` once for the cases that differ in their layout only, and traces it once."""
    known: OrderedDict[Case, Any] = OrderedDict()

    def make(case: Case) -> Any:
        problem = without_layout(case)
        if problem not in known:
            known[problem] = _traced_once(workload.make(case))
        while len(known) > _REMEMBERED:
            known.popitem(last=False)
        return known[problem]

    return make


def _traced_once(made: Any) -> Any:
    """Return a workload whose functions give results of the right shapes, and are traced once for inputs of the same shapes."""
    if not isinstance(made, workload.Workload):
        return made
    whole = None if made.whole is None else _shaped(made.whole)
    return dataclasses.replace(made, function=_shaped(made.function), whole=whole)


def _shaped(function: Callable[..., Any]) -> Callable[..., Any]:
    import jax
    import jax.numpy as jnp

    known: dict[str, Any] = {}

    def shaped(**inputs: Any) -> Any:
        like = str(jax.tree.map(lambda x: (x.shape, str(x.dtype)), inputs))
        if like not in known:
            known[like] = jax.eval_shape(lambda inputs: function(**inputs), inputs)
        return jax.tree.map(lambda out: jnp.zeros(out.shape, out.dtype), known[like])

    return shaped


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
        return _failure(
            "error", f"raised {': '.join(filter(None, (type(error).__name__, scrub(str(error))[:_TEXT])))}"
        )


def _failure(reason: str, text: str, fix: str | None = None) -> dict[str, Any]:
    return {"event": "failure", "reason": reason, "text": text, "fix": fix}


if __name__ == "__main__":
    main()
