"""Tests of fields without effect: rejected if no case of the grid uses the value, otherwise normalised in the others."""

import json
import subprocess
import sys

import pytest

from scaling.core.case import Case, Refusal
from scaling.study import case_rules
from scaling.study.grid import expand_study
from scaling.study.preflight import refuse_unused

LINEAR = {"workload": "linear", "points": 6}


def expand_and_check(study, **overrides):
    """Expand a study and reject fields without effect, as the preflight does."""
    cells = expand_study(LINEAR | study, overrides)
    refuse_unused(cells, [case_rules.unused_fields(cell.case) for cell in cells])
    return cells


REJECTED = {
    "one case": ({"mode": "analytic", "chunk": 4}, {}, "chunk=4 has no effect with mode=analytic"),
    "a sweep that uses it nowhere": ({"mode": ["analytic", "value"], "chunk": [None, 4]}, {}, "chunk=4 has no effect"),
    "one value of a sweep": ({"split": ["points", "seeds"], "api": "jit"}, {}, "split=seeds has no effect with api=jit"),
    "the command line": ({"mode": ["jacfwd", "linearize"]}, {"remat": "dots_saveable"}, "on the command line"),
    "the command line, because of the mode of the study": ({"mode": "analytic"}, {"chunk": 4}, "chunk=4 has no effect"),
    "a study with an unrelated override": ({"mode": "analytic", "chunk": 4}, {"points": 8}, "chunk=4 has no effect"),
    "a grid next to a grid that uses it": (
        {"grids": [{"mode": "jacfwd", "chunk": 4}, {"mode": "analytic", "chunk": 4}]}, {}, "grid 2",
    ),
    "a part": ({"parts": {"one": {"mode": "analytic", "chunk": 4}}}, {}, "in part one"),
    "a default that is written out": ({"mode": "jacfwd", "target": "forward"}, {}, "mode=jacfwd has no effect with"),
}  # fmt: skip


@pytest.mark.parametrize("name", REJECTED)
def test_a_value_without_effect_in_any_case_is_rejected_with_its_location_and_fix(name):
    study, overrides, message = REJECTED[name]
    with pytest.raises(Refusal, match=message) as error:
        expand_and_check(study, **overrides)
    assert "leave it out, or change" in str(error.value) and "\n" not in str(error.value)


ACCEPTED = {
    "another case of the grid uses it": ({"mode": ["analytic", "jacfwd"], "split": ["points", "seeds"], "chunk": 4}, {}),
    "another grid uses a shared field": ({"chunk": 4, "grids": [{"mode": "analytic"}, {"mode": "jacfwd"}]}, {}),
    "another part uses a shared field": (
        {"chunk": 4, "parts": {"one": {"mode": "analytic"}, "other": {"mode": "jacfwd"}}}, {},
    ),
    "an override removes its effect": ({"mode": "jacfwd", "chunk": 4}, {"mode": "analytic"}),
    "the same case is in two grids": ({"grids": [{"mode": "jacfwd"}, {"mode": "jacfwd", "batch": "vmap"}]}, {}),
    "a default that is written out and applies": ({"mode": "analytic", "batch": "vmap", "split": "points"}, {}),
    "the command line is used by one of several grids": ({"grids": [{"mode": "analytic"}, {"mode": "jacfwd"}]}, {"chunk": 4}),
    "the sum over points on one device": ({"mode": "jacrev", "split": "data", "api": "jit"}, {}),
    "the size of a target of one point": ({"workload": "rbf", "target": "grad", "points": 9}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_value_that_one_case_uses_is_accepted(name):
    study, overrides = ACCEPTED[name]
    assert expand_and_check(study, **overrides)


def test_every_field_that_complete_resets_has_a_reason():
    """`unused_fields` names exactly the fields that `complete` resets to their default, over layouts and modes."""
    for mode in ("jacfwd", "jacrev", "analytic", "value", "grad_of_sum", "mixed"):
        for api, split in (
            ("jit", "points"),
            ("jit", "seeds"),
            ("shard_map", "data"),
            ("shard_map", "seeds"),
        ):
            stated = Case(
                "linear", mode=mode, api=api, split=split, points=6, chunk=3, block=2, storage="host", remat="dots_saveable",
                batch="whole", seeds="colored", forward="W", mesh="1x1", overlap=True, reduce="gram",
            )  # fmt: skip
            completed, unused = case_rules.complete(stated), case_rules.unused_fields(stated)
            dropped = {
                name
                for name in case_rules.fields_without_effect(stated)
                if getattr(stated, name) != getattr(completed, name)
            } - {"wrt"}
            assert dropped <= set(unused), (mode, api, split)
            assert {name for name in unused if getattr(completed, name) == getattr(stated, name)} == set(), (
                mode,
                api,
                split,
            )


POISSON = "from scaling.workloads.poisson import workload\nSIZES = {}\n"


def test_a_user_file_is_no_workload_because_of_its_name_alone(tmp_path):
    """Of a file that is no workload, a workload of another name, and a text, none replaces the built-in workload."""
    for name, text in {
        "linear.py": "print('a script')\n",
        "other.py": POISSON,
        "linear.txt": POISSON,
    }.items():
        (tmp_path / name).write_text(text)
    code = "from scaling.study import case_rules; from scaling.core.case import Case; print(case_rules.complete(Case('linear')).key)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_preflight_rejects_fields_without_effect():
    """The process that imports the workloads reports it to the launcher."""
    from scaling.study import preflight

    cells = expand_study(LINEAR | {"mode": "analytic", "chunk": 4}, {})
    answers = preflight.check_cells(cells, 600, lambda done, total: None)
    with pytest.raises(Refusal, match="chunk=4 has no effect with mode=analytic"):
        preflight.results_from_answers(cells, answers)
    assert json.dumps(case_rules.unused_fields(Case("linear", mode="analytic", chunk=4)))
