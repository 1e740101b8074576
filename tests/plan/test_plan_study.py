"""Tests of `scaling plan` from end to end: programs compiled for this CPU and other hardware, and their predicted times."""

import contextlib
import importlib.metadata
import json
import os
import re
import signal
from types import SimpleNamespace

import jax
import pytest

from scaling.core.case import NotOffered, Refusal
from scaling.core.record import Record
from scaling.plan import compile_worker, hardware
from scaling.results.store import load
from tests.support import machines
from tests.support.commands import COMMAND, command_environment, wait_until
from tests.support.small_plan import STUDY, plans, write

pytestmark = pytest.mark.process

DEVICES = (1, 2, 4, 8)


@pytest.fixture(scope="module")
def planned_study(tmp_path_factory, loaded_command):
    """Plan the small study for this CPU; return its folder, the arguments, the output of the command and the records."""
    folder = tmp_path_factory.mktemp("planned")
    arguments = write(folder)
    done = loaded_command.run([str(COMMAND), *arguments], folder, command_environment(), 100)
    assert done.returncode == 0, done.stderr
    return folder, arguments, done.stdout, plans(folder)


def by_devices(records, **fields):
    """Map each device count to the record of the case with these fields."""
    matches = [r for r in records if all(getattr(r.case, name) == value for name, value in fields.items())]
    assert matches and len({r.case.devices for r in matches}) == len(matches)
    return {r.case.devices: r for r in matches}


def test_every_case_has_exactly_one_planned_or_skipped_record(planned_study):
    records = planned_study[-1]
    assert len({record.key for record in records}) == len(records) == 4 * 4 + 2 + 4
    assert {record.status for record in records} == {"planned", "skipped"}
    assert [record.reason for record in records if record.status == "skipped"] in (
        ["too_large", "not_defined"], ["not_defined", "too_large"]
    )  # fmt: skip


def test_a_planned_record_contains_all_figures_of_its_program(planned_study):
    for record in (record for record in planned_study[-1] if record.status == "planned"):
        environment = record.environment
        assert record.is_prediction and environment["hardware"]["name"] == "cpu"
        assert environment["device_kind"] == "A processor of made up"
        names = (
            "flops", "hbm_bytes", "temp_bytes", "argument_bytes", "output_bytes", "peak_bytes", "compulsory_bytes",
            "program_flops", "program_transcendentals",
        )  # fmt: skip
        assert all(getattr(record, name) is not None for name in names)
        results = 2 if record.case.storage else 1  # results of two steps: one is being moved to the host
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
        if not record.case.storage:  # the model does not predict moving results to the host
            predicted = record.predicted
            assert 0 < predicted["low"] < predicted["seconds"] < predicted["high"]
            assert predicted["by"] == "program"
            assert {"call", "compute", "communication", "waiting", "bound"} < set(predicted)
        stages = [record.trace_seconds, record.lower_seconds, record.compile_seconds]
        assert all(stages), "of this case or of the compiled one"


@pytest.mark.parametrize("split", ["points", "seeds"])
def test_programs_split_over_points_or_seeds_do_not_communicate(planned_study, split):
    for mode in ("jacfwd", "analytic") if split == "points" else ("jacfwd",):
        records = by_devices([r for r in planned_study[-1] if r.status == "planned"], split=split, mode=mode)
        assert tuple(sorted(records)) == DEVICES
        for record in records.values():
            assert record.collective_bytes == 0 and record.messages == []
            assert not any(record.collectives.values())
            assert record.predicted["communication"] == 0
        assert records[8].flops == pytest.approx(records[1].flops / 8, rel=0.1)


def test_programs_split_over_data_all_reduce_the_gradient(planned_study):
    for devices, record in by_devices(planned_study[-1], split="data").items():
        if devices == 1:
            assert record.collective_bytes == 0 and record.messages == []
            continue
        (message,) = record.messages
        assert message == {"kind": "all-reduce", "bytes": 8 * 4 * 4, "group": devices}
        assert record.collective_bytes == 8 * 4 * 4 and record.predicted["communication"] > 0


def test_a_case_that_does_not_fit_in_memory_is_skipped_with_its_figures(planned_study):
    (record,) = [record for record in planned_study[-1] if record.reason == "too_large"]
    # Each device has half of 24 samples with Jacobians of 64 x 16 in float32: the result alone exceeds the memory.
    assert record.output_bytes == 12 * 64 * 16 * 4 > 20_000
    assert record.text.startswith("needs ") and record.text.endswith(", a device has 20.0 kB")
    assert record.predicted is None and record.status == "skipped"


def test_figures_are_multiplied_by_the_number_of_host_offload_steps(planned_study):
    one, two = (
        by_devices([r for r in planned_study[-1] if r.case.storage], storage="host")[devices]
        for devices in (1, 2)
    )
    assert one.argument_bytes == two.argument_bytes, "a step has four points on each device"
    assert one.flops == 2 * two.flops and one.program_flops == 2 * two.program_flops
    assert one.hbm_bytes == 2 * two.hbm_bytes
    assert one.predicted is None and "not predicted" in one.text


