"""Whatever dies, every case ends as a record, and no finished record is lost: real processes, tiny studies."""

import os
import random
import re
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from scaling.core.store import latest, load

pytestmark = pytest.mark.process

HEAD = """
import ctypes
import time

import scaling.core.inputs

SIZES = {"k": 3}
VARIANTS = (
    "plain", "crash", "leave", "sleep", "raise", "nan", "wrong", "wrong_once", "loud", "parent", "slow", "unreferenced",
    "wrong_unreferenced", "hungry", "aborting",
)
X = scaling.core.inputs.uniform(3, low=0.5)
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
        os.system("sleep 20 &")
return smooth(x)
"""
RETURNS = 'Workload(function=function, points={"x": X}, reference=None if "unreferenced" in case.variant else reference)'


@pytest.fixture
def mine(write_workload, write_study):
    """The words that run some of the variants above."""
    write_workload(head=HEAD, body=BODY, returns=RETURNS)

    def study(*variants, **fields):
        told = {"workload": "mine", "points": 6, "api": "jit", "variant": f"[{', '.join(variants)}]"} | fields
        return write_study("{" + ", ".join(f"{k}: {v}" for k, v in told.items()) + "}")

    return study


def folder(tmp_path):
    return tmp_path / "results" / "mine"


def by_variant(tmp_path):
    return {record.case.variant: record for record in latest(load(folder(tmp_path)).records)}


def workers(tmp_path):
    """The workers that are alive and at home in this test's folder."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            at_home = process.name.isdigit() and (process / "cwd").readlink() == tmp_path
            alive = at_home and (process / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
            if alive and b"scaling.worker" in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found


def gone(tmp_path, within=5.0):
    deadline = time.monotonic() + within
    while left := workers(tmp_path):
        if time.monotonic() > deadline:
            return left
        time.sleep(0.05)
    return []


def await_line(process, pattern):
    """Read what a running command says up to the first line with this in it; those lines."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if re.search(pattern, line):
            return lines
    raise AssertionError(f"{pattern!r} was never said: {''.join(lines)} {process.stderr.read()}")


