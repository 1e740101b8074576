"""Tests of cores: the cores that a process may use, claims of cores by studies, and binding workers to them."""

import contextlib
import functools
import os
import socket
import subprocess
import sys
import threading
import time
import types

import pytest

from scaling import jax_worker, worker
from scaling.cli import main
from scaling.core import environment, run_case
from scaling.core.timing import Sampling
from scaling.launcher import cores
from scaling.results import store
from scaling.results.read_record import parse_record

CORES = cores.usable_cores()
needs_two_cores = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")


def test_usable_cores_are_those_of_the_inherited_affinity():
    assert set(CORES) <= os.sched_getaffinity(0)
    assert len(CORES) == len(set(CORES)) >= 1


def test_one_core_per_physical_core_comes_before_its_siblings(monkeypatch):
    siblings = {0: "0,4", 1: "1,5", 4: "0,4", 5: "1,5"}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(siblings))
    read_siblings = lambda path: next((siblings[core] for core in siblings if f"cpu{core}/" in path), None)  # noqa: E731
    monkeypatch.setattr(cores, "read_text", read_siblings)
    assert cores.usable_cores() == [0, 1, 4, 5]
    siblings.update({0: "0-1", 1: "0-1", 4: "4-5", 5: "4-5"})
    assert cores.usable_cores() == [0, 4, 1, 5]


JOB = "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7"
QUOTAS = [  # files, usable cores of four
    *(
        ({"/sys/fs/cgroup/cpu.max": quota}, usable)
        for quota, usable in (
            ("max 100000", 4), ("200000 100000", 2), ("250000 100000", 2), ("50000 100000", 1), (None, 4), ("", 4),
        )
    ),
    ({  # the quota of every parent of the own cgroup applies
        "/proc/self/cgroup": f"0::{JOB[14:]}/step_0/user/task_0", f"{JOB}/cpu.max": "300000 100000",
        f"{JOB}/step_0/cpu.max": "max 100000", "/sys/fs/cgroup/other/cpu.max": "100000 100000",
    }, 3),
    *(
        ({  # version 1
            "/proc/self/cgroup": f"4:memory:/\n2:{mount}:/job\n0::/",
            f"/sys/fs/cgroup/{mount}/job/cpu.cfs_quota_us": quota, f"/sys/fs/cgroup/{mount}/job/cpu.cfs_period_us": "100000",
        }, usable)
        for quota, usable in (("-1", 4), ("200000", 2), ("50000", 1))
        for mount in ("cpu", "cpu,cpuacct")
    ),
]  # fmt: skip


@pytest.mark.parametrize(("files", "usable"), QUOTAS)
def test_a_container_has_no_more_cores_than_its_cpu_quota(monkeypatch, files, usable):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3, 5, 7})
    for module in (cores, environment):
        monkeypatch.setattr(module, "read_text", files.get)
    assert cores.usable_cores() == [2, 3, 5, 7][:usable]


@pytest.fixture(autouse=True)
def separate_claims(monkeypatch):
    """Use names of claims that differ from those of studies that run at the same time."""
    monkeypatch.setattr(cores, "_PREFIX", f"ad-scaling/test/{os.getpid()}/{time.monotonic_ns()}/")


def test_two_owners_never_claim_the_same_core():
    waits = []
    with cores.claim_cores(1, "one") as first, cores.claim_cores(1, "two", waits.append) if CORES[1:] else (
        contextlib.nullcontext([])) as second:  # fmt: skip
        assert not set(first) & set(second)
    assert not waits


def test_a_claim_waits_for_free_cores_and_reports_it_once():
    waits, results = [], []

    def claim_all():
        with cores.claim_cores(len(CORES), "two", waits.append) as claimed:
            results.append(claimed)

    with cores.claim_cores(1, "one"):
        thread = threading.Thread(target=claim_all)
        thread.start()
        time.sleep(3 * cores._POLL_SECONDS)
        assert not results
    thread.join(timeout=30)
    assert results == [sorted(CORES)] and len(waits) == 1
    assert f"holds them (process {os.getpid()}), for up to 24 h 00 min; Ctrl-C or" in waits[0]


def test_claims_of_one_owner_share_cores_if_none_are_free():
    with cores.claim_cores(len(CORES), "one") as first, cores.claim_cores(len(CORES), "one") as second:
        assert first == second == sorted(CORES)


def test_claiming_more_cores_than_exist_claims_all():
    with cores.claim_cores(len(CORES) + 1, "one") as claimed:
        assert claimed == sorted(CORES)


def test_the_claim_of_a_killed_process_is_released():
    code = f"from scaling.launcher import cores; cores._PREFIX = {cores._PREFIX!r}; claim = cores.claim_cores({len(CORES)}, 'dead'); "
    code += "claim.__enter__(); print('held', flush=True); import time; time.sleep(600)"
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    assert not cores._is_free(str(CORES[0]))
    holder.kill()
    holder.wait()
    with cores.claim_cores(len(CORES), "one") as claimed:
        assert claimed == sorted(CORES)


