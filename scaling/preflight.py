"""Preflight: the questions about a study that need JAX or a user's module, answered on the CPU before anything starts.

Runs as `python -m scaling.preflight` in a process of its own (JAX_PLATFORMS=cpu): cells as JSON on standard input, an answer for
each on standard output. The launcher's side of it is `ask`, which does not import JAX.
"""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from scaling import study
from scaling.case import Case, Refusal, from_dict, to_dict
from scaling.effects import Unused
from scaling.environment import last_line, scrub
from scaling.study import Cell


@dataclasses.dataclass(frozen=True)
class Answer:
    """A completed case, why it cannot run by its nature (reason, words), and the hash of a user's workload."""

    case: Case
    unfit: tuple[str, str] | None
    workload_digest: str | None
    engine: tuple[tuple[str, str | None], ...] = ()  # what a peer runs on: (name, version)

    @property
    def around(self) -> tuple:
        """What of its environment is the case's own: equal for cases that share an environment."""
        return self.workload_digest, self.engine


def ask(cells: Sequence[Cell]) -> list[Answer]:
    """An answer for each cell, each completed case once; what is bad input raises the first `Refusal` of them."""
    given = json.dumps([{"case": to_dict(cell.case), "scaling": cell.scaling} for cell in cells])
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-m", "scaling.preflight"], input=given, capture_output=True, text=True, env=environment, check=False
    )
    try:
        answers = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        last = last_line(done.stderr, f"exit status {done.returncode}")
        raise Refusal(f"the study cannot be examined: {last}") from None
    refusals = list(dict.fromkeys(a["refusal"] for a in answers if "refusal" in a))
    if refusals:
        more = f" (and {len(refusals) - 1} more like this)" if len(refusals) > 1 else ""
        raise Refusal(refusals[0] + more)
    study.refuse_unused(cells, [{name: Unused(*why) for name, why in answer["unused"].items()} for answer in answers])
    whole = {}
    for answer in answers:
        case = from_dict(answer["case"])
        engine = tuple((name, version) for name, version in answer["engine"])
        whole[case] = Answer(case, tuple(answer["unfit"]) if answer["unfit"] else None, answer["workload_digest"], engine)
    return list(whole.values())


def _answer(cell: Cell) -> dict[str, Any]:
    from scaling import peer, workload
    from scaling.measuring.products import multiplies  # JAX
    from scaling.measuring.shape import TooLarge, shape, unchunked
    from scaling.measuring.unfit import unfit as why_unfit

    completed = workload.complete(cell.scaled(workload.complete(cell.case)))  # twice: some targets have one point, however scaled
    built = workload.build(completed)
    engine = list(peer.versions(completed.engine).items())
    digest = workload.digest(completed.workload)
    try:
        sizes = shape(completed, built)
    except TooLarge as error:
        words = "too_large", scrub(str(error))[:300]
        return {"case": to_dict(completed), "unfit": words, "workload_digest": digest, "engine": engine, "unused": {}}
    completed = unchunked(completed, sizes)
    unfit = why_unfit(completed, built, sizes)
    jax = completed.engine == peer.JAX
    if jax and unfit is None and completed.split != "both" and (rest := completed.points % completed.axes[0]):
        if completed.points > 1:
            near = completed.points - rest, completed.points - rest + completed.axes[0]
            raise Refusal(
                f"points={completed.points} of {completed.workload} do not divide over devices={completed.devices}: "
                f"take points={' or '.join(str(n) for n in near if n)}, leave the pair out with where, "
                f"or fill up with split=both mesh={completed.axes[0]}x1"
            )
        unfit = "indivisible", f"{completed.target} of {completed.workload} has one point, which is not cut; split=seeds may be"
    unused = workload.unused(cell.case)
    if jax and completed.precision != "highest" and not multiplies(completed, built):
        because = "workload", "variant", "formulation", "batch"
        unused["precision"] = Unused("on a function that multiplies no matrices", because)
    return {
        "case": to_dict(completed), "unfit": unfit, "workload_digest": digest, "engine": engine, "unused": unused,
    }  # fmt: skip


def main() -> None:
    """Answer every cell on standard input."""
    out = os.fdopen(os.dup(1), "w")  # not for what a user's module prints, nor for its children
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    answers: list[dict[str, Any]] = []
    for fields in json.loads(sys.stdin.read()):
        try:
            answers.append(_answer(Cell(from_dict(fields["case"]), fields["scaling"])))
        except Refusal as refusal:
            answers.append({"refusal": str(refusal)})
        except (Exception, SystemExit) as error:
            answers.append({"refusal": f"{fields['case']['workload']}: {type(error).__name__}: {scrub(str(error))[:300]}"})
    print(json.dumps(answers), file=out, flush=True)


if __name__ == "__main__":
    main()
