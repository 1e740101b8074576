"""`scaling plan` from end to end: programs compiled for machines that are not here, on record with what they would take there."""

import contextlib
import importlib.metadata
import json
import os
import re
import shutil
import signal
import time
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from scaling.core import memory
from scaling.core.case import Refusal
from scaling.core.record import Record
from scaling.core.store import load
from scaling.plan import compile_worker, plan_study
from tests.support import machines
from tests.support.commands import COMMAND, command_environment
from tests.support.small_plan import STUDY, plans, write

pytestmark = pytest.mark.process

DEVICES = (1, 2, 4, 8)


@pytest.fixture(scope="module")
def planned(tmp_path_factory, loaded_command):
    """The small study planned for this CPU: (its folder, the words, what the command said, the records)."""
    folder = tmp_path_factory.mktemp("planned")
    words = write(folder)
    done = loaded_command.run([str(COMMAND), *words], folder, command_environment(), 100)
    assert done.returncode == 0, done.stderr
    return folder, words, done.stdout, plans(folder)


def some(records, **fields):
    """By devices, the records of cases with these fields."""
    found = [r for r in records if all(getattr(r.case, name) == value for name, value in fields.items())]
    assert found and len({r.case.devices for r in found}) == len(found)
    return {r.case.devices: r for r in found}


def test_every_case_is_on_record_once_as_planned(planned):
    records = planned[-1]
    assert len({record.key for record in records}) == len(records) == 4 * 4 + 2 + 4
    assert {record.status for record in records} == {"planned", "skipped"}
    assert [record.reason for record in records if record.status == "skipped"] in (
        ["too_large", "not_defined"], ["not_defined", "too_large"]
    )  # fmt: skip


def test_a_plan_has_all_that_is_read_off_a_program(planned):
    for record in (record for record in planned[-1] if record.status == "planned"):
        told = record.environment
        assert (
            record.of_plan
            and told["hardware"]["name"] == "cpu"
            and told["device_kind"] == "A processor of made up"
        )
        known = (
            "flops",
            "hbm_bytes",
            "temp_bytes",
            "argument_bytes",
            "output_bytes",
            "peak_bytes",
            "compulsory_bytes",
        )
        assert all(
            getattr(record, name) is not None for name in (*known, "program_flops", "program_transcendentals")
        )
        results = 2 if record.case.storage else 1  # of two steps: one is on its way to the host
        assert record.peak_bytes == record.argument_bytes + record.temp_bytes + results * record.output_bytes
        one_step = record.argument_bytes + record.output_bytes
        assert (
            record.compulsory_bytes > one_step if record.case.storage else record.compulsory_bytes == one_step
        )
        assert record.kernels and record.program and record.capacity_bytes and record.seconds == []
        assert (
            sum(kernel.get("bytes", 0) * kernel.get("times", 1) for kernel in record.kernels)
            == record.hbm_bytes
        )
        if not record.case.storage:  # moving results to the host, a block at a time, is not in the model
            predicted = record.predicted
            assert (
                0 < predicted["low"] < predicted["seconds"] < predicted["high"]
                and predicted["by"] == "program"
            )
            assert {"call", "compute", "communication", "waiting", "bound"} < set(predicted)
        own = [record.trace_seconds, record.lower_seconds, record.compile_seconds]
        assert all(own), "its own, or those of the case that was compiled"


@pytest.mark.parametrize("split", ["points", "seeds"])
def test_what_is_split_over_points_or_seeds_sends_nothing(planned, split):
    for mode in ("jacfwd", "analytic") if split == "points" else ("jacfwd",):
        found = some([r for r in planned[-1] if r.status == "planned"], split=split, mode=mode)
        assert tuple(sorted(found)) == DEVICES
        for record in found.values():
            assert (
                record.collective_bytes == 0
                and record.messages == []
                and not any(record.collectives.values())
            )
            assert record.predicted["communication"] == 0
        assert found[8].flops == pytest.approx(found[1].flops / 8, rel=0.1)


def test_what_is_split_over_data_sends_the_gradient_to_all(planned):
    for devices, record in some(planned[-1], split="data").items():
        if devices == 1:
            assert record.collective_bytes == 0 and record.messages == []
            continue
        (message,) = record.messages
        assert message == {"kind": "all-reduce", "bytes": 8 * 4 * 4, "group": devices}
        assert record.collective_bytes == 8 * 4 * 4 and record.predicted["communication"] > 0


def test_what_does_not_fit_is_a_row_with_its_figures(planned):
    (record,) = [record for record in planned[-1] if record.reason == "too_large"]
    # A device has half of 24 samples, each with a Jacobian of 64 x 16 in float32: the result alone is more than may be had.
    assert record.peak_bytes > record.output_bytes == 12 * 64 * 16 * 4 > 20_000
    assert record.text.startswith("needs ") and record.text.endswith(", a device has 20.0 kB")
    assert record.predicted is None and record.status == "skipped"


