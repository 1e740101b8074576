"""A mode, a reduction and a field of a case are one value each: added here as the documentation says, they work everywhere."""

import dataclasses
import itertools
import os
import re
import sys
import types

import pytest

from scaling.core import environment

os.environ["XLA_FLAGS"] = environment.variables("cpu")["XLA_FLAGS"]
import jax

from scaling.core import case as cases
from scaling.core import modes, reductions, run_case
from scaling.core.case import Case
from scaling.core.record import Record
from scaling.core.timing import Sampling
from scaling.study import completion
from tests.support.paths import TOP

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_enable_x64", True)

BLOCKS = re.findall(r"```python\n(.*?)```", (TOP / "docs" / "adding_a_mode.md").read_text(), re.DOTALL)
LAYOUTS = (
    {"api": "jit"},
    {"api": "shard_map", "devices": 4},
    {"api": "shard_map", "devices": 4, "split": "seeds"},
    {"api": "pmap", "devices": 4, "split": "both", "mesh": "2x2", "chunk": 3},
)


def run(case):
    """Return the record of a case on this machine."""
    sampling = Sampling(least=1, most=1, warm_up=0.0)
    blank = Record(case, "ok", {"digest": "test", "platform": "cpu"})
    return run_case.run_case(blank, jax.devices()[: case.devices], "cpu", sampling)


def add(module, table, block, monkeypatch):
    """Run a block of the page as if it stood in a module, until the end of the test."""
    before = dict(getattr(module, table))
    exec(BLOCKS[block], dict(vars(module)))
    (name,) = set(getattr(module, table)) - set(before)
    monkeypatch.setitem(getattr(module, table), name, getattr(module, table).pop(name))
    return name


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_mode_is_one_value(layout, monkeypatch):
    name = add(modes, "MODES", 0, monkeypatch)
    right = dataclasses.replace(modes.MODES[name], linear_map=modes.jacfwd)
    case = completion.complete(
        Case("linear", points=4, sizes={"p": 8, "o": 4}, mode=name, dtype="float64", **layout)
    )
    record = run(
        case
    )  # of a linear function a central difference is exact but for the rounding of its values
    assert (record.status, record.reason) in (("ok", None), ("failed", "wrong_answer")), record.text
    assert record.error < 1e-6
    monkeypatch.setitem(modes.MODES, name, right)
    assert run(case).status == "ok"


@pytest.mark.thin(3, "contract")
@pytest.mark.parametrize(
    ("mode", "layout"), list(itertools.product(("jacfwd", "jacrev", "analytic"), LAYOUTS)), ids=str
)
def test_a_reduction_is_one_value(mode, layout, monkeypatch):
    if mode == "analytic" and layout.get("split") in ("seeds", "both"):
        layout = layout | {"split": "points", "mesh": None}
    name = add(reductions, "REDUCTIONS", 1, monkeypatch)
    case = completion.complete(Case("residual", points=4, mode=mode, reduce=name, dtype="float64", **layout))
    record = run(case)
    assert record.status == "ok", record.text
    assert record.error < 1e-12
    off = dataclasses.replace(
        reductions.REDUCTIONS[name],
        columns=reductions.SliceStep(lambda c: 1.001 * abs(c).sum(axis=-1), sums_seeds=True),
        rows=reductions.SliceStep(lambda row, x: 1.001 * sum(abs(a).sum() for a in row), sums_seeds=True),
        of_jacobians=lambda J, x: 1.001 * abs(J).sum(axis=(1, 2)),
    )
    monkeypatch.setitem(reductions.REDUCTIONS, name, off)
    assert run(case).reason == "wrong_answer"


def test_a_field_of_a_case_is_one_line_and_changes_no_key(monkeypatch):
    line = "    overlap: bool ="
    source = (TOP / "scaling" / "core" / "case.py").read_text()
    assert source.count(line) == 1
    longer = types.ModuleType("longer")
    monkeypatch.setitem(sys.modules, "longer", longer)  # where a dataclass looks for its own names
    exec(source.replace(line, f"    turns: int = _field('method', 1)\n{line}"), vars(longer))
    plain, one, two = Case("rbf"), longer.Case("rbf"), longer.Case("rbf", turns=2)
    assert one.key == plain.key != two.key
    assert longer.from_dict(longer.to_dict(two)) == two and longer.from_dict(cases.to_dict(plain)) == one
    assert "turns" in longer.VIEWS["method"] and sum("turns" in view for view in longer.VIEWS.values()) == 1
    assert longer.problem(one) == longer.problem(two)
    assert longer.label(two) == f"{longer.label(one)} 2"
