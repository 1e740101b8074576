"""A field without effect is refused where it is stated for nothing, and normalised where another case of its grid uses it."""

import json
import re
import subprocess
import sys

import pytest

from scaling.core.case import Case, Refusal
from scaling.study import completion
from scaling.study.grid import expand_study, refuse_unused

LINEAR = {"workload": "linear", "points": 6}


def asked(study, **overrides):
    """Expand a study and refuse what has no effect in it, as the examination of a study does."""
    cells = expand_study(LINEAR | study, overrides)
    refuse_unused(cells, [completion.unused_fields(cell.case) for cell in cells])
    return cells


REFUSED = {
    "one case": ({"mode": "analytic", "chunk": 4}, {}, "chunk=4 has no effect with mode=analytic"),
    "a sweep that uses it nowhere": ({"mode": ["analytic", "value"], "chunk": [None, 4]}, {}, "chunk=4 has no effect"),
    "one value of a sweep": ({"split": ["points", "seeds"], "api": "jit"}, {}, "split=seeds has no effect with api=jit"),
    "the command line": ({"mode": ["jacfwd", "linearize"]}, {"remat": "dots_saveable"}, "on the command line"),
    "the command line beside a study that decides": ({"mode": "analytic"}, {"chunk": 4}, "chunk=4 has no effect"),
    "a study beside an unrelated override": ({"mode": "analytic", "chunk": 4}, {"points": 8}, "chunk=4 has no effect"),
    "a grid beside one that uses it": (
        {"grids": [{"mode": "jacfwd", "chunk": 4}, {"mode": "analytic", "chunk": 4}]}, {}, "grid 2",
    ),
    "a part": ({"parts": {"one": {"mode": "analytic", "chunk": 4}}}, {}, "in part one"),
    "a default that is written out": ({"mode": "jacfwd", "target": "forward"}, {}, "mode=jacfwd has no effect with"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_value_that_no_case_uses_is_refused_with_its_place_and_the_fix(name):
    study, overrides, told = REFUSED[name]
    with pytest.raises(Refusal, match=told) as refused:
        asked(study, **overrides)
    assert "leave it out, or change" in str(refused.value) and "\n" not in str(refused.value)


ACCEPTED = {
    "another case of the grid uses it": ({"mode": ["analytic", "jacfwd"], "split": ["points", "seeds"], "chunk": 4}, {}),
    "another grid uses what they share": ({"chunk": 4, "grids": [{"mode": "analytic"}, {"mode": "jacfwd"}]}, {}),
    "another part uses what they share": (
        {"chunk": 4, "parts": {"one": {"mode": "analytic"}, "other": {"mode": "jacfwd"}}}, {},
    ),
    "the command line took its effect away": ({"mode": "jacfwd", "chunk": 4}, {"mode": "analytic"}),
    "the same case is in two grids": ({"grids": [{"mode": "jacfwd"}, {"mode": "jacfwd", "batch": "vmap"}]}, {}),
    "a default that is written out and is what happens": ({"mode": "analytic", "batch": "vmap", "split": "points"}, {}),
    "the command line is used by one of several grids": ({"grids": [{"mode": "analytic"}, {"mode": "jacfwd"}]}, {"chunk": 4}),
    "the sum over points on one device": ({"mode": "jacrev", "split": "data", "api": "jit"}, {}),
    "the size of a target of one point": ({"workload": "rbf", "target": "grad", "points": 9}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_value_that_some_case_uses_is_normalised_in_the_others(name):
    study, overrides = ACCEPTED[name]
    assert asked(study, **overrides)


def test_every_field_that_completing_drops_has_a_reason():
    """What `complete` sets back to its default is what `unused` names, over a product of layouts and modes."""
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
            completed, unused = completion.complete(stated), completion.unused_fields(stated)
            dropped = {
                name
                for name in completion.unused_in_layout(stated)
                if getattr(stated, name) != getattr(completed, name)
            } - {"wrt"}
            assert dropped <= set(unused), (mode, api, split)
            assert {name for name in unused if getattr(completed, name) == getattr(stated, name)} == set(), (
                mode,
                api,
                split,
            )


@pytest.mark.process
def test_precision_is_refused_on_a_function_without_a_product_of_matrices_alone(scaling_command, write_study):
    text = "{{workload: rbf, points: 6, mode: jacfwd, precision: high, api: jit, formulation: {}}}"
    done = scaling_command([*write_study(text.format("rowwise")), "dry_run=true"])
    assert done.returncode == 2 and re.search(
        "precision=high has no effect on a function that multiplies no mat", done.stderr
    )
    assert scaling_command([*write_study(text.format("product")), "dry_run=true"]).returncode == 0


OWN = "from scaling.workloads.poisson import workload\nSIZES = {}\n"


@pytest.mark.parametrize(
    ("file", "text", "status"),
    [("linear.py", OWN, 2), ("linear.py", "print('a script of another kind')\n", 0), ("linear/__init__.py", OWN, 2),
     ("other.py", OWN, 0), ("linear.txt", OWN, 0)],
)  # fmt: skip
def test_a_module_of_ones_own_is_never_replaced_by_the_built_in_one_of_the_same_name(
    file, text, status, tmp_path
):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    ask = "from scaling.study import completion; from scaling.core.case import Case; print(completion.complete(Case('linear')).key)"
    done = subprocess.run(
        [sys.executable, "-c", ask], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode != 0) == (status == 2), done.stderr
    if status:
        assert re.search(
            f"workload=linear is built in, and {file} has the same name: rename that file", done.stderr
        )


def test_the_examination_of_a_study_names_what_has_no_effect():
    """The launcher learns it from the process that imports the workloads."""
    from scaling.study import preflight

    with pytest.raises(Refusal, match="chunk=4 has no effect with mode=analytic"):
        preflight.examine_cells(expand_study(LINEAR | {"mode": "analytic", "chunk": 4}, {}))
    assert json.dumps(completion.unused_fields(Case("linear", mode="analytic", chunk=4)))
