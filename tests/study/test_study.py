"""Tests of the expansion of a study: shared fields, grids, parts, `where` and overrides give a list of cells."""

import os

import pytest
from omegaconf import OmegaConf

from scaling.core.case import FIELDS, SCALINGS, Refusal, to_dict
from scaling.study import grid
from scaling.study.configuration import compose as compose_words
from scaling.study.grid import GridCell, expand_study, list_meshes
from tests.support.composed import compose, configuration
from tests.support.paths import CONF

STUDIES = sorted(path.stem for path in (CONF / "study").glob("*.yaml"))


def cases(study, **overrides):
    return [cell.case for cell in expand_study(study, overrides)]


def values(study, field, **overrides):
    return [to_dict(case)[field] for case in cases(study, **overrides)]


def test_a_list_is_swept_and_a_scalar_is_fixed():
    study = {"workload": "linear", "points": [6, 10, 14], "mode": ["jacfwd", "jacrev"], "devices": 2}
    assert [(c.points, c.mode, c.devices) for c in cases(study)] == [
        (6, "jacfwd", 2), (6, "jacrev", 2), (10, "jacfwd", 2), (10, "jacrev", 2), (14, "jacfwd", 2), (14, "jacrev", 2),
    ]  # fmt: skip


def test_sizes_are_swept_like_fields():
    study = {"workload": "linear", "sizes": {"p": [8, 16, 64], "o": [2, 5]}}
    assert [tuple(sorted(s.items())) for s in values(study, "sizes")] == [
        (("o", o), ("p", p)) for p in (8, 16, 64) for o in (2, 5)
    ]


def test_a_grid_overrides_shared_fields_and_the_command_line_overrides_both():
    study = {
        "points": 6,
        "dtype": "float64",
        "devices": 1,
        "grids": [{"workload": "linear", "points": 10}, {"workload": "rbf"}],
    }
    assert [(c.points, c.dtype) for c in cases(study)] == [(10, "float64"), (6, "float64")]
    assert [(c.points, c.dtype) for c in cases(study, points=14)] == [(14, "float64"), (14, "float64")]
    assert values(study, "dtype", dtype="float32") == ["float32", "float32"]


def test_an_override_may_sweep_a_fixed_field_and_fix_a_swept_one():
    study = {"workload": "linear", "grids": [{"points": [6, 10], "devices": 1}]}
    assert [(c.points, c.devices) for c in cases(study, points=14, devices=[1, 2])] == [(14, 1), (14, 2)]


def test_an_override_that_is_null_or_empty_changes_nothing():
    study = {"workload": "linear", "points": [6, 10], "sizes": {"p": 5}}
    assert cases(study, points=None, sizes={}, where=None, scaling=None) == cases(study)


def test_sizes_are_merged_per_name():
    study = {
        "sizes": {"p": 5, "o": 3},
        "grids": [{"workload": "linear", "sizes": {"p": [8, 16]}}, {"workload": "linear"}],
    }
    assert values(study, "sizes") == [{"p": 8, "o": 3}, {"p": 16, "o": 3}, {"p": 5, "o": 3}]
    assert values(study, "sizes", sizes={"o": 7}) == [{"p": 8, "o": 7}, {"p": 16, "o": 7}, {"p": 5, "o": 7}]


@pytest.mark.parametrize(("alias", "mode"), [("vmap_jacfwd", "jacfwd"), ("vmap_jacrev", "jacrev")])
def test_a_mode_alias_stands_for_a_mode_and_a_batch(alias, mode):
    study = {"workload": "linear", "mode": alias}
    assert [(c.mode, c.batch) for c in cases(study)] == [(mode, "vmap")]
    assert [(c.mode, c.batch) for c in cases(study, batch="whole")] == [(mode, "whole")]
    assert [(c.mode, c.batch) for c in cases({"workload": "linear", "batch": "whole"}, mode=alias)] == [
        (mode, "vmap")
    ]


def test_an_alias_and_another_batch_at_one_place_are_rejected_with_what_the_alias_sets():
    both = {"mode": ["jacfwd", "vmap_jacrev"], "batch": "whole"}
    fix = "mode=vmap_jacrev already sets batch=vmap, not whole: write mode=jacrev, or leave out batch"
    for study, overrides in ((both, {}), ({"grids": [both]}, {}), ({}, both)):
        with pytest.raises(Refusal, match=fix):
            cases({"workload": "linear"} | study, **overrides)


