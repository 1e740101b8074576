"""Tests of conf/hardware: every file is complete with sources, and a malformed field is rejected in one line."""

import json
import math

import pytest

from scaling.core.case import DTYPES, Refusal
from scaling.plan.hardware import from_config, read_hardware
from scaling.study.configuration import compose
from tests.support.machines import machine, machine_config
from tests.support.paths import CONF

FILES = sorted((CONF / "hardware").glob("*.yaml"))
# Fields without a source: names, the shape of a chip or a host, and fields that the user sets.
UNSOURCED = {
    "name", "title", "platform", "device_kind", "per_chip", "per_host", "sources", "ceilings",
}  # fmt: skip


def all_numbers(value):
    """Return all numbers in a nested value."""
    if isinstance(value, dict):
        return [n for item in value.values() for n in all_numbers(item)]
    if isinstance(value, list):
        return [n for item in value for n in all_numbers(item)]
    return [value] if isinstance(value, int | float) else []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_hardware_file_has_a_source_for_each_figure(path):
    fields = read_hardware(path.stem).config
    hardware = from_config(fields)
    assert hardware.name == path.stem
    figures = {name for name, value in fields.items() if value is not None} - UNSOURCED
    if path.stem == "cpu":
        figures -= {"most"}  # limited by the compilation for this host
    if isinstance(fields.get("target"), str):
        figures -= {"target"}  # a name
    assert set(fields["sources"]) == figures
    assert all(isinstance(source, str) and len(source) > 6 for source in fields["sources"].values())


@pytest.mark.parametrize("name", ["cpu", "h100", "v5p"])
def test_a_hardware_file_is_read_as_hydra_composes_it_from_the_file_of_its_platform(name):
    config, _ = compose(["study=function", f"hardware={name}"])
    assert read_hardware(name).config == config["hardware"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_rate_is_positive_and_every_device_count_is_available(path):
    fields = read_hardware(path.stem).config
    hardware = from_config(fields)
    assert all(
        n > 0 and math.isfinite(n)
        for n in all_numbers({name: value for name, value in fields.items() if name != "target"})
    )
    counts = hardware.device_counts()
    assert counts == sorted(set(counts)) and counts[0] == 1 and counts[-1] == hardware.most
    if hardware.slices:
        assert math.prod(hardware.slices[-1]) * hardware.per_chip == hardware.most
        sizes = [math.prod(shape) for shape in hardware.slices]
        assert sizes == sorted(sizes) and len({len(shape) for shape in hardware.slices}) == 1
    for count in counts:
        shape = hardware.slice_shape(count)
        assert shape is not None
        if shape and count > 1:
            assert math.prod(shape) * hardware.per_chip == count
        hardware.check_devices(count)
    for rates in hardware.rates:
        assert rates.network[-1].devices is None
        assert all(
            rates.products[d]["highest"] <= rates.products[d]["default"]
            for d in DTYPES
            if rates.products[d]["highest"]
        )


def test_device_counts_are_full_hosts_or_existing_slices():
    hosts = machine(per_host=8, most=64)
    assert hosts.device_counts() == [1, 2, 4, 8, 16, 32, 64]
    assert [hosts.slice_shape(n) for n in (3, 8, 24, 20)] == [(), (), (), None]
    torus = machine(
        platform="tpu", target="v5e", slices=[[1, 1], [2, 2], [4, 4]], per_chip=2, per_host=4, most=32
    )
    assert torus.device_counts() == [1, 8, 32], "one device represents a chip; two devices are not a slice"
    assert [torus.slice_shape(n) for n in (1, 2, 8, 16, 32)] == [(1, 1), None, (2, 2), None, (4, 4)]


@pytest.mark.parametrize(
    ("fields", "count", "alternatives"),
    [
        ({"per_host": 8, "most": 64}, 20, "use 1 to 8, or a multiple of 8 up to 64"),
        (
            {"platform": "tpu", "target": "v5e", "slices": [[1, 1], [2, 2], [4, 4]], "most": 16},
            8,
            "use 1, 4, 16",
        ),
        ({"per_host": 8, "most": 16}, 32, "use 1 to 8, or a multiple of 8 up to 16"),
        ({"per_host": 4096, "most": 64}, 65, "use 1 to 64"),
    ],
)
def test_an_unavailable_device_count_is_rejected_with_the_valid_ones(fields, count, alternatives):
    with pytest.raises(Refusal) as refusal:
        machine(**fields).check_devices(count)
    assert str(refusal.value) == f"devices={count} are not available on mine: {alternatives}"


def test_rates_are_those_of_the_next_smaller_measured_device_count():
    hardware = machine()
    assert hardware.rates_at(1) is hardware.rates_at(4096) is hardware.rates[0]


def test_the_digest_depends_on_rates_but_not_on_title_or_sources():
    assert machine(title="Another", sources={"bandwidth": "here"}).digest == machine().digest
    for change in (
        {"bandwidth": 2e9},
        {"jitter": 0.5},
        {"most": 64},
        {"stragglers": {"share": 0.1, "slowdown": 1.5}},
    ):
        assert machine(**change).digest != machine().digest


# Invalid values of fields, and the exceptions: (value, field) pairs that are valid.
INVALID = {"missing": None, "text": "many", "negative": -1, "zero": 0, "true": True, "nan": math.nan, "infinite": math.inf,
       "list": [[1, "x"]], "mapping": {"a": -1}}  # fmt: skip
FIELDS = [name for name in machine_config() if name != "sources"]
VALID = {
    ("missing", name) for name in ("slices", "device_kind", "title")
} | {("text", name) for name in ("name", "title", "device_kind")} | {("mapping", "target")}  # fmt: skip


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("kind", INVALID)
def test_a_malformed_field_is_rejected_in_one_line_that_names_it(field, kind):
    if (kind, field) in VALID:
        machine(**{field: INVALID[kind]})
        return
    with pytest.raises(Refusal) as refusal:
        machine(**{field: INVALID[kind]})
    assert f"hardware.{field}" in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ["a/b", "../up", ".", "a b", "x" * 200, "\x00"])
