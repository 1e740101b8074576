"""Import the module named by `workload=NAME` in a study, and check the result of its `workload(case)`.

Invalid input raises `Refusal`. The message contains the value, the alternatives and a fix.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from scaling.core import workload
from scaling.core.case import Refusal, built_in, unknown_name
from scaling.core.modes import MODES
from scaling.core.reductions import REDUCTIONS, WHOLE
from scaling.core.workload import Workload

_DEFINES_WORKLOAD = re.compile(
    r"^(def|class)\s+workload\b|^workload\s*[:=]|^from\s.*\bimport\b.*\bworkload\b", re.MULTILINE
)


def find_module(name: str) -> ModuleType:
    """Import the module of a workload, given by an import path or the name of a built-in workload.

    Raise `Refusal` for the path of a file, or if a file of the user has the name of a built-in workload.
    """
    if name.endswith(".py") or "/" in name or "\\" in name:
        path = Path(name.replace("\\", "/"))
        where = f", with PYTHONPATH={path.parent} in front of the command" if path.parent != Path() else ""
        raise Refusal(
            f"workload {name!r} is a file, and a module is named by its import path: "
            f"write workload={path.name.removesuffix('.py') or 'NAME'}{where}"
        )
    if name in built_in("workloads"):
        _check_not_shadowed(name)
    return workload.module(name)


def _check_not_shadowed(name: str) -> None:
    """Raise `Refusal` if a workload file in the working directory or on PYTHONPATH is also called `name`."""
    folder_of_package = Path(__file__).resolve().parents[1] / "workloads"
    for folder in (".", *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))):
        for file in (Path(folder) / f"{name}.py", Path(folder) / name / "__init__.py"):
            is_users = file.is_file() and file.resolve().parent != folder_of_package
            if is_users and _DEFINES_WORKLOAD.search(file.read_text(errors="replace")):
                raise Refusal(
                    f"workload={name} is built in, and {file} has the same name: "
                    f"rename that file, such as my_{name}.py, and write workload=my_{name}"
                )


def check_workload(name: str, made: Any) -> Workload:
    """Return `made`, the result of a user's function `workload(case)`. Raise `Refusal` if it is invalid.

    The inputs of the workload are checked later, when they are flattened.
    """
    if not isinstance(made, Workload):
        expected = f"must return a scaling.workload.Workload, not {type(made).__name__}"
        raise Refusal(f"workload(case) of {name!r} {expected}")
    reductions = [name for name in REDUCTIONS if name != WHOLE.name]
    if made.reduce not in (None, *reductions):
        raise unknown_name("reduce", made.reduce, reductions)
    if not isinstance(made.wrt, str):
        raise _wrong_type(f"wrt of {name!r}", "names joined by '+', such as 'x+params'", made.wrt)
    if not isinstance(made.whole_modes, Mapping):
        words = "a mapping from modes to functions, such as {'analytic': derivative}"
        raise _wrong_type(f"whole_modes of {name!r}", words, made.whole_modes)
    whole_modes = [mode.name for mode in MODES.values() if not mode.has_seeds]
    if unknown := [mode for mode in made.whole_modes if mode not in whole_modes]:
        raise unknown_name(f"mode in whole_modes of {name!r}", unknown[0], whole_modes)
    optional = {name: getattr(made, name) for name in ("whole", "reference", "second", "pattern", "nonzeros")}
    for what, value in {**optional, "function": made.function, **made.whole_modes}.items():
        if not callable(value) and not (value is None and what in optional):
            raise _wrong_type(f"{what} of {name!r}", "a function", value)
    return made


def _wrong_type(what: str, expected: str, value: Any) -> Refusal:
    from scaling.options.pytrees import describe

    return Refusal(f"{what} must be {expected}, not {describe(value)}")