def test_null_in_a_grid_replaces_the_value_that_all_grids_share():
    study = {"workload": "linear", "chunk": 4, "where": "devices == 2", "sizes": {"p": 3}}
    grids = [{"chunk": None, "where": None, "sizes": None}, {"devices": 2}]
    assert [(c.chunk, c.devices, dict(c.sizes)) for c in cases(study | {"grids": grids})] == [
        (None, 1, {}), (4, 2, {"p": 3}),
    ]  # fmt: skip


def test_null_on_the_command_line_replaces_every_value_of_the_study():
    for words, name in ((["study=memory", "chunk=null"], "chunk"), (["study=memory", "block=NULL"], "block")):
        config, _ = compose_words(words)
        cells = expand_study(config["study"], {name: config[name] for name in (*FIELDS, "scaling", "where")})
        assert {getattr(cell.case, name) for cell in cells} == {None}
    added, _ = compose_words(["study=memory", "++chunk=null"])
    assert added["chunk"] == [None]
    config, _ = compose_words(["study=linear", "where=null"])
    found = expand_study(config["study"], {"where": config["where"]})
    assert len(found) > len(expand_study(config["study"], {}))


def test_a_where_on_the_command_line_is_quoted_for_the_shell_only():
    for condition in ("mode == 'jacfwd' and devices <= 2", 'points > 8 or api != "jit"'):
        config, _ = compose_words(["study=linear", f"where={condition}"])
        assert config["where"] == condition


def test_the_home_folder_in_results_is_expanded_as_some_shells_do_not(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    config, _ = compose_words(["results=~/a~b"])
    assert config["results"] == "/home/me/a~b"


def test_mesh_all_is_every_factorization_and_counts_once_for_the_largest_number_of_cases():
    study = {"workload": "linear", "split": "both", "mesh": ["all", "3x2"], "devices": [12, 7]}
    meshes = {(case.devices, case.mesh) for case in cases(study)}
    pairs = {(12, mesh) for mesh in ("12x1", "6x2", "4x3", "3x4", "2x6", "1x12", "3x2")}
    assert meshes == pairs | {(7, mesh) for mesh in ("7x1", "1x7", "3x2")}
    assert len(expand_study(study, {}, 4)) == 10
    with pytest.raises(Refusal, match="4 cases before where, more than max_cases=3"):
        expand_study(study, {}, 3)


def test_the_meshes_of_a_huge_number_of_devices_are_found_without_a_loop_over_them():
    assert len(list_meshes(2**40)) == 41
    with pytest.raises(Refusal, match="devices must be a positive integer of at most"):
        cases({"workload": "linear", "split": "both", "mesh": "all", "devices": 10**30})


def test_an_alias_and_its_mode_give_the_same_case():
    study = {"workload": "linear", "mode": ["vmap_jacfwd", "jacfwd", "vmap_jacrev", "jacrev"]}
    assert values(study, "mode") == ["jacfwd", "jacrev"]


def test_a_case_in_two_grids_appears_once_at_its_first_position():
    study = {"workload": "linear", "grids": [{"points": [6, 10]}, {"points": [10, 14, 6]}]}
    assert values(study, "points") == [6, 10, 14]


def test_weak_scaling_multiplies_the_points_by_the_devices_and_strong_does_not():
    cells = expand_study(
        {"workload": "linear", "points": 6, "devices": [1, 2, 3], "scaling": list(SCALINGS)}, {}
    )
    scaled = [(cell.scaling, cell.case.devices, cell.scaled(cell.case).points) for cell in cells]
    assert scaled == [(s, d, 6 if s == "strong" else 6 * d) for d in (1, 2, 3) for s in SCALINGS]


def test_weak_scaling_changes_only_the_points():
    """A size of `points` means the points of one device; otherwise the work per device would grow."""
    study = {
        "workload": "rbf",
        "points": [6, 10],
        "devices": 3,
        "sizes": {"m": "points", "d": 4},
        "scaling": "weak",
    }
    scaled = [cell.scaled(cell.case) for cell in expand_study(study, {})]
    assert [(case.points, dict(case.sizes)) for case in scaled] == [
        (18, {"m": 6, "d": 4}),
        (30, {"m": 10, "d": 4}),
    ]
    assert [to_dict(case) | {"points": 0} for case in scaled] == [
        to_dict(cell.case) | {"points": 0} for cell in expand_study(study, {})
    ]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("devices == 1", [("jit", 1), ("pmap", 1)]),
        ("devices == 1 or api != 'jit'", [("jit", 1), ("pmap", 1), ("pmap", 2)]),
        ("not (api == 'jit' and devices > 1)", [("jit", 1), ("pmap", 1), ("pmap", 2)]),
        ("api in ['jit'] and points % devices == 0", [("jit", 1), ("jit", 2)]),
        ("points // devices - 1 >= 5", [("jit", 1), ("pmap", 1)]),
        ("1 < devices <= 2", [("jit", 2), ("pmap", 2)]),
        ("1 < devices < 100 // (devices - 1)", [("jit", 2), ("pmap", 2)]),  # the rest is not evaluated
        (
            "p * o == 15 and -p < 0 and scaling == 'strong' and variant is None",
            [(a, d) for a in ("jit", "pmap") for d in (1, 2)],
        ),
    ],
)
def test_where_keeps_the_cells_that_satisfy_it(where, expected):
    study = {
        "workload": "linear",
        "points": 6,
        "sizes": {"p": 5, "o": 3},
        "api": ["jit", "pmap"],
        "devices": [1, 2],
    }
    assert [(c.api, c.devices) for c in cases(study | {"where": where})] == expected
    assert [(c.api, c.devices) for c in cases(study, where=where)] == expected


