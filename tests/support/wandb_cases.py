"""Made-up records for the cases of the studies in conf/study, so that they can be published without being run."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from scaling.core.case import FIELDS, Case, non_default_fields
from scaling.core.record import Record
from scaling.study import case_rules, grid
from tests.support import made_up, planned
from tests.support.paths import CONF

STUDIES = sorted(path.stem for path in (CONF / "study").glob("*.yaml"))
# What the user must give: a function, or device counts if the study does not fix them.
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
    """Return every case of a study, completed by its workload."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    with initialize_config_dir(str(CONF), version_base=None):
        config = compose("config", [f"study={name}", "results=unused"])
    shared = {
        field: config[field] for field in FIELDS if field in config and field != "sizes"
    } | OVERRIDES.get(name, {})
    cells = grid.expand_study(OmegaConf.to_container(config.study, resolve=True), shared)
    return list(
        dict.fromkeys(case_rules.complete(cell.scaled(case_rules.complete(cell.case))) for cell in cells)
    )


def config_shape(case: Case) -> tuple[frozenset[str], frozenset[str]]:
    """Return the fields that are set and the sizes of a case, which determine the keys of the config of its run."""
    return frozenset(non_default_fields(case)) - {"devices", "mesh"}, frozenset(case.sizes)


def without_devices(case: Case) -> Case:
    return replace(case, devices=1, mesh=None)


def select_curves(cases: list[Case], known: Iterable[Any]) -> list[Case]:
    """Return the cases of one curve per config shape that is not in `known`, or of the first curve if all are."""
    seen = set(known)
    curves = {}
    for case in cases:
        if config_shape(case) not in seen:
            seen.add(config_shape(case))
            curves[without_devices(case)] = None
    curves = curves or {without_devices(cases[0]): None}
    return [case for case in cases if without_devices(case) in curves]


def records_of(cases: list[Case]) -> list[Record]:
    """Return two replicates of every case, machine peaks, and a failed, a skipped and a planned record."""
    rng = np.random.default_rng(0)
    records = [
        made_up.timed(rng, case, 0.01 / case.devices, replicate) for case in cases for replicate in (0, 1)
    ]
    records += made_up.machine(rng, 1)
    failed, skipped, plan = (replace(cases[0], data_seed=seed) for seed in (91, 92, 93))
    records.append(made_up.failure(failed, text=made_up.NASTY))
    records.append(made_up.failure(skipped, "not_defined", "it has no meaning", "skipped"))
    times = {"predicted": planned.predicted(0.02), "started_at": "2026-01-01T00:00:00Z"}
    records.append(Record(plan, "planned", planned.around(), **times))
    return records