def test_steps_of_one_program_are_counted_for_each_case(planned):
    one, two = (
        some([r for r in planned[-1] if r.case.storage], storage="host")[devices] for devices in (1, 2)
    )
    assert one.argument_bytes == two.argument_bytes, "a step has four points on each device"
    assert (
        one.flops == 2 * two.flops
        and one.program_flops == 2 * two.program_flops
        and one.hbm_bytes == 2 * two.hbm_bytes
    )
    assert one.predicted is None and "not predicted" in one.text


def test_what_fills_up_a_mesh_is_that_of_each_case(planned):
    padding = {record.case.points: record.padding for record in planned[-1] if record.case.split == "both"}
    assert padding == {31: pytest.approx(1 / 32), 32: 0.0}


def test_what_runs_uncompiled_is_no_plan(planned):
    (record,) = [record for record in planned[-1] if record.reason == "not_defined"]
    assert not record.case.jit and "jit=false" in record.text


def test_the_command_answers_in_words(planned):
    said = planned[2]
    assert "mine for this CPU: 21 cases to compile, 0 done before, 1 skipped" in said
    assert (
        "the fastest planned method" in said
        and "First to run out of memory" in said
        and "device-hours" in said
    )


def test_a_second_run_compiles_nothing(planned, loaded_command):
    folder, words, _, records = planned
    files = sorted(path.name for path in (folder / "out").glob("*.jsonl"))
    began = time.monotonic()
    done = loaded_command.run([str(COMMAND), *words], folder, command_environment(), 100)
    assert done.returncode == 0 and "0 cases to compile, 22 done before" in done.stdout
    assert sorted(path.name for path in (folder / "out").glob("*.jsonl")) == files and len(
        plans(folder)
    ) == len(records)
    assert time.monotonic() - began < 10


def test_device_hours_are_those_of_as_many_replicates_as_are_asked_for(planned, loaded_command):
    folder, words, said, _ = planned
    again = loaded_command.run(
        [str(COMMAND), *words, "replicates=3"], folder, command_environment(), 100
    ).stdout
    hours = [
        re.search(r"Measuring the whole study (once|3 times) takes ([\d.]+)", text) for text in (said, again)
    ]
    assert [found[1] for found in hours] == ["once", "3 times"]
    assert float(hours[1][2]) == pytest.approx(3 * float(hours[0][2]), rel=0.1), "as far as the digits go"


def test_without_ceilings_it_is_refused_and_says_what_to_do(tmp_path, scaling_command):
    words = [word for word in write(tmp_path) if not word.startswith("hardware.ceilings")]
    done = scaling_command(words)
    assert done.returncode == 2 and "scaling run study=linear" in done.stderr + done.stdout
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("here", "refused"),
    [
        ((), "the compiler for hardware=.* is not installed: run `scripts/plan`.*plan-gpu"),
        (
            ("jax-cuda13-plugin",),
            "the CUDA assembler ptxas for hardware=.* is not installed: run `scripts/plan`.*plan-gpu",
        ),
        (("jax-cuda12-plugin", "nvidia-cuda-nvcc-cu12"), None),
    ],
)
def test_a_compiler_that_lacks_something_is_one_line_that_says_what_installs_it(
    monkeypatch, tmp_path, here, refused
):
    def version(name):
        if name not in here:
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(plan_study, "_CUDA", tmp_path / "cuda")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    if refused is None:
        assert plan_study.find_compiler(machines.machine()) == (here[0], "1.0")
        return
    with pytest.raises(Refusal, match=refused):
        plan_study.find_compiler(machines.machine())


def children(process):
    """The processes that one started, and theirs; by their parents, as what the kernel lists by thread misses some."""
    parents = {}
    for each in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{each}/stat") as stat:
            parents[each] = stat.read().rpartition(")")[2].split()[1]

    def below(one):
        return [each for child, parent in parents.items() if parent == one for each in (child, *below(child))]

    return below(str(process))