@pytest.mark.parametrize(
    "where",
    [
        "__import__('os').getcwd()", "open('x')", "api.upper()", "api.__class__ == 1", "(lambda: 1)()", "(devices := 1)",
        "[d for d in [1]]", "api[0] == 'j'", "f'{api}'", "devices if devices else 0", "9 ** 9 ** 9 > 1", "1 << 9", "{1: 2}",
        "devices == 1; points", "devices = 1", "devices ==", "", "points // 0 == 1", "points % (devices - 1) == 0", "api < 3",
        "x" * 3 + " == 1", "devcies == 1", "__builtins__", "sizes", "'", "(" * 500 + "1" + ")" * 500, "\0", "await api",
    ],
)  # fmt: skip
def test_where_accepts_only_comparisons(where):
    study = {"workload": "linear", "points": 6, "api": ["jit"], "devices": [1]}
    with pytest.raises(Refusal, match="where") as error:
        cases(study | {"where": where})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("study", "message"),
    [
        ({"workload": "linear", "devises": 1}, "unknown study key 'devises'.*did you mean 'devices'"),
        ({"workload": "linear", "grid": []}, "unknown study key 'grid'.*did you mean 'grids'"),
        ({"grids": [{"workload": "linear", "pints": 6}]}, "unknown study key 'pints'.*did you mean 'points'"),
        ({"grids": [{"workload": "linear", "grids": []}]}, "unknown study key 'grids'"),
        ({"points": 6}, "workload must be a name, not null: write workload=rbf"),
        ({"grids": [{"points": 6}]}, "workload must be a name, not null: write workload=rbf"),
        ({"grids": {"workload": "linear"}}, "grids must be a list"),
        ({"grids": ["linear"]}, "grids must be a list"),
        ({"workload": "linear", "sizes": [5, 3]}, "sizes must be a mapping"),
        ({"workload": "linear", "sizes": {"p": "many"}}, "sizes.p must be a positive integer, not 'many'"),
        ({"workload": "linear", "devices": "all"}, "devices=all is for `scaling plan`.*in the study"),
        ({"workload": "linear", "scaling": "week"}, "unknown scaling 'week'.*did you mean 'weak'"),
        ({"workload": "linear", "mode": "vmap_jacfw"}, "unknown mode 'vmap_jacfw'"),
        ({"workload": "linear", "points": [6, "10"]}, "points must be a positive integer, not '10'"),
        ({"workload": "linear", "p": 5}, "unknown study key 'p'"),
        (
            {"workload": "linear", "where": "devcies == 1"},
            "unknown name in where 'devcies'.*did you mean 'devices'",
        ),
        ({"workload": "linear", "sizes": {"p": 5}, "where": "q == 5"}, "unknown name in where 'q'"),
        ({"workload": "linear", "points": []}, "the study has no cases"),
        ({"workload": "linear", "sizes": {"p": []}}, "the study has no cases"),
        ({"workload": "linear", "where": "devices == 9"}, "the study has no cases"),
        ({"workload": "linear", "grids": [{"mode": []}, {"where": "False"}]}, "the study has no cases"),
        *(
            ({"workload": "linear", name: 2, "grids": [{name: None}]}, f"{name}.*null")
            for name in ("points", "devices", "mode")
        ),
        *(
            ({"workload": "mine", "ceilings": value}, f"ceilings must be true or false, not '?{value}")
            for value in (3, 1, 0.0, "yes")
        ),
    ],
)
def test_an_invalid_study_is_rejected_in_one_line(study, message):
    with pytest.raises(Refusal, match=message) as error:
        cases(study)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_of_the_package_expands(name):
    study = load_study(name)
    # Some studies take the workload from the command line, or the device counts from the hardware.
    cells = expand_study({"workload": "my.module"} | study, device_override(study))
    assert all(isinstance(cell, GridCell) for cell in cells)
    assert len({cell.case.key for cell in cells}) == len({cell.case for cell in cells}), (
        "two cases share a key"
    )
    assert isinstance(study.get("title"), str), "a study needs a title"


