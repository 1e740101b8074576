"""Tests of faults in real processes: every case ends as a record, and no finished record is lost."""

import os
import random
import re
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from scaling.core.formatting import format_count
from scaling.core.inputs import draw_rows
from scaling.core.workload import uniform
from scaling.results.store import latest_records, load
from tests.support.commands import COMMAND, COMMAND_TIMEOUT, command_environment, wait_until

pytestmark = pytest.mark.process

HEAD = """
import ctypes
import time

import scaling.core.inputs
import scaling.core.workload

SIZES = {"k": 3}
VARIANTS = (
    "plain", "crash", "leave", "sleep", "raise", "nan", "wrong", "wrong_once", "loud", "parent", "slow", "unreferenced",
    "wrong_unreferenced", "hungry", "aborting",
)
X = scaling.core.workload.uniform(3, low=0.5)
SEEN = np.sort(scaling.core.inputs.draw_rows(X, 0, "x", 0, 6)[:, 0])


def smooth(x):
    return jnp.sin(x)[:2] * x[2]


@jax.custom_jvp
def wrong(x):
    return smooth(x)


@wrong.defjvp
def _(x, v):
    y, slope = jax.jvp(smooth, x, v)
    return y, slope * 1.001


@jax.custom_jvp
def wrong_once(x):
    return smooth(x)


@wrong_once.defjvp
def _(x, v):
    y, slope = jax.jvp(smooth, x, v)
    return y, slope * jnp.where(x[0][0] > (SEEN[-1] + SEEN[-2]) / 2, 1.01, 1.0)


def reference(inputs):
    x = inputs["x"]
    derivative = np.zeros((len(x), 2, 3))
    for i in (0, 1):
        derivative[:, i, i] = np.cos(x[:, i]) * x[:, 2]
        derivative[:, i, 2] = np.sin(x[:, i])
    return Reference(np.sin(x[:, :2]) * x[:, 2:], derivative)
"""
BODY = """
if case.variant.startswith("wrong"):
    return wrong_once(x) if case.variant == "wrong_once" else wrong(x)
if case.variant == "nan":
    return smooth(x) + jnp.sqrt(-x[0])
if RUNNING:
    if case.variant == "crash":
        ctypes.string_at(0)
    if case.variant == "leave":
        sys.exit(0)
    if case.variant == "sleep":
        time.sleep(1000)
    if case.variant == "hungry":
        held = []
        while True:
            held.append(np.ones(2**24))
    if case.variant == "aborting":
        os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\\n")
        os.abort()
    if case.variant == "slow":
        time.sleep(0.3)
    if case.variant == "raise":
        raise ValueError(f"no good: /home/ada/secret/data.bin and {os.environ.get('SOME_API_KEY')}")
    if case.variant == "loud":
        os.write(1, b'5\\n{"event": "end"}\\n"x"\\nno line end')
        print("printed")
    if case.variant == "parent":
        os.system("sleep 3600 &")
return smooth(x)
"""
RETURNS = 'Workload(function=function, points={"x": X}, reference=None if "unreferenced" in case.variant else reference)'


@pytest.fixture
def command(write_workload, write_study):
    """Return the arguments that run some of the variants above."""
    write_workload(head=HEAD, body=BODY, returns=RETURNS)

    def build(*variants, **fields):
        study = {"workload": "mine", "points": 6, "api": "jit", "variant": f"[{', '.join(variants)}]"}
        return write_study(**study | fields)

    return build


def folder(tmp_path):
    return tmp_path / "results" / "mine"


def records_by_variant(tmp_path):
    return {record.case.variant: record for record in latest_records(load(folder(tmp_path)).records)}


