"""Check the cases of a study in child processes, cache the answers, and refuse fields without effect.

There is one process (preflight_process.py) for each set of user modules, so that a module that crashes or
hangs affects only the cases that use it. Answers about built-in workloads are cached in the results folder.
This module does not import JAX.
"""

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scaling.core import environment
from scaling.core.case import FIELDS, VIEWS, Case, Refusal, default_values, from_dict, to_dict, user_modules
from scaling.core.grouping import group_by
from scaling.launcher.child_process import Event, rejects_variable
from scaling.launcher.machine import ProcessShape
from scaling.launcher.schedule import PreflightResult
from scaling.launcher.worker_group import Variant, WorkerDied, WorkerGroup, open_worker_group
from scaling.results import store
from scaling.study.grid import COMMAND_LINE, GridCell, add_source, format_setting

_PROGRAM = Variant("preflight", module="scaling.study.preflight_process", variables={"JAX_PLATFORMS": "cpu"})
_CACHE_FILE = ".examined.json"
_LAYOUT_DEFAULTS = default_values((*VIEWS["layout"], *VIEWS["memory"], "cache"))
Answer = dict[str, Any]  # an event of preflight_process.py, or {"failure": (reason, text)}
ProgressCallback = Callable[[int, int], None]  # (number of checked cells, number of all cells)


def check_cells(cells: Sequence[GridCell], seconds: float, note: ProgressCallback) -> list[Answer]:
    """Check in child processes whether cases can run, and return one answer per case, in the same order.

    An answer is the dict that `preflight_process.check_cell` returns. If the check crashes or takes more than
    `seconds`, the answer is {"failure": (reason, text)}. `note(checked, total)` is called with the number of
    checked cases and the number of all cases. Raise `Refusal` if a case is invalid.
    """
    answers: dict[int, Answer] = {}
    for indices in group_by(range(len(cells)), lambda index: user_modules(cells[index].case)).values():
        alike = group_by(indices, lambda index: without_layout(cells[index].case)).values()
        ordered = [index for indices in alike for index in indices]
        new_answers = _check_in_child_processes([cells[index] for index in ordered], seconds)
        for index, answer in zip(ordered, new_answers, strict=True):
            if "refusal" in answer:
                sources = cells[index].sources
                raise Refusal(add_source(answer["refusal"], sources[0] if sources else {}))
            answers[index] = answer
            note(len(answers), len(cells))
    return [answers[index] for index in range(len(cells))]


def _check_in_child_processes(cells: Sequence[GridCell], seconds: float) -> Iterator[Answer]:
    """Yield an answer for each case, in order. A new child process replaces one that dies.

    All cases must use the same user modules. If the modules cannot be imported, all remaining cases get the
    same answer. If the check of a case crashes or takes more than `seconds`, cases that differ only in their
    layout get the same answer without a check. The answer for an invalid case is {"refusal": error message}.
    """
    failures: dict[Case, Answer] = {}  # case without its layout -> its answer
    process: WorkerGroup | None = None
    with contextlib.ExitStack() as stack:
        for cell in cells:
            case, events = without_layout(cell.case), list[Event]()
            if case not in failures:
                is_imported = process is not None
                process = process or _start_process(stack)
                try:
                    request = {"case": to_dict(cell.case), "scaling": cell.scaling}
                    events.extend(process.request(request, seconds))
                except WorkerDied as death:
                    is_imported = is_imported or bool(events)
                    failure = _describe_failure(cell.case, death, seconds, is_imported)
                    failed = [cell] if is_imported else cells
                    failures |= {without_layout(each.case): failure for each in failed}
                    stack.close()
                    process = None
            yield failures[case] if case in failures else events[-1]


def _start_process(stack: contextlib.ExitStack) -> WorkerGroup:
    """Start a process that checks cases until `stack` is closed. Raise `Refusal` if JAX cannot start."""
    try:
        return stack.enter_context(open_worker_group({"platform": "cpu"}, _PROGRAM, ProcessShape(1), None))
    except WorkerDied as death:
        why = str(death) or "JAX cannot be imported in time"
        why += "; correct or unset it" if rejects_variable(why) else ""
        modules = {*sys.stdlib_module_names, "jax", "jaxlib", "numpy"}
        for name in sorted(path.name for path in Path().glob("*.py") if path.stem in modules):
            why += f"; {name} in the working directory hides a module of this name: rename it"
        raise Refusal(f"the study cannot be examined: {why}") from None


def _describe_failure(case: Case, death: WorkerDied, seconds: float, is_imported: bool) -> Answer:
    step = "workload(case), its function or its reference was called" if is_imported else "it was imported"
    subject = " and ".join(user_modules(case)) or case.workload
    text = death.text or f"timed out after {seconds:g} s (case_seconds)"
    return {"failure": (death.reason, f"{subject}: {text} while {step}{death.detail}")}