def test_cells_of_the_parts_of_a_study_come_first_and_once():
    part = {"workload": "my.module", "points": [6, 8]}
    cells = expand_study(
        {
            "parts": {"one": part, "other": part | {"points": [8, 10]}},
            "grids": [{"workload": "mine", "points": 2}],
        },
        {},
    )
    assert [(cell.case.workload, cell.case.points) for cell in cells] == [
        ("my.module", 6), ("my.module", 8), ("my.module", 10), ("mine", 2),
    ]  # fmt: skip
    assert {cell.case.devices for cell in expand_study({"parts": {"one": part}}, {"devices": 4})} == {4}
    assert {cell.case.dtype for cell in expand_study({"parts": {"one": part}, "dtype": "float64"}, {})} == {
        "float64"
    }
    sized = {"sizes": {"p": 5, "o": 3}, "parts": {"one": part | {"sizes": {"o": 2}}}}
    assert [dict(cell.case.sizes) for cell in expand_study(sized, {})] == [{"p": 5, "o": 2}] * 2
    sized["workload"] = "linear"  # which has other sizes than that of the part
    assert [dict(cell.case.sizes) for cell in expand_study(sized, {})] == [{"o": 2}] * 2
    with pytest.raises(Refusal, match="unknown study key 'celings'"):
        expand_study({"parts": {"one": part}, "celings": True}, {})
    with pytest.raises(Refusal, match="parts must be a mapping of studies by name, not \\['one'\\]"):
        expand_study({"parts": ["one"]}, {})


def test_every_field_has_an_override_in_these_tests():
    assert {*OVERRIDES, "sizes"} == set(FIELDS)


def test_every_field_of_a_case_is_null_at_the_root_of_the_configuration():
    root = OmegaConf.to_container(OmegaConf.load(CONF / "config.yaml"), resolve=False)
    defaults = {name: root.get(name, "absent") for name in (*FIELDS, "scaling", "where")}
    assert defaults == dict.fromkeys(defaults) | {"sizes": {}}


OVERRIDES = {  # values that no study uses
    "workload": "my.module", "target": "other", "variant": "other", "points": 24, "wrt": "other",
    "engine": "my.peer", "chunk": 24, "formulation": "other",
    "mode": "linearize", "batch": "whole", "split": "seeds", "api": "pmap", "devices": 3,
    "dtype": "bfloat16", "precision": "default", "jit": False, "data_seed": 9, "cache": "warm",
    "seeds": "colored", "reduce": "gram", "block": 24, "memory_limit": 10**9, "storage": "host", "remat": "dots_saveable",
    "forward": "other", "mesh": "3x8", "overlap": True,
}  # fmt: skip


def load_study(name):
    return configuration(f"study={name}")["study"]


def device_override(study):
    """Return an override of the devices for a study with devices=all."""
    return {"devices": 2} if study.get("devices") == "all" else {}


@pytest.mark.thin(3, "thorough")
@pytest.mark.parametrize("field", OVERRIDES)
def test_a_field_set_at_the_root_overrides_every_grid(field):
    where = "where=True"  # the `where` of the study might exclude the value
    value = str(OVERRIDES[field]).lower() if isinstance(OVERRIDES[field], bool) else OVERRIDES[field]
    cells = compose("study=smoke", f"{field}={value}", where)
    assert {getattr(cell.case, field) for cell in cells} == {OVERRIDES[field]}


@pytest.mark.thin(2, "thorough")
@pytest.mark.parametrize("name", STUDIES)
def test_an_override_takes_effect_in_every_study(name):
    study = load_study(name)
    for field, value in OVERRIDES.items():
        overrides = {"workload": "my.module", "where": "True"} | device_override(study) | {field: value}
        assert set(values(study, field, **overrides)) == {value}, field


