"""Find the source files of the user's modules that a workload imports, from their `import` statements.

Modules are found from the `import` statements in the sources, including those inside functions. No module is
imported. Therefore the result does not depend on the modules that a process has loaded. Installed packages
and data files are not included, nor are modules whose name is computed at run time.
"""

import ast
import contextlib
import functools
import importlib.util
import itertools
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

# Packages whose versions are in every record, and the main program, which differs between processes.
_IGNORED = {*sys.stdlib_module_names, "jax", "jaxlib", "numpy", "scaling", "__main__"}
_INSTALLED = {"site-packages", "dist-packages"}


def imported_sources(name: str) -> list[bytes]:
    """Return the source code of all user modules that the module `name` imports, directly or indirectly."""
    source_by_module: dict[str, bytes] = {}
    user_modules, pending = set(), [name]
    while pending:
        for module_name in itertools.accumulate(pending.pop().split("."), "{}.{}".format):
            if module_name in user_modules or (spec := _find_user_module(module_name)) is None:
                continue
            user_modules.add(module_name)
            with contextlib.suppress(OSError):  # a file that cannot be read, or a namespace without a file
                source_by_module[module_name] = Path(spec.origin or "").read_bytes()
                pending += _imported_names(source_by_module[module_name], spec.parent or "")
    return [source_by_module[module_name] for module_name in sorted(source_by_module.keys() - {name})]


def _find_user_module(name: str) -> ModuleSpec | None:
    """Return the `ModuleSpec` of a user's module without importing it, or None for any other module."""
    package, *submodules = name.split(".")
    spec = None
    with contextlib.suppress(ImportError, ValueError):  # ValueError: a module that was made in memory
        spec = None if package in _IGNORED else importlib.util.find_spec(package)
    for submodule in submodules:
        folders = spec and spec.submodule_search_locations
        spec = PathFinder.find_spec(f"{spec.name}.{submodule}", folders) if spec and folders else None
    return None if spec is None or _INSTALLED & set(Path(spec.origin or "").parts) else spec


@functools.cache  # a study asks for the digest of each of its cases
def _imported_names(source: bytes, package: str) -> list[str]:
    """Return the absolute names of the modules and objects that a module imports.

    `source` is the source code of the module, and `package` the name of its package.
    """
    imported_names = []
    with contextlib.suppress(SyntaxError, ValueError):  # not Python, such as a compiled module
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                imported_names += [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                relative = "." * node.level + (node.module or "")
                with contextlib.suppress(ImportError):  # beyond the outermost package
                    base = importlib.util.resolve_name(relative, package)
                    imported_names += [f"{base}.{alias.name}" for alias in node.names]
    return imported_names