def test_a_name_that_is_not_a_valid_file_name_is_rejected(name):
    with pytest.raises(Refusal, match=r"hardware\.name"):
        machine(name=name)
    assert machine(name="tpu-7.x+1").name == "tpu-7.x+1"


@pytest.mark.parametrize("field", FIELDS)
def test_a_missing_field_equals_a_null_field(field):
    fields = machine_config()
    del fields[field]
    if ("missing", field) in VALID:
        from_config(fields)
        return
    with pytest.raises(Refusal, match=rf"hardware\.{field}"):
        from_config(fields)


LEVEL = {"shape": "tree", "devices": None, "bandwidth": 1e9, "latency": 1e-6}
NESTED = {
    "products": [{"float32": 1}, {d: {"highest": 1} for d in DTYPES},
                 {d: {"highest": "x", "high": 1, "default": 1} for d in DTYPES}],
    "arithmetic": [{"float32": 1}, dict.fromkeys(DTYPES, -1), dict.fromkeys(DTYPES, "x"), dict.fromkeys((*DTYPES, "int8"), 1)],
    "attained": [[0.5], [0.9, 0.4], [0.5, 5.0], [1, 10**400], [0, 1], ["a", "b"], [0.1, 0.2, 0.3], {"low": 1}],
    "asking": [[2.0, 0.5], [True, True], [1, 10**400]],
    "stragglers": [{"share": 1e-4}, {"share": -1, "slowdown": 1.5}, {"share": 2.0, "slowdown": 1.5},
                   {"share": 0.1, "slowdown": 0.5}, {"share": 0.1, "slowdown": 2, "more": 1}],
    "slices": [[], [[]], [[2, 2], [4, 4]], [[1, "x"]], [[2, -2]], [[True]], 5],
    "per_host": [1.5],
    "most": [2.5],
    "network": [[], [LEVEL | {"shape": "star"}], [LEVEL | {"bandwidth": 0}], [LEVEL | {"latency": "x"}], [LEVEL | {"devices": 4}],
                [LEVEL | {"colour": 1}], [{"shape": "tree"}], [LEVEL | {"devices": 2.5}, LEVEL], [LEVEL | {"wraps": 0}],
                [LEVEL | {"wraps": "x"}], [LEVEL | {"devices": True}, LEVEL],
                [LEVEL | {"devices": 64}, LEVEL | {"devices": 8}, LEVEL], [LEVEL | {"devices": 8}, LEVEL | {"devices": 8}, LEVEL],
                [LEVEL, LEVEL]],
    "target": [{}, {1: 2, "a": 3}, {"a": None}, {"a": [1]}, {"a": b"x"}, {"a": {1: 2}}, {"a": math.nan}, {"a b": 1}],
    "sources": ["x", {1: "x", "a": "x"}, {"a": b"x"}, {"a": 3}],
    "memory": [10**400], "per_chip": [10**400], "kernel_seconds": [10**400],
}  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"),
    [(field, value) for field, values in NESTED.items() for value in values],
    ids=lambda value: str(value)[:40],
)
def test_malformed_nested_values_are_rejected(field, value):
    with pytest.raises(Refusal, match=rf"hardware\.{field}"):
        machine(**{field: value})


def test_the_largest_jitter_is_accepted():
    assert machine(jitter=1.0).jitter == 1.0


TPU, ASCENDING = {"platform": "tpu", "target": "v5e"}, "slices must be shapes in chips, each with more chips"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"jitter": 1000.0}, "jitter"),
        (TPU | {"slices": None}, "slices must be shapes in chips, .*, not null"),
        (
            TPU | {"slices": [[1, 1], [2, 2]], "most": 8},
            "most must be 4, the devices of the last slice, not 8",
        ),
        (TPU | {"slices": [[1, 1], [4, 4], [2, 2]], "per_host": 4, "most": 4}, ASCENDING),
        (TPU | {"slices": [[1, 1], [2, 2], [2, 2]], "per_host": 4, "most": 4}, ASCENDING),
        (TPU | {"slices": [[1, 1], [8, 8], [4, 4]], "per_host": 4, "most": 16}, ASCENDING),
        (TPU | {"slices": [[1, 1], [2, 2, 1], [4, 4]], "per_host": 4, "most": 16}, ASCENDING),
        *(
            ({"platform": platform, "target": target, "slices": [[1, 1], [2, 2]], "most": 4}, "target")
            for platform, target in (("gpu", "h100"), ("tpu", {"name": "v5p"}), ("tpu", None), ("tpu", "v99"))
        ),
    ],
)
def test_fields_that_do_not_fit_together_are_rejected(fields, message):
    with pytest.raises(Refusal, match=rf"hardware\.{message}"):
        machine(**fields)


def test_a_cpu_may_attain_more_than_its_peaks_as_they_were_measured_outside_of_the_caches():
    assert read_hardware("cpu").attained == (0.5, 2.0)


def test_an_unknown_key_is_rejected_with_the_nearest():
    with pytest.raises(Refusal, match=r"unknown key of hardware 'bandwith'.*did you mean 'bandwidth'"):
        machine(bandwith=1e9)
    for internal in ("config", "rates", "devices"):
        with pytest.raises(Refusal, match="unknown key of hardware"):
            machine(**{internal: 1})


def test_the_configuration_of_a_machine_survives_json():
    assert from_config(json.loads(json.dumps(machine().config))) == machine()