def test_a_size_set_at_the_root_overrides_every_grid():
    cases = [
        cell.case
        for cell in compose("study=linear", "++sizes.p=[11,13]", "where=True")
        if cell.case.workload == "linear"
    ]
    assert {case.sizes["p"] for case in cases} == {11, 13}
    assert {case.sizes["o"] for case in cases} == {2, 5}


def test_scaling_and_devices_set_at_the_root_override_every_grid():
    cells = compose("study=smoke", "scaling=weak", "devices=[1,2,4]", "where=True")
    assert {cell.scaling for cell in cells} == {"weak"}
    assert {cell.case.devices for cell in cells} == {1, 2, 4}


def test_a_study_of_a_million_cases_is_rejected_before_it_is_expanded(monkeypatch):
    study = {
        "workload": "linear",
        "points": list(range(1, 1001)),
        "data_seed": list(range(1000)),
        "where": "points == 1",
    }
    monkeypatch.setattr(grid, "_make_cell", lambda *_: pytest.fail("a cell was made"))
    with pytest.raises(Refusal, match=r"1,000,000 cases.*max_cases=100000.*max_cases=1000000"):
        expand_study(study, {}, 100_000)


@pytest.mark.parametrize(
    "swept, overrides, count",
    [
        ({"grids": [{"points": [1, 2, 3]}, {"sizes": {"p": [1, 2], "o": [3, 4]}}]}, {}, 7),
        ({"parts": {"a": {"points": [1, 2]}, "b": {"points": [3, 4], "mode": ["jacfwd", "jacrev"]}}}, {}, 6),
        ({"points": [1, 2], "grids": [{}, {"points": [3, 4, 5]}]}, {}, 5),
        ({"grids": [{"points": [1, 2]}]}, {"points": [1, 2, 3], "sizes": {"p": [1, 2]}}, 6),
    ],
)
def test_max_cases_limits_the_number_of_swept_cases(swept, overrides, count):
    study = {"workload": "linear", **swept}
    assert expand_study(study, overrides, count)
    with pytest.raises(Refusal, match=f"{count} cases"):
        expand_study(study, overrides, count - 1)


@pytest.fixture
def compose_file(tmp_path):
    """Write files of a --config-dir, and return a function that composes a study of it."""

    def run(word, **files):
        for name, text in files.items():
            path = tmp_path / f"{name.replace('__', '/')}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return compose_words(["--config-dir", str(tmp_path), word])

    return run


def test_a_file_is_checked_only_if_it_is_loaded(compose_file):
    files = {
        "study__mine": "# defaults of rbf\ndefaults: [_self_]\ntitle: rbf\n",
        "study__rbf2": "a: 1\ngrids: [",
    }
    _, name = compose_file("study=mine", **files, other__mine="a: 1\ngrids: [")
    assert name == "mine"
    for word in ("study=rbf2", "study='rbf2'", "study=rbf2.yaml"):
        with pytest.raises(Refusal, match=r"rbf2\.yaml, line 2"):
            compose_file(word)


def test_a_default_with_a_space_in_its_name_is_checked(compose_file):
    with pytest.raises(Refusal, match=r"my base\.yaml, line 2"):
        compose_file(
            "study=mine", **{"study__mine": "defaults: ['my base']\n", "study__my base": "a: 1\ngrids: ["}
        )


def test_the_name_of_a_study_has_no_ending(compose_file):
    config, name = compose_file("study=mine.yaml", study__mine="workload: linear")
    assert (name, config["results"]) == ("mine", "results/mine")


def test_a_file_that_cannot_be_read_is_rejected(compose_file, tmp_path):
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "mine.yaml").symlink_to("/proc/self/mem")  # opens, and cannot be read
    with pytest.raises(Refusal, match=r"study/mine.yaml: \[Errno 5\] Input/output error; "):
        compose_file("study=mine")


@pytest.mark.parametrize("name", ["study/linear", "config"])
def test_a_file_with_the_name_of_another_that_would_be_read_instead_is_rejected(compose_file, name):
    assert compose_file("study=mine", study__mine="workload: linear")
    problem = rf"{name}\.yaml has the name of a file of the package.*: rename it"
    with pytest.raises(Refusal, match=problem):
        compose_file("study=linear", **{name.replace("/", "__"): "workload: rbf"})


def test_sizes_may_be_given_as_one_mapping(compose_file):
    config, _ = compose_file("sizes={p: 64, o: [3, 5]}")
    assert config["sizes"] == {"p": 64, "o": [3, 5]}


def test_a_configuration_folder_that_cannot_be_read_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(Refusal, match="--config-dir takes a folder that can be read"):
        compose_words(["--config-dir", str(tmp_path)])