def results_from_answers(cells: Sequence[GridCell], answers: Sequence[Answer]) -> list[PreflightResult]:
    """Convert the answers of `check_cells` to one `PreflightResult` for each distinct case.

    Raise `Refusal` if the study sets a field that has no effect.
    """
    refuse_unused(cells, [answer.get("unused", {}) for answer in answers])
    results: dict[Case, PreflightResult] = {}
    for cell, answer in zip(cells, answers, strict=True):
        if "failure" in answer:
            case = cell.scaled(cell.case)
            results.setdefault(case, PreflightResult(case, ("failed", *answer["failure"]), None))
        else:
            case, engine = from_dict(answer["case"]), tuple(map(tuple, answer["engine"]))
            outcome = ("skipped", *answer["unfit"]) if answer["unfit"] else None
            results[case] = PreflightResult(case, outcome, answer["workload_digest"], engine)
    return list(results.values())


def skip_peers_off_cpu(platform: str, result: PreflightResult) -> PreflightResult:
    """Return `result`, marked as skipped if its case uses a peer and `platform` is not "cpu".

    Peers (AD libraries other than JAX) need a CPU. A result that is already skipped or failed is not changed.
    """
    if platform == "cpu" or result.case.engine == "jax" or result.outcome:
        return result
    text = f"{result.case.engine} is measured on a CPU only; JAX_PLATFORMS=cpu runs JAX on the CPU too"
    return dataclasses.replace(result, outcome=("skipped", "not_offered", text))


def refuse_unused(cells: Sequence[GridCell], unused: Sequence[Mapping[str, Any]]) -> None:
    """Raise `Refusal` if a value on the command line or in a YAML file affects none of the cases.

    `unused[i]` contains the fields that have no effect in `cells[i]`, as `case_rules.unused_fields` returns
    them. A value in a YAML file is permitted if the command line makes it ineffective.
    """
    reasons_by_value: dict[tuple[str, str, Any], list[Any]] = defaultdict(list)
    for cell, without_effect in zip(cells, unused, strict=True):
        for sources in cell.sources:
            overridden = {name for name, source in sources.items() if source == COMMAND_LINE}
            for name in sources.keys() & {*FIELDS} - {"sizes"}:
                reason = without_effect.get(name)
                if reason and name not in overridden and overridden.intersection(reason[1]):
                    reason = None  # the command line makes a value of a YAML file ineffective
                reasons_by_value[sources[name], name, getattr(cell.case, name)].append(reason)
    for (source, name, value), reasons in reasons_by_value.items():
        if all(reasons):
            text, causes = reasons[0]
            problem = f"{format_setting(name, value)} has no effect {text}"
            fix = f"leave it out, or change {' or '.join(causes)}"
            raise Refusal(f"{problem}: {fix} (it is stated {source})")


def without_layout(case: Case) -> Case:
    """Return a copy of a case in which the fields for layout, memory and cache have their defaults."""
    return dataclasses.replace(case, **_LAYOUT_DEFAULTS)


def cache_key(cells: Sequence[GridCell]) -> str | None:
    """Return a hash of all data that affect the answers about `cells`, such as the installed packages.

    Return None if a case uses a user's module or an AD library other than JAX. Its answer must not be cached.
    """
    if any(cell.case.engine != "jax" or user_modules(cell.case) for cell in cells):
        return None
    packages = importlib.metadata.distributions()
    installed = sorted((package.name or "", package.version) for package in packages)
    variables = sorted(item for item in os.environ.items() if item[0].startswith(("JAX_", "XLA_")))
    given_cases = [[to_dict(cell.case), cell.scaling] for cell in cells]
    return _hash_json((given_cases, installed, variables, environment.package_hash()))


def load_answers(folder: Path, cells: Sequence[GridCell]) -> list[Answer]:
    """Return the cached answers about `cells` in a results folder, or [] if it has none."""
    key, cached = cache_key(cells), store.read_json(folder / _CACHE_FILE)
    if key is None or not isinstance(cached, dict):
        return []
    is_valid = cached.get("digest") == _hash_json((key, cached.get("answers")))
    return cached["answers"] if is_valid else []


def save_answers(folder: Path, cells: Sequence[GridCell], answers: Sequence[Answer]) -> None:
    """Cache the answers about `cells` in a results folder, unless the next check may answer differently.

    Answers are not cached if a case uses a user's module or an AD library other than JAX, if a check failed,
    or if a case is too large for the memory.
    """
    key = cache_key(cells)
    is_cacheable = all("case" in answer and (answer["unfit"] or [""])[0] != "too_large" for answer in answers)
    if key is not None and is_cacheable:
        with contextlib.suppress(OSError):
            store.write_json(folder / _CACHE_FILE, {"digest": _hash_json((key, answers)), "answers": answers})


def _hash_json(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