def test_padding_of_a_mesh_is_that_of_each_case(planned_study):
    padding = {
        record.case.points: record.padding for record in planned_study[-1] if record.case.split == "both"
    }
    assert padding == {31: pytest.approx(1 / 32), 32: 0.0}


def test_a_case_without_jit_is_not_planned(planned_study):
    (record,) = [record for record in planned_study[-1] if record.reason == "not_defined"]
    assert not record.case.jit and "jit=false" in record.text


def test_the_command_prints_a_summary(planned_study):
    output = planned_study[2]
    assert "mine for this CPU: 21 cases to compile, 0 already done, 1 skipped" in output
    assert "the fastest planned method" in output and "Out of memory on up to " in output
    assert "device-hours" in output


def test_a_second_run_compiles_nothing(planned_study, loaded_command):
    folder, arguments, _, records = planned_study
    files = sorted(path.name for path in (folder / "out").glob("*.jsonl"))
    done = loaded_command.run([str(COMMAND), *arguments], folder, command_environment(), 100)
    assert done.returncode == 0 and "0 cases to compile, 22 already done" in done.stdout
    assert "0 planned, 0 skipped, 0 failed, 22 already done; report: " in done.stdout
    assert sorted(path.name for path in (folder / "out").glob("*.jsonl")) == files and len(
        plans(folder)
    ) == len(records)


def test_device_hours_are_proportional_to_the_replicates(planned_study, loaded_command):
    folder, arguments, output, _ = planned_study
    again = loaded_command.run(
        [str(COMMAND), *arguments, "replicates=3"], folder, command_environment(), 100
    ).stdout
    hours = [
        re.search(r"Measuring the whole study (once|3 times) takes ([\d.]+)", text)
        for text in (output, again)
    ]
    assert [match[1] for match in hours] == ["once", "3 times"]
    assert float(hours[1][2]) == pytest.approx(3 * float(hours[0][2]), rel=0.1), "up to the printed digits"


def test_a_plan_for_a_cpu_without_ceilings_is_rejected_with_the_fix(tmp_path, scaling_command):
    arguments = [argument for argument in write(tmp_path) if not argument.startswith("hardware.ceilings")]
    done = scaling_command(arguments)
    assert done.returncode == 2 and "scaling run study=linear" in done.stderr + done.stdout
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("installed", "message"),
    [
        ((), "the compiler for hardware=.* is not installed: run `scripts/plan`.*plan-gpu"),
        (("jax-cuda13-plugin",), None),
    ],
)
def test_a_missing_compiler_is_rejected_with_the_command_that_installs_it(monkeypatch, installed, message):
    def version(name):
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(importlib.metadata, "version", version)
    if message is None:
        assert hardware.find_compiler(machines.machine()) == (installed[0], "1.0")
        return
    with pytest.raises(Refusal, match=message):
        hardware.find_compiler(machines.machine())


def descendants(process):
    """Return the descendants of a process from the parents in /proc, since the lists of children are incomplete."""
    parents = {}
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as stat:
            parents[pid] = stat.read().rpartition(")")[2].split()[1]

    def below(ancestor):
        return [
            pid for child, parent in parents.items() if parent == ancestor for pid in (child, *below(child))
        ]

    return below(str(process))