def workers(tmp_path):
    """Return the process ids of live workers whose working directory is the test's folder."""
    pids = []
    for process in Path("/proc").iterdir():
        try:
            in_folder = process.name.isdigit() and (process / "cwd").readlink() == tmp_path
            alive = in_folder and (process / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
            command = (process / "cmdline").read_bytes()
            if alive and b"scaling.worker" in command:
                pids.append(int(process.name))
        except OSError:
            continue
    return pids


def remaining_workers(tmp_path, seconds=5.0):
    deadline = time.monotonic() + seconds
    while remaining := workers(tmp_path):
        if time.monotonic() > deadline:
            return remaining
        time.sleep(0.05)
    return []


def await_line(process, pattern):
    """Read the output of a running command up to the first line that matches, and return the lines."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if re.search(pattern, line):
            return lines
    raise AssertionError(f"{pattern!r} was never printed: {''.join(lines)} {process.stderr.read()}")


@pytest.mark.default
def test_every_fault_is_recorded_with_its_reason_and_the_other_cases_are_ok(
    command, scaling_command, tmp_path
):
    failing = ("crash", "leave", "sleep", "raise", "nan", "wrong", "wrong_once", "wrong_unreferenced")
    arguments = command("plain", "unreferenced", *failing)
    done = scaling_command([*arguments, "case_seconds=6"], env={"SOME_API_KEY": "do-not-tell-this"})
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == 1
    records = records_by_variant(tmp_path)
    assert {name: (record.status, record.reason) for name, record in records.items()} == {
        "plain": ("ok", None), "unreferenced": ("ok", None), "crash": ("failed", "killed"), "leave": ("failed", "killed"),
        "sleep": ("failed", "timeout"), "raise": ("failed", "error"),
        "nan": ("failed", "not_finite"), "wrong": ("failed", "wrong_answer"), "wrong_once": ("failed", "wrong_answer"),
        "wrong_unreferenced": ("failed", "wrong_answer"),
    }  # fmt: skip
    texts = {name: record.text or "" for name, record in records.items()}
    assert f"signal {signal.SIGSEGV.value}" in texts["crash"]
    assert "6 s (case_seconds)" in texts["sleep"]
    assert "ValueError: no good: data.bin and <SOME_API_KEY>" in texts["raise"]
    assert records["wrong"].error == pytest.approx(1e-3, rel=0.2)
    assert records["wrong"].error > 10 * records["wrong"].tolerance
    worst = int(np.argmax(draw_rows(uniform(3, low=0.5), 0, "x", 0, 6)[:, 0]))
    assert f"point {worst} is wrong" in texts["wrong_once"] and len(set(texts.values())) > 7
    assert all(not record.seconds for record in records.values() if record.status == "failed"), (
        "a failed case has no times"
    )
    for path in tmp_path.rglob("*"):
        if (
            path.is_file()
            and "my_conf" not in path.parts
            and path.suffix in (".jsonl", ".json", ".html", ".md", ".csv")
        ):
            text = path.read_text()
            assert "do-not-tell-this" not in text and "/home/ada" not in text and str(tmp_path) not in text, (
                path
            )
    assert "do-not-tell-this" not in done.stdout + done.stderr
    assert remaining_workers(tmp_path) == []


def limit_memory():
    """Limit the command and its workers to 3 GB each, so that a test does not fill the machine."""
    resource.setrlimit(resource.RLIMIT_DATA, (3 * 2**30, 3 * 2**30))


@pytest.mark.sample(2)
@pytest.mark.parametrize("variant", ["hungry", "aborting"])
def test_out_of_memory_is_recorded_and_larger_cases_are_skipped(variant, command, scaling_command, tmp_path):
    """One variant allocates memory without end; the other aborts in native code after a failed allocation."""
    arguments = command("plain", variant, points="[6, 12]")
    seed = next(
        seed for seed in range(50) if shuffled_order(seed, 4).index(1) < shuffled_order(seed, 4).index(3)
    )  # the smaller case first
    done = scaling_command([*arguments, f"order_seed={seed}"], preexec_fn=limit_memory)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    records = {(r.case.variant, r.case.points): r for r in load(folder(tmp_path)).records}
    assert {key: (r.status, r.reason) for key, r in records.items()} == {
        ("plain", 6): ("ok", None), ("plain", 12): ("ok", None),
        (variant, 6): ("failed", "out_of_memory"), (variant, 12): ("skipped", "dominated"),
    }  # fmt: skip
    assert records[variant, 6].key in records[variant, 12].text
    again = scaling_command([*arguments, "dry_run=true"]).stdout
    assert "2 to run, 0 to skip, 2 already done" in again, "both run again"


def shuffled_order(seed, count):
    """Return the order in which that many cases run."""
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return order


def test_output_and_child_processes_of_a_workload_do_not_affect_a_run(command, scaling_command, tmp_path):
    """One writes lines like events to a file descriptor, as a C library could; the other leaves a child that sleeps for an hour."""
    done = scaling_command(command("plain", "loud", "parent"))  # times out if it waits for the child
    assert {name: (record.status, record.text) for name, record in records_by_variant(tmp_path).items()} == {
        "plain": ("ok", None), "loud": ("ok", None), "parent": ("ok", None),
    }  # fmt: skip
    assert len(load(folder(tmp_path)).records) == 3
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.default
def test_failed_cases_run_again_and_good_ones_do_not(command, scaling_command, tmp_path):
    arguments = command("plain", "raise")
    assert scaling_command(arguments).returncode == 1
    again = scaling_command(arguments)
    assert again.returncode == 1 and "1 case to run, 1 already done" in again.stdout
    attempts = sorted((r.case.variant, r.attempt) for r in load(folder(tmp_path)).records)
    assert attempts == [("plain", 1), ("raise", 1), ("raise", 2)]


def finished_labels(text):
    return {
        re.sub(r"^\[\d+/\d+\] ok +|  \S+ \S+$", "", line)
        for line in text.splitlines()
        if re.match(r"\[\d+/\d+\] ok", line)
    }


def test_sigkill_at_any_moment_loses_no_finished_record(command, start_command, scaling_command, tmp_path):
    arguments = command("plain", "slow", data_seed="[0, 1]", dtype="[float32, float64]")
    rng = random.Random(20261121)
    kept = set()
    for kill, line in ((os.kill, None), (os.killpg, "to run"), (os.kill, r"\[1/"), (os.killpg, r"\[2/")):
        process = start_command(arguments)
        output = []
        if line is not None:
            try:
                output = await_line(process, line)
            except AssertionError:
                break  # every case has run
        time.sleep(rng.uniform(0.0, 0.6))
        kill(process.pid, signal.SIGKILL)  # only the launcher, or its whole process group
        output.append(process.communicate(timeout=60)[0])
        assert remaining_workers(tmp_path) == [], "a worker outlived its launcher"
        loaded = load(folder(tmp_path))
        present = {record.key for record in loaded.records if record.status != "failed"}
        assert kept <= present
        assert len(finished_labels("".join(output))) <= len(present - kept), (
            "a record that was reported is missing"
        )
        kept = present
    completed = scaling_command(arguments)
    assert completed.returncode == 0, completed.stderr
    assert f"{format_count(8 - len(kept), 'case')} to run, {len(kept)} already done" in completed.stdout
    good = [record.identity for record in load(folder(tmp_path)).records if record.status != "failed"]
    assert len(good) == len(set(good)) == 8, "one good record per case"
    assert "0 cases to run, 8 already done" in scaling_command(arguments).stdout
    assert len(load(folder(tmp_path)).records) == 8


@pytest.mark.parametrize("kill", [os.kill, os.killpg], ids=["the launcher", "its process group"])
def test_a_busy_worker_does_not_outlive_its_launcher(kill, command, start_command, tmp_path):
    process = start_command(command("sleep"))
    await_line(process, "to run")
    wait_until(lambda: workers(tmp_path), "a worker")
    time.sleep(1.5)  # the case sleeps now
    assert len(workers(tmp_path)) == 1
    kill(process.pid, signal.SIGKILL)
    remaining = remaining_workers(tmp_path)
    for worker in remaining:
        os.kill(worker, signal.SIGKILL)
    assert remaining == []


@pytest.mark.sample(2)
@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_ctrl_c_keeps_finished_records_explains_how_to_resume_and_ends_workers(
    signal_number, command, start_command, tmp_path
):
    process = start_command([*command("plain", "sleep"), "order_seed=0"])
    await_line(process, r"to run")
    later = time.monotonic() + 5  # the sleeping case may come first
    wait_until(
        lambda: load(folder(tmp_path)).records or (workers(tmp_path) and time.monotonic() > later), "a case"
    )
    os.killpg(process.pid, signal_number)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert len(stderr.splitlines()) == 1 and "Traceback" not in stderr
    assert "every finished record is kept" in stderr and "repeat the command to continue" in stderr
    assert remaining_workers(tmp_path) == []
    assert load(folder(tmp_path)).damaged == []
    assert all(record.status != "failed" for record in load(folder(tmp_path)).records), (
        "an interrupted case is not a failure"
    )


def test_ctrl_c_twice_exits_at_once_without_a_traceback_or_a_worker(command, start_command, tmp_path):
    process = start_command([*command("plain", "sleep"), "order_seed=0"])
    await_line(process, r"to run")
    wait_until(lambda: workers(tmp_path), "a worker")
    for _ in range(2):
        os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode in (130, -signal.SIGINT)  # a shell reports 130 for both
    assert "every finished record is kept" in stderr and "Traceback" not in stderr
    assert remaining_workers(tmp_path) == [] and load(folder(tmp_path)).damaged == []


@pytest.mark.default
def test_a_second_run_in_the_same_folder_waits_for_the_first(
    command, start_command, scaling_command, tmp_path
):
    arguments = command("plain", "slow")
    first = start_command(arguments)
    await_line(first, "to run")
    second = scaling_command(arguments)
    while second.returncode == 2 and "another run is working" in second.stderr and first.poll() is None:
        second = scaling_command(arguments)  # it waits for some seconds, then exits with status 2
    assert first.wait(timeout=60) == 0
    if second.returncode == 2:
        second = scaling_command(arguments)
    assert second.returncode == 0 and "0 cases to run, 2 already done" in second.stdout, second.stderr
    assert len(load(folder(tmp_path)).records) == 2


def test_a_damaged_record_is_reported_and_its_case_runs_again(command, scaling_command, tmp_path):
    arguments = command("plain", data_seed="[0, 1, 2]")
    assert scaling_command(arguments).returncode == 0
    [path] = folder(tmp_path).glob("*.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1] + lines[2][:150])
    before = load(folder(tmp_path)).records
    again = scaling_command(arguments)
    assert again.returncode == 0 and "Traceback" not in again.stderr
    assert f"damaged, ignored: {path.name}:3: " in again.stdout
    assert "1 case to run, 2 already done" in again.stdout
    assert path.read_bytes() == lines[0] + lines[1] + lines[2][:150], "existing files are not modified"
    assert len(load(folder(tmp_path)).records) == 3 and load(folder(tmp_path)).records[:2] == before


@pytest.mark.thin(2, "thorough")
@pytest.mark.parametrize("max_bytes", [100, 4000])
def test_a_full_disk_ends_the_run_in_one_line_and_keeps_existing_records(
    max_bytes, command, scaling_command, tmp_path
):
    """The limit of the file size is too small for the study file, or for the third record."""
    arguments = command("plain", data_seed="[0, 1, 2, 3]")

    def limit_file_size():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, resource.RLIM_INFINITY))

    done = scaling_command(arguments, preexec_fn=limit_file_size)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
    assert re.search("cannot continue: .*File too large; correct this, and repeat the command", done.stderr)
    loaded = load(folder(tmp_path))
    records, damaged = loaded.records, loaded.damaged
    assert damaged == [] and all(record.status == "ok" for record in records) and len(records) < 4
    assert bool(records) == (max_bytes > 100)
    assert remaining_workers(tmp_path) == []
    after = scaling_command(arguments)
    assert after.returncode == 0
    assert f"{format_count(4 - len(records), 'case')} to run, {len(records)} already done" in after.stdout


def test_a_command_with_process_id_1_in_a_container_runs_normally(command, tmp_path):
    """The parent of its worker is then process 1, which is otherwise the parent of an orphan."""
    unshare = shutil.which("unshare")
    unshared = [str(unshare), "--pid", "--fork", "--mount-proc"]
    if not unshare or subprocess.run([*unshared, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to make a namespace of processes")
    done = subprocess.run(
        [*unshared, str(COMMAND), *command("plain")], cwd=tmp_path, env=command_environment(), capture_output=True, text=True,
        timeout=COMMAND_TIMEOUT, check=False,
    )  # fmt: skip
    assert records_by_variant(tmp_path)["plain"].status == "ok", records_by_variant(tmp_path)["plain"].text
    assert done.returncode == 0, done.stderr