def test_claims_of_one_node_share_cores_and_another_node_on_this_host_gets_others():
    count = max(1, len(CORES) // 2)
    with (
        cores.claim_cores(count, "one", node="a") as first,
        cores.claim_cores(count, "one", node="a") as same,
        cores.claim_cores(count, "one", node="b") as other,
    ):
        assert first == same
        assert len(CORES) == 1 or not set(other) & set(first)


@needs_two_cores
def test_a_claim_waits_for_a_core_of_another_study_before_sharing_its_own():
    with cores.claim_cores(len(CORES) - 1, "one", node="a"), contextlib.ExitStack() as other:
        other.enter_context(cores.claim_cores(1, "two"))
        threading.Timer(3 * cores._POLL_SECONDS, other.close).start()
        with cores.claim_cores(1, "one", node="b", timeout=30) as claimed:
            assert cores._is_free(f"{claimed[0]}/two") and not cores._is_free(f"{claimed[0]}/one/b")


@needs_two_cores
@pytest.mark.parametrize("processes", [1, 2])
def test_each_process_of_a_case_is_bound_to_its_own_cores(processes):
    before, two = os.sched_getaffinity(0), CORES[:2]
    job = {
        "platform": "cpu",
        "bind": True,
        "cores": two,
        "shape": {"devices": 2, "processes": processes, "nodes": 1},
    }
    try:
        for rank in range(processes):
            bound = worker._bind_to_cores(job, rank, contextlib.ExitStack(), lambda **_: None)
            expected = set(two if processes == 1 else two[rank : rank + 1])
            assert os.sched_getaffinity(0) == set(bound) == expected
            os.sched_setaffinity(0, before)
    finally:
        os.sched_setaffinity(0, before)


def test_a_process_whose_cores_changed_sends_no_record(monkeypatch, make_record):
    """A cpuset that shrinks, `taskset -a -p` and a user's module change the cores of a running process."""
    events, bound, actual = [], [max(CORES) + 1], sorted(os.sched_getaffinity(0))
    channel = types.SimpleNamespace(send_event=lambda **event: events.append(event))
    group = run_case.ProcessGroup([], "cpu", cores=bound)
    loop = jax_worker.CaseLoop({}, channel, group, {})
    loop.attempts["key"] = run_case.Attempt(make_record(), group, Sampling(), ended=True)
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit):
        loop._end("key")
    (event,) = events
    assert event["event"] == "refused"
    assert event["text"] == f"the cores of the process changed from {bound} to {actual}"
    loop.group, loop.attempts["key"] = (
        group._replace(cores=actual),
        run_case.Attempt(make_record(), group, Sampling(), ended=True),
    )
    loop._end("key")
    assert [event["event"] for event in events] == ["refused", "end"]
    assert parse_record(events[1]["line"]) == make_record()


@needs_two_cores
def test_a_thread_that_started_before_its_process_was_bound_does_not_change_the_cores_of_the_process(
    tmp_path,
):
    ended, before = threading.Event(), os.sched_getaffinity(0)
    waiting = threading.Thread(target=ended.wait, daemon=True)  # as the thread that waits for the launcher
    waiting.start()
    try:
        os.sched_setaffinity(0, CORES[:1])
        group = run_case.ProcessGroup([], "cpu", cores=list(CORES[:1]))
        channel = types.SimpleNamespace(send_event=lambda **event: pytest.fail(event["text"]))
        jax_worker.CaseLoop({}, channel, group, {})._refuse_changed_cores()
    finally:
        os.sched_setaffinity(0, before)
        ended.set()
        waiting.join()


def test_a_claim_raises_an_error_after_its_timeout():
    with (
        cores.claim_cores(1, "one"),
        pytest.raises(TimeoutError, match=str(os.getpid())),
        cores.claim_cores(len(CORES), "two", timeout=0.5),
    ):
        pass


def test_a_run_that_waits_too_long_for_cores_ends_with_one_line_and_no_record(tmp_path, monkeypatch, capsys):
    claim = functools.partial(cores.claim_cores, timeout=0.2)
    words = ["run", "study=function", "workload=linear", "devices=1", "mode=jacrev", f"results={tmp_path}"]
    with cores.claim_cores(len(CORES), "one"):
        monkeypatch.setattr(cores, "claim_cores", claim)
        assert main.main(words) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"(process {os.getpid()}): timed out after 0.2 s" in line and "repeat the command" in line
    assert not store.load(tmp_path).records


def test_a_wait_is_described_even_if_more_processes_have_asked_than_can_queue():
    """The holder never accepts a connection, and a queue of 128 is full after 129 questions."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(cores.claim_cores(1, "one"))
        for _ in range(130):
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.connect(f"\0{cores._PREFIX}{CORES[0]}")
        asking = threading.Thread(target=cores._describe_wait, args=(CORES[:1], ""), daemon=True)
        asking.start()
        asking.join(timeout=30)
        assert not asking.is_alive()


@pytest.mark.parametrize(
    ("name", "address", "host"),
    [("10.0.0.5", "10.0.0.5", "10.0.0.5"), ("alias", None, "me"), ("here", "127.0.1.1", "me")],
)
def test_the_coordinator_has_the_name_that_the_user_gave_to_its_node_if_others_can_reach_it(
    monkeypatch, name, address, host
):
    def resolve(_):
        if address is None:
            raise socket.gaierror
        return address

    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    monkeypatch.setattr(jax_worker.environment, "node_name", lambda: name)
    monkeypatch.setattr(jax_worker.os, "uname", lambda: types.SimpleNamespace(nodename="me"))
    monkeypatch.setattr(jax_worker.socket, "gethostbyname", resolve)
    assert jax_worker._find_free_address(2).rpartition(":")[0] == host
    assert jax_worker._find_free_address(1).startswith("127.0.0.1:")