def until(condition, seconds=60.0):
    """Wait for something that must come."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)
    return found


def running(process):
    """Whether a process is there and no zombie."""
    try:
        with open(f"/proc/{process}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_plan_that_is_killed_loses_nothing_and_leaves_no_planner(tmp_path, start_command, scaling_command):
    words = write(tmp_path, STUDY.replace("devices: [1, 2, 4, 8]", "devices: [1, 2, 3, 4, 6, 8]"))
    launcher = start_command(words)
    until(
        lambda: (
            (tmp_path / "out").exists()
            and sum(one.status == "planned" for one in load(tmp_path / "out").plans) >= 3
        )
    )
    planners = children(launcher.pid)
    assert planners
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait()
    until(lambda: not any(map(running, planners)), 10.0)
    before = {record.key: record for record in plans(tmp_path)}
    assert 3 <= len(before) < 30
    done = scaling_command(words)
    assert done.returncode == 0, done.stderr
    after = plans(tmp_path)
    assert len({record.key for record in after}) == len(after) == 30, (
        "nothing is lost, and nothing is compiled again"
    )
    assert all(before[record.key] == record for record in after if record.key in before)


def test_a_program_that_a_compiler_refused_has_its_figures_all_the_same():
    one = SingleDeviceSharding(jax.devices("cpu")[0])
    given = {
        "x": jax.ShapeDtypeStruct((1000,), np.float32, sharding=one),
        "i": jax.ShapeDtypeStruct((10,), np.int32, sharding=one),
    }
    program = SimpleNamespace(function=jax.jit(lambda x, i: (x[i], x * 2)), arguments=given)
    refused = compile_worker._rejected_program(
        program, 1, "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 2.5G of 1.0G hbm."
    )
    inside, out = 4000 + 40, 40 + 4000
    rest = int(2.5 * 2**30) - inside - out
    assert memory.program_bytes(refused) == {
        "argument_bytes": inside,
        "output_bytes": out,
        "temp_bytes": rest,
    }
    assert (
        memory.program_bytes(compile_worker._rejected_program(program, 1, "RESOURCE_EXHAUSTED"))["temp_bytes"]
        is None
    ), "nothing is made up"


ELSEWHERE = """\
title: Small cases elsewhere
scaling: weak
api: shard_map
grids:
  - {workload: linear, points: 8, sizes: {p: 16, o: 8}, mode: vmap_jacrev}
  - {workload: linear, points: 8, sizes: {p: 16, o: 8}, mode: jacrev, split: data}
  - {workload: poisson, points: 4096, mode: jacrev}
"""


@pytest.mark.parametrize(
    ("hardware", "compiler", "counts", "most"),
    [("v5p", "libtpu", (1, 64, 8960), 8960), ("h100", "jax-cuda12-plugin", (8, 1024), 8192)],
)
def test_programs_are_compiled_for_machines_that_are_not_here(
    tmp_path, scaling_command, hardware, compiler, counts, most
):
    machines.needs(compiler)
    words = write(tmp_path, ELSEWHERE)
    beyond = 1_000_000
    words[4:6] = [f"hardware={hardware}", f"devices=[{','.join(map(str, (*counts, beyond)))}]"]
    done = scaling_command(words)
    assert done.returncode == 0, done.stderr
    records = plans(tmp_path)
    assert len(records) == 3 * (len(counts) + 1) and {record.status for record in records} == {"planned"}
    manifest = json.loads((tmp_path / "out" / f"plan-{hardware}.json").read_text())
    assert manifest["hardware"]["name"] == hardware and manifest["scaling"] == ["weak"]
    for record in records:
        check(record, counts, most)
    for workload in ("linear", "poisson"):  # the same for each device at every count
        alike = [
            record for record in records if record.case.split == "points" and record.case.workload == workload
        ]
        assert (
            len({record.program for record in alike})
            == len({record.compiled_as or record.key for record in alike})
            == 1
        )
    seconds = {
        devices: some(records, split="data")[devices].predicted["seconds"] for devices in (counts[-1], beyond)
    }
    assert seconds[beyond] > seconds[counts[-1]], "a million wait longer for each other"
    assert (
        f"Up to {counts[-1]:,} devices programs were compiled; beyond, from 1,000,000 devices on"
        in done.stdout
    )


def test_a_product_for_which_xla_finds_no_tiles_is_planned_by_cublas(tmp_path, scaling_command):
    machines.needs("jax-cuda12-plugin")
    words = [
        "study=linear",
        "mode=jacrev",
        "batch=whole",
        "sizes.p=8",
        "sizes.o=5",
        "points=5",
        "devices=1",
        "api=jit",
    ]
    done = scaling_command(["plan", *words, "where=True", "hardware=h100", "results=out"])
    assert done.returncode == 0, done.stdout
    assert {record.status for record in plans(tmp_path)} == {"planned"}
    assert all(sum(kernel.get("products", 0) for kernel in record.kernels) for record in plans(tmp_path))


def check(record: Record, counts, most):
    """A record of a machine elsewhere: by its program up to the largest machine, and by formula beyond."""
    devices, predicted = record.case.devices, record.predicted
    assert predicted["by"] == ("program" if devices in counts else "formula")
    assert record.kernels and record.flops and record.peak_bytes and record.hbm_bytes is not None
    assert 0 < predicted["low"] < predicted["seconds"] < predicted["high"] < 1
    if record.case.split == "data" and devices > 1:
        assert sum(message["bytes"] for message in record.messages) >= 16 * 8 * 4 == record.collective_bytes
        assert {message["group"] for message in record.messages} == {devices}
        assert predicted["communication"] > 0
    else:
        assert record.messages == [] and record.collective_bytes == 0
    if devices > most:
        assert record.compiled_as and record.compiled_as != record.key
