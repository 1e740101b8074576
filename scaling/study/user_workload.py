"""Find the module of `workload=NAME`, read its SIZES, VARIANTS and other constants, check its `Workload`."""

import dataclasses
import math
import os
import re
from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from scaling.core import workload
from scaling.core.case import FIELDS, Case, Refusal, check_names, module_names
from scaling.core.inputs import draw_rows, point_rows
from scaling.core.modes import MODES
from scaling.core.reductions import REDUCTIONS, WHOLE
from scaling.core.workload import Workload

ADVISED = "advised."  # the name of a workload that `scaling.advise` makes of a function begins with it
MAX_CHECKED_ELEMENTS = 2**20  # larger arrays take long to compute


def find_module(name: str) -> ModuleType:
    """Import and return the module of a workload, given its import path, such as "rbf" or "my.spring".

    Raise `Refusal` if `name` is a file, or if a user's file has the name of a built-in workload.
    """
    if name.endswith(".py") or not all(word.isidentifier() for word in name.split(".")):
        fix = "write workload=spring for spring.py in this folder; PYTHONPATH names other folders"
        raise Refusal(f"workload {name!r} is not the import path of a module: {fix}")
    if name in module_names("workloads"):
        check_not_shadowed(name)
    return workload.import_workload(name)


def check_not_shadowed(name: str) -> None:
    """Raise `Refusal` if a user's module has the name of the built-in workload `name`."""
    defines_workload = re.compile(r"^(def|class|from) .*\bworkload\b|^workload\b", re.MULTILINE)
    folders = map(Path, ["", *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
    for file in (folder / path for folder in folders for path in (f"{name}.py", f"{name}/__init__.py")):
        if file.is_file() and defines_workload.search(file.read_text(errors="replace")):
            fix = f"rename that file, such as my_{name}.py, and write workload=my_{name}"
            raise Refusal(f"workload={name} is built in, and {file} has the same name: {fix}")


def declared_names(module: ModuleType, name: str, variant: str | None = None) -> tuple[str, ...]:
    """Return the names in the constant `name` of a workload module, or () if the constant is not defined.

    The constant, such as VARIANTS, is a tuple or list of names, or a dict with the names as keys. If
    FORMULATIONS is a dict, it instead maps each variant to a list of names, and the names for `variant` are
    returned. Raise `Refusal` if the constant has another type.
    """
    declared = getattr(module, name, ())
    if isinstance(declared, Mapping):
        declared = declared.get(variant, ()) if name == "FORMULATIONS" else tuple(declared)
    if isinstance(declared, tuple | list) and all(isinstance(value, str) for value in declared):
        return tuple(declared)
    text = f"{name} of {module.__name__} must be a tuple or list of names, not {declared!r:.80}"
    raise Refusal(f"{text}; write {(declared if isinstance(declared, str) else 'plain',)}")


def declared_sizes(name: str, module: ModuleType, case_sizes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the constant SIZES of a workload module, which maps the names of sizes to their defaults.

    `name` is the name of the workload. `case_sizes` contains the sizes that the case sets. Raise `Refusal` if
    SIZES is malformed, or if a size has the name of a field. Also raise `Refusal` if `case_sizes` has a size
    that is not in SIZES, or lacks a size that has no default.
    """
    declared = getattr(module, "SIZES", {})
    if not isinstance(declared, Mapping) or not all(isinstance(size, str) for size in declared):
        text = f"SIZES of {module.__name__} must be a dict from the name of a size to its default"
        raise Refusal(f"{text}, not {declared!r:.80}; write {{'n': 8}}")
    if clash := next((size for size in declared if size in (*FIELDS, "scaling")), None):
        fix = f"rename the size in the module, such as n_{clash}"
        raise Refusal(f"size {clash!r} of {name} has the name of a field, which it would hide: {fix}")
    check_names(f"size of {name}", case_sizes, declared)
    if missing := [size for size, default in declared.items() if default is None and size not in case_sizes]:
        raise Refusal(f"size {missing[0]!r} of {name} has no default: write sizes.{missing[0]}=8")
    return declared


def check_workload(workload_name: str, result: Any) -> Workload:
    """Return `result` if it is a valid `Workload`, otherwise raise `Refusal`.

    `result` is the value that the function `workload` of the user's module `workload_name` returned.
    """
    if not isinstance(result, Workload):
        expected = f"must return a scaling.workload.Workload, not {type(result).__name__}"
        raise Refusal(f"workload(case) of {workload_name!r} {expected}")
    reductions = [field for field in REDUCTIONS if field != WHOLE.name]
    check_names("reduce", [result.reduce] if result.reduce is not None else [], reductions)
    names = "names joined by '+', such as 'x+params'"
    rules = {  # field -> (whether its value is valid, the valid values)
        "wrt": (isinstance(result.wrt, str), names),
        "direction": (isinstance(result.direction, str), names),
        "terms": (isinstance(result.terms, Integral) and result.terms >= 1, "a positive integer"),
        "whole_modes": (isinstance(result.whole_modes, Mapping),
                        "a mapping from modes to functions, such as {'analytic': derivative}"),
        "function": (callable(result.function), "a function"),
    }  # fmt: skip
    for field in ("whole", "reference", "second", "pattern", "nonzeros"):
        rules[field] = getattr(result, field) is None or callable(getattr(result, field)), "a function"
    for field, (is_valid, valid) in rules.items():
        if not is_valid:
            raise _wrong_type(f"{field} of {workload_name!r}", valid, getattr(result, field))
    is_advised = workload_name.startswith(ADVISED)  # whose derivative in each mode is the code to paste
    whole_modes = [mode.name for mode in MODES.values() if is_advised or not mode.has_seeds]
    check_names(f"mode in whole_modes of {workload_name!r}", result.whole_modes, whole_modes)
    for field, value in result.whole_modes.items():
        if not callable(value):
            raise _wrong_type(f"{field} of {workload_name!r}", "a function", value)
    if result.nonzeros and not result.pattern:
        raise Refusal(
            f"nonzeros of {workload_name!r} has no effect without pattern, which lists their positions"
        )
    return result


def check_direction(name: str, built: Workload) -> None:
    """Raise `Refusal` if the inputs named by `built.direction` and by `built.wrt` differ in shape.

    `name` is the name of the workload.
    """
    shapes, needed = ([built.inputs[x].shape for x in xs] for xs in (built.direction_names, built.names))
    if shapes != needed:
        expected = f"must name inputs with the shapes of wrt={built.wrt!r}, in the same order"
        raise Refusal(f"direction={built.direction!r} of {name!r} {expected}; without it, wrt is used")


def check_inputs(case: Case, built: Workload) -> None:
    """Raise `Refusal` if the inputs of a case are not reproducible, or do not fit their dtype.

    Only the first point is checked. Large inputs are not checked.
    """
    per_point = dataclasses.replace(built, points=built.inputs)
    for name, spec in built.inputs.items():
        if math.prod(spec.shape) > MAX_CHECKED_ELEMENTS:
            continue
        first, second = (draw_rows(spec, 0, name, 0, 1) for _ in range(2))
        if not np.array_equal(first, second, equal_nan=True):
            problem = f"the InputSpec of {name!r} draws other values each time it is called"
            raise Refusal(f"{problem}: make(generator, rows) must draw them from its generator")
        point_rows(case, per_point, name, 0, 1)  # raises Refusal if its dtype cannot represent the values


def _wrong_type(what: str, expected: str, value: Any) -> Refusal:
    from scaling.options.pytrees import describe

    return Refusal(f"{what} must be {expected}, not {describe(value)}")
