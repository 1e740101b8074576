"""Tests of the digest of a workload: it changes with the user's own modules that the workload imports, and with no other file."""

import hashlib
import sys

import pytest

from scaling.core import workload

NAMES = {"wl", "hlp", "middle", "memo", "pkg"}  # of the modules of the user
BODY = "\n\ndef workload(case):\n    return None\n"


@pytest.fixture
def digest_of(tmp_path, monkeypatch):
    """Return a function that writes files, and returns the digest of the first one as a new process would."""
    monkeypatch.syspath_prepend(tmp_path)

    def forget_modules():
        for name in [name for name in sys.modules if name.partition(".")[0] in NAMES]:
            del sys.modules[name]

    def write_and_digest(files):
        forget_modules()
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return workload.source_digest(next(iter(files)).removesuffix(".py").replace("/", "."))

    yield write_and_digest
    forget_modules()


# The import in the workload, the file of the helper, and other files that are needed.
IMPORTS = {
    "a module": ("import hlp", "hlp.py", {}),
    "a constant": ("from hlp import SCALE", "hlp.py", {}),
    "everything": ("from hlp import *", "hlp.py", {}),
    "a package": ("from hlp import SCALE", "hlp/__init__.py", {}),
    "a module of a package": ("from hlp import part", "hlp/part.py", {"hlp/__init__.py": ""}),
    "a module of a namespace": ("import hlp.part as p", "hlp/part.py", {}),
    "the parent of a module": ("import hlp.part", "hlp/__init__.py", {"hlp/part.py": ""}),
    "another helper": ("import middle", "hlp.py", {"middle.py": "import hlp"}),
    "a relative import": ("import hlp", "hlp/other.py", {"hlp/__init__.py": "from . import other"}),
    "a cycle": ("import middle", "hlp.py", {"middle.py": "import hlp", "hlp.py": "import middle"}),
    "inside a function": ("def f():\n    import hlp", "hlp.py", {}),
}


@pytest.mark.parametrize("name", IMPORTS)
def test_the_digest_changes_with_each_module_of_the_user_that_the_workload_imports(digest_of, name):
    statement, helper, others = IMPORTS[name]
    files = {"wl.py": statement + BODY} | others
    text = files.get(helper, "") + "\nSCALE = "
    first, same, other = (digest_of(files | {helper: f"{text}{value}\n"}) for value in (1, 1, 2))
    assert first == same != other


def test_the_digest_does_not_depend_on_which_helpers_are_loaded_yet(digest_of):
    digest = digest_of({"wl.py": "def f():\n    import hlp" + BODY, "hlp.py": "SCALE = 1\n"})
    sys.modules["wl"].f()
    assert "hlp" in sys.modules and workload.source_digest("wl") == digest


UNHASHED = {
    "without imports": ("", {}),
    "with installed packages": ("import json, jax, numpy as np\nfrom scaling.workload import uniform", {}),
    "with a missing module": ("try:\n    import nowhere.inside\nexcept ImportError:\n    pass", {}),
    "with a module made in memory": ("import sys, types\nsys.modules['memo'] = types.ModuleType('memo')\nimport memo", {}),
    "with an import beyond its package": ("def f():\n    from .. import other", {}),
    "with an empty package": ("import hlp", {"hlp/__init__.py": ""}),
    "with an unused neighbor": ("", {"hlp.py": "SCALE = 1"}),
    "with an unreadable module": ("def f():\n    import hlp", {"hlp/__init__.py/x": ""}),
}  # fmt: skip


@pytest.mark.parametrize("name", UNHASHED)
def test_the_digest_of_a_workload_without_own_helpers_is_that_of_its_file(digest_of, name):
    statement, others = UNHASHED[name]
    text = statement + BODY
    assert digest_of({"wl.py": text} | others) == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_a_helper_that_is_not_python_is_hashed_too(digest_of):
    files = {"wl.py": "def f():\n    import hlp" + BODY}
    assert digest_of(files | {"hlp.py": b"\0\xff1"}) != digest_of(files | {"hlp.py": b"\0\xff2"})


def test_a_workload_inside_of_a_package_finds_its_neighbors(digest_of):
    files = {"pkg/wl.py": "from .hlp import SCALE" + BODY}
    assert digest_of(files | {"pkg/hlp.py": "SCALE = 1"}) != digest_of(files | {"pkg/hlp.py": "SCALE = 2"})


def test_a_built_in_workload_has_no_digest():
    assert workload.source_digest("linear") is None
