"""Made-up records for the cases of the studies in conf/study, to publish without running them."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import scaling
from scaling.core.case import FIELDS, Case, non_default_fields
from scaling.core.record import Record
from scaling.study import completion, grid
from tests.support import made_up, planned

CONF = Path(scaling.__file__).parents[1] / "conf"
STUDIES = sorted(path.stem for path in (CONF / "study").glob("*.yaml"))
# What the user has to name: a function of their own, and a number of devices where the study has those of any machine.
OVERRIDES: dict[str, dict[str, Any]] = {
    "function": {"workload": "mine", "sizes": {"value": 3, "a.b/c": 2}},
    "plan": {"devices": [1, 4]},
}
USER_WORKLOAD = """
import jax.numpy as jnp
from scaling.workload import Workload, uniform

SIZES = {"value": 3, "a.b/c": 2}


def workload(case):
    return Workload(function=lambda x: jnp.sin(x), points={"x": uniform(3)})
"""


def cases_of(name: str) -> list[Case]:
    """Return every case of a study, as its workload completes it."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    with initialize_config_dir(str(CONF), version_base=None):
        config = compose("config", [f"study={name}", "results=unused"])
    shared = {
        field: config[field] for field in FIELDS if field in config and field != "sizes"
    } | OVERRIDES.get(name, {})
    cells = grid.expand_study(OmegaConf.to_container(config.study, resolve=True), shared)
    return list(
        dict.fromkeys(completion.complete(cell.scaled(completion.complete(cell.case))) for cell in cells)
    )


def shape_of(case: Case) -> tuple[frozenset[str], frozenset[str]]:
    """Return which fields of a case are set, and which sizes it has: what decides the shape of its run's config."""
    return frozenset(non_default_fields(case)) - {"devices", "mesh"}, frozenset(case.sizes)


def without_devices(case: Case) -> Case:
    return replace(case, devices=1, mesh=None)


def thinned(cases: list[Case], known: Iterable[Any]) -> list[Case]:
    """Return the cases of one curve for each shape of config that is not known; of the first curve if all are."""
    seen = set(known)
    curves = {}
    for case in cases:
        if shape_of(case) not in seen:
            seen.add(shape_of(case))
            curves[without_devices(case)] = None
    curves = curves or {without_devices(cases[0]): None}
    return [case for case in cases if without_devices(case) in curves]


def records_of(cases: list[Case]) -> list[Record]:
    """Return two replicates of every case, the ceilings of a machine, and a failed, a skipped and a planned record."""
    draw = np.random.default_rng(0)
    made = [
        made_up.timed(draw, case, 0.01 / case.devices, replicate) for case in cases for replicate in (0, 1)
    ]
    made += made_up.machine(draw, 1)
    failed, skipped, plan = (replace(cases[0], data_seed=seed) for seed in (91, 92, 93))
    made.append(made_up.failure(failed, text=made_up.NASTY))
    made.append(made_up.failure(skipped, "not_defined", "it has no meaning", "skipped"))
    made.append(
        Record(
            plan,
            "planned",
            planned.around(),
            predicted=planned.predicted(0.02),
            started_at="2026-01-01T00:00:00Z",
        )
    )
    return made
