"""Tests of docs/adding_a_mode.md: a mode, a reduction or a field of a case is added by one value and works everywhere."""

import dataclasses
import itertools
import re
import sys
import types

import pytest

from scaling.core import case as cases
from scaling.core import modes, reductions
from scaling.core.case import Case
from scaling.study import case_rules
from tests.support.devices import run_once
from tests.support.paths import TOP

BLOCKS = re.findall(r"```python\n(.*?)```", (TOP / "docs" / "adding_a_mode.md").read_text(), re.DOTALL)
LAYOUTS = (
    {"api": "jit"},
    {"api": "shard_map", "devices": 4},
    {"api": "shard_map", "devices": 4, "split": "seeds"},
    {"api": "pmap", "devices": 4, "split": "both", "mesh": "2x2", "chunk": 3},
)


def run_example(module, table, block, monkeypatch):
    """Run a code block of the page in the namespace of a module and return the name it adds to the table."""
    before = dict(getattr(module, table))
    exec(BLOCKS[block], dict(vars(module)))
    (name,) = set(getattr(module, table)) - set(before)
    monkeypatch.setitem(getattr(module, table), name, getattr(module, table).pop(name))
    return name


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_mode_is_added_by_one_value(layout, monkeypatch):
    name = run_example(modes, "MODES", 0, monkeypatch)
    exact = dataclasses.replace(modes.MODES[name], linear_map=modes.jvp_map)
    case = case_rules.complete(
        Case("linear", points=4, sizes={"p": 8, "o": 4}, mode=name, dtype="float64", **layout)
    )
    record = run_once(case)  # the mode is exact
    assert (record.status, record.reason) in (("ok", None), ("failed", "wrong_answer")), record.text
    assert record.error < 1e-6
    monkeypatch.setitem(modes.MODES, name, exact)
    assert run_once(case).status == "ok"


@pytest.mark.thin(3, "thorough")
@pytest.mark.parametrize(
    ("mode", "layout"), list(itertools.product(("jacfwd", "jacrev", "analytic"), LAYOUTS)), ids=str
)
def test_a_reduction_is_added_by_one_value(mode, layout, monkeypatch):
    if mode == "analytic" and layout.get("split") in ("seeds", "both"):
        layout = layout | {"split": "points", "mesh": None}
    name = run_example(reductions, "REDUCTIONS", 1, monkeypatch)
    case = case_rules.complete(Case("residual", points=4, mode=mode, reduce=name, dtype="float64", **layout))
    record = run_once(case)
    assert record.status == "ok", record.text
    assert record.error < 1e-12
    wrong = dataclasses.replace(
        reductions.REDUCTIONS[name],
        columns=reductions.SliceStep(lambda c: 1.001 * abs(c).sum(axis=-1), sums_seeds=True),
        rows=reductions.SliceStep(lambda row, x: 1.001 * sum(abs(a).sum() for a in row), sums_seeds=True),
        of_jacobians=lambda J, x: 1.001 * abs(J).sum(axis=(1, 2)),
    )
    monkeypatch.setitem(reductions.REDUCTIONS, name, wrong)
    assert run_once(case).reason == "wrong_answer"


def test_a_field_of_a_case_is_added_by_one_line_and_changes_no_key(monkeypatch):
    line = "    overlap: bool ="
    source = (TOP / "scaling" / "core" / "case.py").read_text()
    assert source.count(line) == 1
    extended = types.ModuleType("extended")
    monkeypatch.setitem(sys.modules, "extended", extended)  # where `dataclass` resolves names
    exec(source.replace(line, f"    turns: int = _field('method', 1)\n{line}"), vars(extended))
    plain, with_default, with_value = Case("rbf"), extended.Case("rbf"), extended.Case("rbf", turns=2)
    assert with_default.key == plain.key != with_value.key
    assert extended.from_dict(extended.to_dict(with_value)) == with_value
    assert extended.from_dict(cases.to_dict(plain)) == with_default
    assert [name for name, view in extended.VIEWS.items() if "turns" in view] == ["method"]
    assert extended.problem_fields(with_default) == extended.problem_fields(with_value)
    assert extended.label(with_value) == f"{extended.label(with_default)} 2"
