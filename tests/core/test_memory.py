"""Tests of the free and the total memory that are read from files of Linux."""

import pytest

from scaling.core import environment

HOST = {"/proc/meminfo": "MemTotal:       2000 kB\nMemAvailable:   1000 kB"}
JOB = "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7"


def cgroup(folder, limit, used, cached=0):
    """Return the files of a memory cgroup."""
    return {
        f"{folder}/memory.max": limit,
        f"{folder}/memory.current": used,
        f"{folder}/memory.stat": f"anon 5\ninactive_file {cached}\nactive_file 3",
    }


VERSION_1 = {
    "/sys/fs/cgroup/memory/job/memory.limit_in_bytes": "90000",
    "/sys/fs/cgroup/memory/job/memory.usage_in_bytes": "40000",
    "/sys/fs/cgroup/memory/job/memory.stat": "cache 20000\ninactive_file 0\ntotal_inactive_file 10000",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
    "/sys/fs/cgroup/memory/memory.usage_in_bytes": "40000",
}


@pytest.mark.parametrize(
    "files, free, total",
    [
        ({}, None, None),
        (HOST, 1_024_000, 2_048_000),
        (HOST | cgroup("/sys/fs/cgroup", "90000", "20000"), 70_000, 90_000),
        (HOST | cgroup("/sys/fs/cgroup", "90000", "20000", cached=15_000), 85_000, 90_000),
        (HOST | cgroup("/sys/fs/cgroup", "max", "20000"), 1_024_000, 2_048_000),
        (HOST | {"/proc/self/cgroup": "0::/"} | cgroup("/sys/fs/cgroup", "90000", "20000"), 70_000, 90_000),
        (HOST | {"/proc/self/cgroup": f"0::{JOB[14:]}/step_0/user/task_0"} | cgroup(JOB, "80000", "30000"), 50_000, 80_000),
        (HOST | {"/proc/self/cgroup": "4:memory:/job\n0::/of/the/host"} | cgroup("/sys/fs/cgroup", "9", "2"), 7, 9),
        (HOST | {"/proc/self/cgroup": "4:memory:/job\n1:cpu:/\n0::/"} | VERSION_1, 60_000, 90_000),
    ],
    ids=["unknown", "host", "container", "page cache", "no limit", "root", "job of Slurm", "no namespace", "version 1"],
)  # fmt: skip
def test_the_least_limit_of_the_host_and_all_cgroups_holds(monkeypatch, files, free, total):
    monkeypatch.setattr(environment, "read_text", files.get)
    assert (environment.available_bytes(), environment.available_bytes(idle=True)) == (free, total)
