"""Tests of Case: validation, equality, labels, and keys that never change."""

import pickle

import pytest

from scaling.core.case import (
    ALIASES,
    BATCHES,
    CHOICES,
    FIELDS,
    MODES,
    Case,
    Refusal,
    from_dict,
    label,
    to_dict,
    unknown_name,
)
from scaling.core.formatting import format_value

FULL = Case(
    "my.module", target="jacobian", variant="plain", sizes={"p": 5, "o": 3}, points=6, wrt="W+X", mode="jacrev", batch="whole",
    split="seeds", api="pmap", devices=2, dtype="float64", precision="default", jit=True, data_seed=4, engine="torch",
    chunk=8, formulation="plain", cache="cold", seeds="colored", reduce="gram", block=9, memory_limit=10**9, storage="host",
    remat="dots_saveable", forward="W", mesh="1x2", overlap=True,
)  # fmt: skip
CHANGED = {
    "workload": "rbf", "target": "grad", "variant": "true", "sizes": {"p": 6, "o": 3}, "points": 8, "wrt": "W",
    "mode": "linearize", "batch": "vmap", "split": "points", "api": "shard_map", "devices": 3, "dtype": "bfloat16",
    "precision": "high", 
    "jit": False, "data_seed": 5, "engine": "autograd", "chunk": 7, "formulation": "dense", "cache": "warm",
    "seeds": "identity", "reduce": "norm", "block": 10, "memory_limit": 10**8, "storage": "device", "remat": "nothing_saveable",
    "forward": "X", "mesh": "2x1", "overlap": False,
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in FIELDS if name != "workload"])
def test_writing_out_a_default_does_not_change_the_key(name):
    plain = Case("linear")
    assert from_dict({"workload": "linear", name: to_dict(plain)[name]}).key == plain.key


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_is_part_of_the_key(name):
    changed = from_dict(to_dict(FULL) | {name: CHANGED[name]})
    assert changed.key != FULL.key
    assert changed != FULL


def test_the_key_does_not_depend_on_the_order_of_sizes():
    case, swapped = Case("linear", sizes={"p": 5, "o": 3}), Case("linear", sizes={"o": 3, "p": 5})
    assert case.key == swapped.key
    assert (case, hash(case)) == (swapped, hash(swapped))


OLD_KEYS = {  # of earlier versions; some of their engines no longer exist
    "0fcc1b7fd02aedd7": Case("rbf"),
    "26b742fe7bda6858": Case("linear", sizes={"p": 64, "o": 5}, points=6, mode="jacrev", devices=2, dtype="float64"),
    "0c785f8a859cbf14": Case("poisson", "gradient", points=1000, wrt="lam", api="jit", dtype="float64", engine="enzyme"),
    "190a9eb95040bda1": Case("residual", "jacobian", "vector", points=10000, wrt="d+m", mode="jacrev", api="jit",
                             dtype="float64", engine="julia/Zygote"),
}  # fmt: skip


def test_keys_are_those_of_earlier_versions():
    assert [case.key for case in OLD_KEYS.values()] == [*OLD_KEYS]


def test_swapped_sizes_give_a_different_key():
    assert Case("linear", sizes={"p": 5, "o": 3}).key != Case("linear", sizes={"p": 3, "o": 5}).key


def test_a_case_round_trips_through_a_dict_and_a_pickle():
    assert from_dict(to_dict(FULL)) == FULL
    assert pickle.loads(pickle.dumps(FULL)) == FULL
    assert set(to_dict(FULL)) == set(FIELDS)
    assert type(to_dict(FULL)["sizes"]) is dict


def test_a_case_is_immutable_and_copies_its_sizes():
    sizes = {"p": 5}
    case = Case("linear", sizes=sizes)
    before = case.key
    sizes["p"] = 7
    to_dict(case)["sizes"]["p"] = 9
    assert case.key == before
    with pytest.raises(TypeError):
        case.sizes["p"] = 8
    with pytest.raises(AttributeError):
        case.points = 8


def test_every_alias_names_a_mode_and_a_batch_and_is_not_itself_a_mode():
    assert not set(ALIASES) & set(MODES)
    assert all(mode in MODES and batch in BATCHES for mode, batch in ALIASES.values())


@pytest.mark.parametrize("field", ["points", "devices", "sizes.p"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "8", True, None, [8], float("inf"), float("nan")], ids=repr)
def test_a_count_that_is_not_a_positive_integer_is_rejected_by_name_and_value(field, value):
    fields = {"sizes": {"p": value}} if field == "sizes.p" else {field: value}
    with pytest.raises(Refusal) as error:
        from_dict({"workload": "linear", **fields})
    message = str(error.value)
    assert all(text in message for text in (field, format_value(value), "positive integer"))
    assert "\n" not in message


@pytest.mark.parametrize("field", sorted(CHOICES))
@pytest.mark.parametrize("value", ["", "nosuch", None, 3, True, ["jacfwd"], {}], ids=repr)
def test_a_name_outside_a_closed_list_is_rejected_with_the_whole_list(field, value):
    with pytest.raises(Refusal) as error:
        from_dict({"workload": "linear", field: value})
    message = str(error.value)
    assert f"unknown {field} {format_value(value)}" in message and "\n" not in message
    assert all(choice in message for choice in CHOICES[field])


@pytest.mark.parametrize(
    ("field", "value", "suggestion"),
    [("mode", "jacfw", "jacfwd"), ("mode", "jac_rev", "jacrev"), ("api", "shardmap", "shard_map"), ("split", "point", "points"),
     ("dtype", "flaot32", "float32"), ("precision", "hihgest", "highest"), ("batch", "vmapped", "vmap")],
)  # fmt: skip
def test_a_misspelled_value_is_rejected_with_a_suggestion(field, value, suggestion):
    with pytest.raises(Refusal, match=f"did you mean '{suggestion}'"):
        from_dict({"workload": "linear", field: value})


def test_an_unknown_field_is_rejected_with_a_suggestion():
    with pytest.raises(Refusal, match=r"unknown field 'devises'.*did you mean 'devices'"):
        from_dict({"workload": "linear", "devises": 2})


INVALID = {  # field -> what it must be, values that are rejected
    "data_seed": ("an integer, zero or more", [-1, 1.5, "0", True, None]),
    **dict.fromkeys(("workload", "target", "variant", "wrt"), ("a name", ["", 3, True, ["x"]])),
    "jit": ("true or false", [None, 1, "true"]),
    "sizes": ("a mapping such as {p: 64}", [None, 8, [8], "p=8"]),
}


@pytest.mark.parametrize("field", INVALID)
def test_an_invalid_value_is_rejected_with_what_the_field_must_be(field):
    kind, values = INVALID[field]
    for value in values:
        with pytest.raises(Refusal, match=f"^{field} must be {kind}, not"):
            from_dict({"workload": "linear", field: value})


def test_cases_that_differ_in_a_field_have_different_labels():
    for name in FIELDS:
        if name != "data_seed":
            assert label(from_dict(to_dict(FULL) | {name: CHANGED[name]})) != label(FULL), name
    assert "devices" not in label(FULL, leave_out=["devices"])
    assert "\n" not in label(FULL)


def test_a_label_contains_a_data_seed_that_is_not_the_default():
    plain, seeded = Case("rbf", points=6), Case("rbf", points=6, data_seed=3)
    assert label(seeded) == f"{label(plain)} data_seed=3"


def test_an_unknown_name_without_valid_names_is_rejected_without_choices():
    assert str(unknown_name("input", "k", ())) == "unknown input 'k': there is none; omit it"
