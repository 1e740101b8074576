"""Laws of cores: which a process may use, and that those of one study are not those of another at the same time."""

import contextlib
import os
import subprocess
import sys
import threading
import time

import pytest

from scaling.workers import cores, worker_main

CORES = cores.usable_cores()
needs_two_cores = pytest.mark.skipif(len(CORES) < 2, reason="one core cannot be shared out")


def test_the_cores_are_those_that_the_process_inherited():
    assert set(CORES) <= os.sched_getaffinity(0)
    assert len(CORES) == len(set(CORES)) >= 1


def test_one_core_of_each_physical_one_comes_before_its_sibling(monkeypatch):
    siblings = {0: "0,4", 1: "1,5", 4: "0,4", 5: "1,5"}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(siblings))
    told = lambda path: next((siblings[core] for core in siblings if f"cpu{core}/" in path), None)  # noqa: E731
    monkeypatch.setattr(cores, "contents", told)
    assert cores.usable_cores() == [0, 1, 4, 5]
    siblings.update({0: "0-1", 1: "0-1", 4: "4-5", 5: "4-5"})
    assert cores.usable_cores() == [0, 4, 1, 5]


@pytest.mark.parametrize(
    ("quota", "paid"),
    [("max 100000", 4), ("200000 100000", 2), ("250000 100000", 2), ("50000 100000", 1), (None, 4), ("", 4)],
)
def test_a_container_has_no_more_cores_than_its_quota_pays_for(monkeypatch, quota, paid):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3, 5, 7})
    monkeypatch.setattr(cores, "contents", lambda path: quota if path.endswith("cpu.max") else None)
    assert cores.usable_cores() == [2, 3, 5, 7][:paid]


@pytest.fixture(autouse=True)
def own_names(monkeypatch):
    """Claims of these tests are no claims of a study that may run beside them."""
    monkeypatch.setattr(cores, "_NAME", f"ad-scaling/test/{os.getpid()}/{time.monotonic_ns()}/")


def test_two_owners_never_hold_a_core_at_the_same_time():
    said = []
    with cores.claim_cores(1, "one") as first, cores.claim_cores(1, "two", said.append) if CORES[1:] else (
        contextlib.nullcontext([])) as second:  # fmt: skip
        assert not set(first) & set(second)
    assert not said


def test_a_claim_waits_until_the_cores_are_free_and_says_so_once():
    said, held = [], []

    def other():
        with cores.claim_cores(len(CORES), "two", said.append) as mine:
            held.append(mine)

    with cores.claim_cores(1, "one"):
        waits = threading.Thread(target=other)
        waits.start()
        time.sleep(3 * cores._POLL_SECONDS)
        assert not held
    waits.join(timeout=30)
    assert held == [sorted(CORES)] and said == [[os.getpid()]]


def test_the_processes_of_one_owner_share_what_is_not_free():
    with cores.claim_cores(len(CORES), "one") as first, cores.claim_cores(len(CORES), "one") as second:
        assert first == second == sorted(CORES)


def test_more_cores_than_there_are_is_all_of_them():
    with cores.claim_cores(len(CORES) + 1, "one") as mine:
        assert mine == sorted(CORES)


def test_a_process_that_was_killed_holds_nothing():
    ask = f"from scaling.workers import cores; cores._NAME = {cores._NAME!r}; claim = cores.claim_cores({len(CORES)}, 'dead'); "
    ask += "claim.__enter__(); print('held', flush=True); import time; time.sleep(600)"
    holder = subprocess.Popen([sys.executable, "-c", ask], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    assert not cores._is_free(str(CORES[0]))
    holder.kill()
    holder.wait()
    with cores.claim_cores(len(CORES), "one") as mine:
        assert mine == sorted(CORES)


@needs_two_cores
def test_one_that_wants_all_cores_is_not_overtaken_for_ever():
    """Others that want one core each wait behind it."""
    order = []

    def take(name, count):
        with cores.claim_cores(count, name):
            order.append(name)
            time.sleep(0.2)

    with cores.claim_cores(1, "first"):
        large = threading.Thread(target=take, args=("large", len(CORES)))
        large.start()
        time.sleep(2 * cores._POLL_SECONDS)
        small = [threading.Thread(target=take, args=(f"small {n}", 1)) for n in range(3)]
        for each in small:
            each.start()
        time.sleep(2 * cores._POLL_SECONDS)
    for each in (large, *small):
        each.join(timeout=60)
    assert order[0] == "large" and len(order) == 4


@needs_two_cores
def test_an_owner_that_holds_a_core_already_is_not_kept_waiting_by_one_that_wants_all():
    """Else the two would wait for each other for ever."""
    said = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(cores.claim_cores(1, "one", node="a"))
        large = threading.Thread(
            target=lambda: cores.claim_cores(len(CORES), "two", said.append).__enter__(), daemon=True
        )
        large.start()
        while not said:
            time.sleep(0.05)
        mine = stack.enter_context(cores.claim_cores(1, "one", node="b", timeout=30))
        assert len(mine) == 1
    large.join(timeout=60)
    assert not large.is_alive()


def test_processes_of_one_node_have_the_same_cores_and_another_node_that_is_this_host_others_if_there_are():
    count = max(1, len(CORES) // 2)
    with (
        cores.claim_cores(count, "one", node="a") as first,
        cores.claim_cores(count, "one", node="a") as beside,
        cores.claim_cores(count, "one", node="b") as other,
    ):
        assert first == beside
        assert len(CORES) == 1 or not set(other) & set(first)


@needs_two_cores
def test_a_core_that_another_study_holds_for_a_while_is_waited_for_rather_than_one_shared():
    with cores.claim_cores(len(CORES) - 1, "one", node="a"), contextlib.ExitStack() as other:
        other.enter_context(cores.claim_cores(1, "two"))
        threading.Timer(3 * cores._POLL_SECONDS, other.close).start()
        with cores.claim_cores(1, "one", node="b", timeout=30) as mine:
            assert cores._is_free(f"{mine[0]}/two") and not cores._is_free(f"{mine[0]}/one/b")


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
            with worker_main._bind_to_cores(job, rank, lambda *_, **__: None) as bound:
                assert (
                    os.sched_getaffinity(0)
                    == set(bound)
                    == set(two if processes == 1 else two[rank : rank + 1])
                )
            os.sched_setaffinity(0, before)
    finally:
        os.sched_setaffinity(0, before)


def test_patience_ends():
    with (
        cores.claim_cores(1, "one"),
        pytest.raises(TimeoutError, match=str(os.getpid())),
        cores.claim_cores(len(CORES), "two", timeout=0.5),
    ):
        pass
