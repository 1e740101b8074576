"""Laws of values on their way through W&B: whatever a run holds is left out before it is sent, or comes back equal."""

import dataclasses
import json
import math
import random

import pytest

from scaling.wandb import publish, tracked_run
from scaling.wandb.settings import TrackingSettings
from tests.support.wandb_server import ENTITY, serving
from tests.support.wandb_study import brought, results, runs_of

SETTINGS = TrackingSettings(entity=ENTITY, timeout=10, dashboard=False)
TEXTS = [
    "",
    "plain",
    "a.b",
    "a/b",
    " spaces ",
    "ü \U0001f600 \u2028",
    "\ud800 alone",
    'q"\\<b>&\n\t\x00',
    "value",
    "1",
    "x" * 40_000,
]
SCALARS = [
    None, True, False, 0, -1, 1.0, -0.0, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**64 + 1, 10**30, 10**400,
    math.pi, 1 / 3, 5e-324, 1e-310, 1e21, 1.7976931348623157e308, math.nan, math.inf, -math.inf, *TEXTS,
]  # fmt: skip
NESTED = [
    {}, [], (), [[]], [{}], {"a": {}}, {"a": {"b": {}}, "c": 1}, {"a": {"b": math.nan}}, (1, (2.0, "x")),
    [math.nan, 1.0, None],
    {"value": 3}, {"value": {}}, {"value": {"value": 1}, "b": 2}, {"b": {"value": 3}}, {"a.b": 1, "c/d": {"": 2}}, {"desc": 1},
    [{"a": {}}, {"value": math.inf}], list(range(2_000)), {"a": {"b": {"c": {"d": [1, {"e": None}]}}}},
]  # fmt: skip


def any_value(draw: random.Random, depth: int = 3):
    """Return a value of any kind, drawn."""
    kind = draw.randrange(4) if depth else 0
    if kind == 1:
        return [any_value(draw, depth - 1) for _ in range(draw.randrange(4))]
    if kind == 2:
        return {draw.choice(TEXTS): any_value(draw, depth - 1) for _ in range(draw.randrange(4))}
    return draw.choice(NESTED) if kind == 3 else draw.choice(SCALARS)


def with_values(run: tracked_run.TrackedRun, draw: random.Random) -> tracked_run.TrackedRun:
    """Return the run with values of every kind in its config and its summary, and numbers of every kind in its rows."""
    kinds = {f"kind {i}": value for i, value in enumerate([*SCALARS, *NESTED])}
    drawn = {f"{draw.choice(TEXTS)} {i}": any_value(draw) for i in range(40)}
    rows = [row | {f"any/{i}": draw.choice(SCALARS[:23]) for i in range(5)} for row in run.rows]
    name = f"{run.name} {draw.choice(TEXTS[:8])}."
    return dataclasses.replace(
        run, name=name, config=run.config | kinds | drawn, summary=run.summary | kinds | drawn, rows=rows
    )


@pytest.mark.wandb
@pytest.mark.parametrize("seed", range(2))
def test_values_of_every_kind_are_read_back_as_they_were_sent_and_not_sent_again(tmp_path, monkeypatch, seed):
    tracked_runs = publish.tracked_runs

    def planned(*words):
        draw = random.Random(seed)
        return [with_values(run, draw) for run in (tracked_runs(*words) if words[1:] else runs_of(*words))]

    monkeypatch.setattr(publish, "tracked_runs", planned)
    folder = results(tmp_path / "made")
    with serving(monkeypatch, tmp_path) as server:
        said = publish.publish(folder, SETTINGS)
        assert said.well and (said.sent, said.differ) == (3, 0), said.lines
        assert brought(server, folder, planned(folder))
        again = publish.publish(folder, SETTINGS)
        assert again.well and (again.sent, again.before) == (0, 3) and len(server.runs) == 3, again.lines


@pytest.mark.wandb
@pytest.mark.parametrize("study", ['it\'s {a} "study"', "ü \U0001f600", "a/b.c=d", "x" * 200, "\udcff"])
def test_a_study_of_any_name_is_published_once(tmp_path, monkeypatch, study):
    folder = results(tmp_path / "made", study=study)
    with serving(monkeypatch, tmp_path) as server:
        assert publish.publish(folder, SETTINGS).sent == 3
        assert publish.publish(folder, SETTINGS).before == 3 and brought(server, folder)


@pytest.mark.parametrize("value", [*SCALARS, *NESTED])
def test_what_is_kept_of_a_value_is_strict_json_and_is_kept_again(value):
    for keep in (tracked_run.storable_config, tracked_run.storable_row):
        kept = keep({"a": value, "b": [value], "c": {"d": value, "e": 1}})
        assert json.loads(json.dumps(kept, allow_nan=False)) == kept == keep(kept)
        assert json.dumps(kept, ensure_ascii=False).encode() and "e" in kept["c"]


def test_only_what_cannot_be_kept_is_left_out():
    config = {
        "none": None,
        "zero": 0,
        "text": "",
        "list": [],
        "no": False,
        "nan": math.nan,
        "empty": {},
        "wrapped": {"value": 3},
    }
    assert tracked_run.storable_config(config) == {
        "none": None,
        "zero": 0,
        "text": "",
        "list": [],
        "no": False,
    }
    assert tracked_run.storable_row(config | {"wrapped": 1}) == {
        "zero": 0,
        "text": "",
        "list": [],
        "no": False,
        "wrapped": 1,
    }
