"""A small study to plan, with made-up machine peaks."""

from scaling.core.record import Writer
from scaling.results.store import load
from tests.support.ceilings import all_of

STUDY = """\
title: Small cases
scaling: strong
api: shard_map
devices: [1, 2, 4, 8]
grids:
  - {workload: rbf, variant: squared, points: 48, sizes: {m: 40}, mode: [jacfwd, analytic]}
  - {workload: linear, points: 24, sizes: {p: 8, o: 4}, mode: jacfwd, split: seeds}
  - {workload: linear, points: 24, sizes: {p: 8, o: 4}, mode: jacrev, split: data}
  - {workload: linear, points: 24, sizes: {p: 64, o: 16}, mode: vmap_jacfwd, devices: 2, memory_limit: 20000}
  - {workload: linear, points: 24, sizes: {p: 8, o: 4}, mode: jacfwd, devices: 1, api: jit, jit: false}
  - {workload: linear, points: 32, sizes: {p: 8, o: 4}, mode: vmap_jacrev, storage: host, block: 4, devices: [1, 2]}
  - {workload: linear, points: [31, 32], sizes: {p: 16, o: 2}, mode: vmap_jacfwd, split: both, mesh: 2x1, devices: 2}
"""


def write(folder, study=STUDY):
    """Write a user's study and a folder of made-up machine peaks; return the arguments that plan the study for this CPU."""
    conf = folder / "my_conf" / "study"
    conf.mkdir(parents=True)
    (conf / "mine.yaml").write_text(study)
    (folder / "ceilings").mkdir()
    writer = Writer(folder / "ceilings")
    for record in [*all_of(), *all_of(2, 0.9), *all_of(8, 0.5)]:
        writer.append(record)
    words = "plan --config-dir my_conf study=mine hardware=cpu hardware.ceilings=ceilings results=out"
    return words.split()


def plans(folder):
    """Return the records of the plan in a folder, which has no other records and no damaged lines."""
    loaded = load(folder / "out")
    assert not loaded.damaged and not loaded.records
    return loaded.plans
