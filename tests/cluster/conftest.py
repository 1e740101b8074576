"""Fixtures of submissions without a cluster: task files, a simulated Slurm, and commands of Slurm as shell scripts."""

import dataclasses
import os
import types

import pytest

from scaling.cluster import pack, slurm, submission_files, task_state
from scaling.cluster.cluster_settings import ClusterSettings
from scaling.cluster.submission_files import Journal
from scaling.core.case import Case, Refusal
from scaling.launcher import schedule
from scaling.launcher.machine import Machine
from scaling.launcher.run_settings import RunSettings
from scaling.results import store
from scaling.study.case_rules import complete

STAMP = "20261121T201500-3f2a"
NAME = f"scaling-{STAMP}"  # of the jobs
SETTINGS = RunSettings(attempts=3)


def submit_cases(folder, cases, seconds=1e9):
    """Create a submission to Slurm of tasks that take at most these seconds each."""
    machine = Machine("cpu", None, 2, 2, "of partition main", remote=True)
    results = [schedule.PreflightResult(case, None, None) for case in cases]
    plan = schedule.make_schedule(results, SETTINGS, machine, [])
    tasks, cluster = pack.pack(plan, SETTINGS, [], seconds), ClusterSettings(name="slurm")
    return submission_files.create_submission(folder, STAMP, cluster, tasks, SETTINGS, plan, False)


def first_case(submission):
    """Return the first case of the first task of a submission."""
    return submission_files.read_task(submission.tasks[0].path).scheduled_cases[0].case


def start_journal(submission, **fields):
    """Log that a task started and began its first case."""
    journal = Journal(submission.tasks[0].path)
    journal.write("started", job="7", node="n1", nodes=["n1"], pid=2**22 + 1, **fields)
    journal.write("begin", key=first_case(submission).key, replicate=0, attempt=1)
    return journal


def states_in(results):
    """Return the states of the tasks of a results folder."""
    return [found.state.name for found in task_state.find_tasks(results)]


@pytest.fixture
def make_plan():
    """Return the schedule and the tasks of two cases on one device and, if `shapes` is 2, two more on two devices."""

    def make(kind="slurm", shapes=1):
        cases = [
            complete(Case("poisson", points=16 * n, mode="jacrev", devices=devices))
            for devices in range(1, shapes + 1)
            for n in (1, 2)
        ]
        machine = Machine("cpu", None, 2, 2 if kind == "slurm" else 1, remote=kind == "slurm")
        results = [schedule.PreflightResult(case, None, None) for case in cases]
        plan = schedule.make_schedule(results, SETTINGS, machine, [])
        return plan, pack.pack(plan, SETTINGS, [], 1e9, kind == "local"), cases

    return make


@pytest.fixture
def make_submission(make_plan, tmp_path):
    """Write the files of a submission whose first task has the given job; its launcher is this process."""

    def make(kind="slurm", job=None, folder=tmp_path, **fields):
        plan, tasks, cases = make_plan(kind)
        cluster = ClusterSettings(name=kind)
        made = submission_files.create_submission(folder, STAMP, cluster, tasks, SETTINGS, plan, False)
        submission_files.write_submission(dataclasses.replace(made, **fields))
        results = [schedule.PreflightResult(case, None, None) for case in cases]
        store.write_json(folder / "study.json", schedule.study_manifest("mine", None, [], results, SETTINGS))
        return submission_files.save_job_ids(
            dataclasses.replace(made, **fields), {"0001": job} if job else {}
        )

    return make


@pytest.fixture
def fake_slurm(monkeypatch):
    """Simulate squeue, sacct and scancel.

    `queue` and `accounting` map a job ID to (job name, state). `calls` are the commands. If `fails` is true, squeue fails.
    """
    fake = types.SimpleNamespace(queue={}, accounting={}, calls=[], fails=False)
    columns = {"i": "job", "T": "state", "N": "node", "r": "reason", "j": "name"} | {
        "JobID": "job", "State": "state", "NodeList": "node", "ExitCode": "code", "JobName": "name",
    }  # fmt: skip

    def run_command(command, *options):
        fake.calls.append(" ".join([command, *options]))
        values = dict(option.split("=", 1) for option in options if "=" in option)
        if command == "scancel":
            fake.queue = {job: each for job, each in fake.queue.items() if each[0] != values["--name"]}
            return ""
        if fake.fails:
            raise Refusal("Slurm: Unable to contact slurm controller (connect failure)")
        lines = []
        for job, (name, state) in (fake.queue if command == "squeue" else fake.accounting).items():
            ids, names = values.get("--jobs"), values.get("--name")
            if (ids and job.partition("_")[0] not in ids.split(",")) or (
                names and name not in names.split(",")
            ):
                continue
            row = {"job": job, "name": name, "state": state, "node": "n1", "reason": "None", "code": "0:0"}
            fields = values["--format"].replace("%", "").replace("|", ",").split(",")
            lines.append("|".join(row[columns[field]] for field in fields))
        return "\n".join(lines)

    monkeypatch.setattr(slurm, "run_command", run_command)
    return fake


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Put shell scripts with the names of commands first in PATH, and return the folder; it has the file `calls`."""
    folder = tmp_path / "bin"

    def write(**scripts):
        folder.mkdir(exist_ok=True)
        for name, text in scripts.items():
            (folder / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {folder}/calls\n{text}\n')
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        return folder

    return write