@pytest.mark.default
def test_every_way_of_going_wrong_is_a_record_with_its_reason_and_the_other_cases_are_ok(
    mine, scaling_command, tmp_path
):
    failing = ("crash", "leave", "sleep", "raise", "nan", "wrong", "wrong_once", "wrong_unreferenced")
    words = mine("plain", "unreferenced", *failing)
    done = scaling_command([*words, "case_seconds=6"], env={"SOME_API_KEY": "do-not-tell-this"})
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == 1
    records = by_variant(tmp_path)
    assert {name: (record.status, record.reason) for name, record in records.items()} == {
        "plain": ("ok", None), "unreferenced": ("ok", None), "crash": ("failed", "killed"), "leave": ("failed", "killed"),
        "sleep": ("failed", "timeout"), "raise": ("failed", "error"),
        "nan": ("failed", "not_finite"), "wrong": ("failed", "wrong_answer"), "wrong_once": ("failed", "wrong_answer"),
        "wrong_unreferenced": ("failed", "wrong_answer"),
    }  # fmt: skip
    told = {name: record.text or "" for name, record in records.items()}
    assert f"signal {signal.SIGSEGV.value}" in told["crash"]
    assert "6 s (case_seconds)" in told["sleep"]
    assert "ValueError: no good: data.bin and <SOME_API_KEY>" in told["raise"]
    assert (
        records["wrong"].error == pytest.approx(1e-3, rel=0.2)
        and records["wrong"].error > 10 * records["wrong"].tolerance
    )
    assert re.search(r"point \d is wrong", told["wrong_once"]) and len(set(told.values())) > 7
    assert all(not record.seconds for record in records.values() if record.status == "failed"), (
        "no time of a wrong answer"
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
    assert gone(tmp_path) == []


def little_memory():
    """For a command and its workers: 3 GB each, so that a test need not fill the machine."""
    resource.setrlimit(resource.RLIMIT_DATA, (3 * 2**30, 3 * 2**30))


@pytest.mark.sample(2)
@pytest.mark.parametrize("variant", ["hungry", "aborting"])
def test_what_takes_all_memory_has_failed_of_it_and_bigger_neighbours_are_skipped(
    variant, mine, scaling_command, tmp_path
):
    """A case that asks for ever more, and one that dies of it in native code: each is the key that no larger one could pass."""
    words = mine("plain", variant, points="[6, 12]")
    seed = next(
        seed for seed in range(50) if order_of(seed, 4).index(1) < order_of(seed, 4).index(3)
    )  # the smaller first
    done = scaling_command([*words, f"order_seed={seed}"], preexec_fn=little_memory)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    records = {(r.case.variant, r.case.points): r for r in load(folder(tmp_path)).records}
    assert {where: (r.status, r.reason) for where, r in records.items()} == {
        ("plain", 6): ("ok", None), ("plain", 12): ("ok", None),
        (variant, 6): ("failed", "out_of_memory"), (variant, 12): ("skipped", "dominated"),
    }  # fmt: skip
    assert records[variant, 6].key in records[variant, 12].text
    again = scaling_command([*words, "dry_run=true"]).stdout
    assert "2 to run, 0 to skip, 2 done before" in again, "both are asked again"


def order_of(seed, count):
    """In which order that many cases run."""
    places = list(range(count))
    random.Random(seed).shuffle(places)
    return places


def test_what_a_workload_writes_is_not_taken_for_an_event(mine, scaling_command, tmp_path):
    """Not by Python's print alone: a library in C, or a child, writes to the descriptor itself."""
    done = scaling_command(mine("plain", "loud", data_seed="[0, 1]"))
    assert {name: (record.status, record.text) for name, record in by_variant(tmp_path).items()} == {
        "plain": ("ok", None), "loud": ("ok", None),
    }  # fmt: skip
    assert len(load(folder(tmp_path)).records) == 4
    assert (done.returncode, done.stderr) == (0, "")


def test_a_child_that_a_workload_leaves_behind_is_not_waited_for(mine, scaling_command, tmp_path):
    began = time.monotonic()
    done = scaling_command(mine("plain", "parent"))
    assert done.returncode == 0, done.stderr
    assert {record.status for record in by_variant(tmp_path).values()} == {"ok"}
    assert time.monotonic() - began < 16, "the child sleeps for 20 s"


def test_the_point_that_is_wrong_is_named(mine, scaling_command, tmp_path):
    import numpy as np

    from scaling.core.inputs import draw_rows, uniform

    assert scaling_command(mine("wrong_once")).returncode == 1
    worst = int(np.argmax(draw_rows(uniform(3, low=0.5), 0, "x", 0, 6)[:, 0]))
    assert f"point {worst} is wrong" in by_variant(tmp_path)["wrong_once"].text


@pytest.mark.default
def test_what_failed_runs_again_and_what_is_good_does_not(mine, scaling_command, tmp_path):
    words = mine("plain", "raise")
    assert scaling_command(words).returncode == 1
    again = scaling_command(words)
    assert again.returncode == 1 and "1 cases to run, 1 done before" in again.stdout
    attempts = sorted((r.case.variant, r.attempt) for r in load(folder(tmp_path)).records)
    assert attempts == [("plain", 1), ("raise", 1), ("raise", 2)]


def finished(text):
    return {
        re.sub(r"^\[\d+/\d+\] ok +|  \S+ \S+$", "", line)
        for line in text.splitlines()
        if re.match(r"\[\d+/\d+\] ok", line)
    }


def test_kill_9_at_any_moment_loses_no_finished_record(mine, start_command, scaling_command, tmp_path):
    words = mine("plain", "slow", data_seed="[0, 1]", dtype="[float32, float64]")
    moments = random.Random(20261121)
    kept = set()
    for kill, line in (
        (os.kill, None),
        (os.killpg, "to run"),
        (os.kill, r"\[1/"),
        (os.killpg, r"\[2/"),
        (os.kill, r"\[1/"),
    ):
        process = start_command(words)
        said = []
        if line is not None:
            try:
                said = await_line(process, line)
            except AssertionError:
                break  # nothing is left to run
        time.sleep(moments.uniform(0.0, 0.6))
        kill(process.pid, signal.SIGKILL)  # the launcher alone, or all that is in its group
        said.append(process.communicate(timeout=60)[0])
        assert gone(tmp_path) == [], "a worker outlived its launcher"
        loaded = load(folder(tmp_path))
        there = {record.key for record in loaded.records if record.good}
        assert kept <= there
        assert len(finished("".join(said))) <= len(there - kept), (
            "a record that was called finished is not there"
        )
        kept = there
    completed = scaling_command(words)
    assert completed.returncode == 0, completed.stderr
    assert f"{8 - len(kept)} cases to run, {len(kept)} done before" in completed.stdout
    good = [record.identity for record in load(folder(tmp_path)).records if record.good]
    assert len(good) == len(set(good)) == 8, "one good record a case"
    assert "0 cases to run, 8 done before" in scaling_command(words).stdout
    assert len(load(folder(tmp_path)).records) == 8


@pytest.mark.parametrize("kill", [os.kill, os.killpg], ids=["the launcher", "its process group"])
def test_a_worker_does_not_outlive_its_launcher_however_long_its_case_takes(
    kill, mine, start_command, tmp_path
):
    process = start_command(mine("sleep"))
    await_line(process, "to run")
    deadline = time.monotonic() + 30
    while not workers(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1.5)  # it is asleep by now
    assert len(workers(tmp_path)) == 1
    kill(process.pid, signal.SIGKILL)
    left = gone(tmp_path)
    for worker in left:
        os.kill(worker, signal.SIGKILL)
    assert left == []


@pytest.mark.sample(2)
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_ctrl_c_keeps_every_finished_record_says_how_to_go_on_and_leaves_no_worker(
    sent, mine, start_command, tmp_path
):
    process = start_command([*mine("plain", "sleep"), "order_seed=0"])
    await_line(process, r"to run")
    deadline = time.monotonic() + 60
    while not any(r.good for r in (load(folder(tmp_path)).records)) and time.monotonic() < deadline:
        time.sleep(0.05)
        if len(workers(tmp_path)) and time.monotonic() > deadline - 55:
            break  # the one that sleeps may come first
    os.killpg(process.pid, sent)
    _, complaints = process.communicate(timeout=30)
    assert process.returncode == 130
    assert len(complaints.splitlines()) == 1 and "Traceback" not in complaints
    assert "every finished record is kept" in complaints and "same command goes on" in complaints
    assert gone(tmp_path) == []
    assert load(folder(tmp_path)).damaged == []
    assert all(record.good for record in load(folder(tmp_path)).records), "what was stopped has not failed"


def test_ctrl_c_twice_leaves_at_once_without_a_traceback_or_a_worker(mine, start_command, tmp_path):
    process = start_command([*mine("plain", "sleep"), "order_seed=0"])
    await_line(process, r"to run")
    deadline = time.monotonic() + 60
    while not workers(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    for _ in range(2):
        os.killpg(process.pid, signal.SIGINT)
    _, complaints = process.communicate(timeout=30)
    assert process.returncode in (130, -signal.SIGINT)  # a shell says 130 of both
    assert "every finished record is kept" in complaints and "Traceback" not in complaints
    assert gone(tmp_path) == [] and load(folder(tmp_path)).damaged == []


@pytest.mark.default
def test_a_second_run_in_one_folder_waits_for_the_first_and_finds_its_work_done(
    mine, start_command, scaling_command, tmp_path
):
    words = mine("plain", "slow")
    first = start_command(words)
    await_line(first, "to run")
    second = scaling_command(words)
    while second.returncode == 2 and "another run is working" in second.stderr and first.poll() is None:
        second = scaling_command(words)  # it waits for some seconds, and says so when these were too few
    assert first.wait(timeout=60) == 0
    if second.returncode == 2:
        second = scaling_command(words)
    assert second.returncode == 0 and "0 cases to run, 2 done before" in second.stdout, second.stderr
    assert len(load(folder(tmp_path)).records) == 2


def test_a_damaged_record_is_named_on_the_screen_and_its_case_runs_again(mine, scaling_command, tmp_path):
    words = mine("plain", data_seed="[0, 1, 2]")
    assert scaling_command(words).returncode == 0
    [path] = folder(tmp_path).glob("*.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1] + lines[2][:150])
    before = load(folder(tmp_path)).records
    again = scaling_command(words)
    assert again.returncode == 0 and "Traceback" not in again.stderr
    assert f"damaged, passed over: {path.name}:3: " in again.stdout
    assert "1 cases to run, 2 done before" in again.stdout
    assert path.read_bytes() == lines[0] + lines[1] + lines[2][:150], "another's file is never touched"
    assert len(load(folder(tmp_path)).records) == 3 and load(folder(tmp_path)).records[:2] == before


@pytest.mark.parametrize("bytes_there", [100, 4000])
def test_a_disk_that_is_full_ends_the_run_in_one_line_and_keeps_what_was_there(
    bytes_there, mine, scaling_command, tmp_path
):
    """No file may grow beyond so many bytes: too few for the study's list, or for the third record."""
    words = mine("plain", data_seed="[0, 1, 2, 3]")

    def full():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_there, resource.RLIM_INFINITY))

    done = scaling_command(words, preexec_fn=full)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
    assert re.search("cannot write.*File too large.*same command goes on", done.stderr)
    loaded = load(folder(tmp_path))
    records, damaged = loaded.records, loaded.damaged
    assert damaged == [] and all(record.status == "ok" for record in records) and len(records) < 4
    assert bool(records) == (bytes_there > 100)
    assert gone(tmp_path) == []
    after = scaling_command(words)
    assert (
        after.returncode == 0
        and f"{4 - len(records)} cases to run, {len(records)} done before" in after.stdout
    )


def test_a_command_that_is_the_first_process_of_a_container_runs_like_any_other(mine, tmp_path):
    """There its worker's parent has the number 1, as an orphan's has elsewhere."""
    from tests.support.commands import COMMAND, SLOWEST, command_environment

    unshare = shutil.which("unshare")
    alone = [str(unshare), "--pid", "--fork", "--mount-proc"]
    if not unshare or subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to make a namespace of processes")
    done = subprocess.run(
        [*alone, str(COMMAND), *mine("plain")], cwd=tmp_path, env=command_environment(), capture_output=True, text=True,
        timeout=SLOWEST, check=False,
    )  # fmt: skip
    assert by_variant(tmp_path)["plain"].status == "ok", by_variant(tmp_path)["plain"].text
    assert done.returncode == 0, done.stderr