def is_running(process):
    """Return whether a process exists and is not a zombie."""
    try:
        with open(f"/proc/{process}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_killed_plan_loses_no_record_and_leaves_no_compile_worker(tmp_path, start_command, scaling_command):
    arguments = write(tmp_path, STUDY.replace("devices: [1, 2, 4, 8]", "devices: [1, 2, 3, 4, 6, 8]"))
    launcher = start_command(arguments)
    wait_until(
        lambda: (
            (tmp_path / "out").exists()
            and sum(record.status == "planned" for record in load(tmp_path / "out").plans) >= 3
        ),
        "three records",
    )
    compile_workers = descendants(launcher.pid)
    assert compile_workers
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait()
    wait_until(lambda: not any(map(is_running, compile_workers)), "the end of the workers", 10.0)
    before = {record.key: record for record in plans(tmp_path)}
    assert 3 <= len(before) < 30
    done = scaling_command(arguments)
    assert done.returncode == 0, done.stderr
    after = plans(tmp_path)
    assert len({record.key for record in after}) == len(after) == 30, (
        "no record is lost and no program is compiled again"
    )
    assert all(before[record.key] == record for record in after if record.key in before)


@pytest.mark.parametrize(
    ("limit", "memory", "available"), [(None, 2e9, 2e9), (1e9, 2e9, 1e9), (2e9, 1e9, 1e9), (1e9, None, 1e9)]
)
def test_a_program_needs_at_most_the_memory_limit_and_the_memory_of_the_hardware(limit, memory, available):
    built = SimpleNamespace(case=SimpleNamespace(memory_limit=limit), hardware=SimpleNamespace(memory=memory))
    for needed, fits in ((available, True), (available + 1, False)):
        compiled = SimpleNamespace(bytes_while_running=needed, format_needs=str)
        assert (compile_worker.BuiltCase._missing_memory(built, compiled) is None) == fits


def test_an_operation_without_an_implementation_is_skipped_as_in_a_run():
    fields = compile_worker.describe_failure(NotImplementedError("no rule\nfor bfloat16"))
    text = "NotImplementedError: no rule for bfloat16"
    assert fields == {"status": "skipped", "reason": "not_offered", "text": text}
    assert compile_worker.describe_failure(NotOffered("of sort"))["reason"] == "not_offered"


def test_a_function_that_calls_the_host_is_skipped_with_the_fix_if_the_gpu_is_absent():
    with pytest.raises(RuntimeError) as lowering:  # as JAX raises it for jax.debug.print
        jax.devices("gpu")
    fields = compile_worker.describe_failure(lowering.value)
    assert (fields["status"], fields["reason"]) == ("skipped", "not_defined")
    assert "calls Python on the host" in fields["text"] and "remove the call" in fields["text"]


def test_a_program_rejected_by_the_compiler_still_has_its_memory_figures():
    needs = {"argument_bytes": 4000, "temp_bytes": None, "output_bytes": 40}
    message = "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 2.5G of 1.0G hbm."
    rejected = compile_worker.describe_rejection(needs, message)
    assert rejected.needs == needs | {"temp_bytes": int(2.5 * 2**30) - 4000 - 40}
    assert str(rejected) == "needs 2.68 GB, a device has 1.07 GB"
    unknown = compile_worker.describe_rejection(needs, "RESOURCE_EXHAUSTED")
    assert unknown.needs["temp_bytes"] is None and str(unknown) == "RESOURCE_EXHAUSTED"


OTHER_HARDWARE = """\
title: Small cases elsewhere
scaling: weak
api: shard_map
grids:
  - {workload: linear, points: 8, sizes: {p: 16, o: 8}, mode: vmap_jacrev}
  - {workload: linear, points: 8, sizes: {p: 16, o: 8}, mode: jacrev, split: data}
  - {workload: poisson, points: 4096, mode: jacrev}
"""


@pytest.mark.parametrize(
    ("hardware", "compiler", "counts"),
    [("v5p", "libtpu", (1, 64, 8960)), ("h100", "jax-cuda12-plugin", (8, 1024))],
)
def test_programs_are_compiled_for_hardware_of_another_machine(
    tmp_path, scaling_command, hardware, compiler, counts
):
    machines.require_compiler(compiler)
    arguments = write(tmp_path, OTHER_HARDWARE)
    arguments[4:6] = [f"hardware={hardware}", f"devices=[{','.join(map(str, counts))}]"]
    done = scaling_command(arguments)
    assert done.returncode == 0, done.stderr
    records = plans(tmp_path)
    assert len(records) == 3 * len(counts) and {record.status for record in records} == {"planned"}
    manifest = json.loads((tmp_path / "out" / f"plan-{hardware}.json").read_text())
    assert manifest["hardware"]["name"] == hardware and manifest["scaling"] == ["weak"]
    for record in records:
        check_plan(record)
    for workload in ("linear", "poisson"):  # each device runs the same program at every device count
        same_workload = [
            record for record in records if record.case.split == "points" and record.case.workload == workload
        ]
        assert (
            len({record.program for record in same_workload})
            == len({record.compiled_as or record.key for record in same_workload})
            == 1
        )


def test_a_matrix_product_without_xla_tiling_is_planned_with_cublas(tmp_path, scaling_command):
    machines.require_compiler("jax-cuda12-plugin")
    arguments = [
        "study=linear",
        "mode=jacrev",
        "batch=whole",
        "sizes.p=8",
        "sizes.o=5",
        "points=5",
        "devices=1",
        "api=jit",
    ]
    done = scaling_command(["plan", *arguments, "where=True", "hardware=h100", "results=out"])
    assert done.returncode == 0, done.stdout
    assert {record.status for record in plans(tmp_path)} == {"planned"}
    assert all(sum(kernel.get("products", 0) for kernel in record.kernels) for record in plans(tmp_path))


def check_plan(record: Record):
    """Check that a planned record contains all figures of its program."""
    devices, predicted = record.case.devices, record.predicted
    assert predicted["by"] == "program"
    assert record.kernels and record.flops and record.peak_bytes and record.hbm_bytes is not None
    assert 0 < predicted["low"] < predicted["seconds"] < predicted["high"] < 1
    if record.case.split == "data" and devices > 1:
        assert sum(message["bytes"] for message in record.messages) >= 16 * 8 * 4 == record.collective_bytes
        assert {message["group"] for message in record.messages} == {devices}
        assert predicted["communication"] > 0
    else:
        assert record.messages == [] and record.collective_bytes == 0
