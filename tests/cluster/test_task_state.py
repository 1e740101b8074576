"""Tests of the states of tasks: a task that may run never counts as ended, and a job is known by its ID and its name."""

import dataclasses
import itertools
import json
import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from scaling.cli import main
from scaling.cluster import sbatch, slurm, submission_files, task, task_state
from scaling.cluster.cluster_settings import ClusterSettings
from scaling.cluster.slurm import JobState
from scaling.cluster.submission_files import read_journal
from scaling.core import environment
from scaling.core.case import Refusal, non_default_fields
from scaling.results import store
from tests.cluster.conftest import NAME, first_case, start_journal, states_in


def state_of(results):
    """Return the state of the only task of a results folder."""
    [name] = states_in(results)
    return name


@pytest.mark.parametrize("source", ["queue", "accounting"])
def test_a_job_with_the_id_of_a_task_but_another_name_is_not_the_job_of_the_task(
    source, make_submission, fake_slurm, tmp_path
):
    make_submission(job="7")
    setattr(fake_slurm, source, {"7": ("train", "RUNNING" if source == "queue" else "COMPLETED")})
    assert state_of(tmp_path) == "LOST"
    setattr(fake_slurm, source, {"7": (NAME, "COMPLETED")})
    assert state_of(tmp_path) == "COMPLETED"


@pytest.mark.parametrize("command", ["squeue", "sacct", "sinfo"])
def test_lines_without_the_requested_fields_are_ignored(command, monkeypatch, make_submission, tmp_path):
    """squeue and sinfo print the name of each cluster if SLURM_CLUSTERS is set."""
    make_submission(job="7")
    lines = {"sinfo": "main|n1|1|2|(null)|main*|2|(null)", "squeue": f"7|{NAME}|RUNNING|n1|None", "sacct": ""}
    text = {name: f"{line}\n" for name, line in lines.items()} | {
        command: f"CLUSTER: east\n{lines[command]}\n"
    }
    monkeypatch.setattr(slurm, "run_command", lambda name, *_: text[name])
    assert state_of(tmp_path) == "RUNNING"
    assert slurm.partition_machine(ClusterSettings(name="slurm")).nodes == 1


def test_jobs_and_nodes_of_hidden_partitions_are_listed(commands):
    hidden = {"squeue": "7|x|RUNNING|n1|None", "sinfo": "main|n1|1|2|(null)|main*|2|(null)"}
    commands(**{name: f'[ "$1" != --all ] || echo "{line}"' for name, line in hidden.items()})
    assert slurm.find_jobs(["x"], [])["x", "7"].live
    assert slurm.partition_machine(ClusterSettings(name="slurm")).nodes == 1


@pytest.mark.parametrize(("cpus", "expected"), [("1K", 1024), ("1.50K", 1536), ("N/A", None)])
def test_a_number_of_cpus_that_sinfo_abbreviates_is_parsed_and_any_other_text_refused(
    cpus, expected, commands
):
    commands(sinfo=f"echo 'main|n1|1|{cpus}|(null)|main*|{cpus}|(null)'")
    if expected is None:
        with pytest.raises(Refusal, match="'N/A'"):
            slurm.partition_machine(ClusterSettings(name="slurm"))
    else:
        assert slurm.partition_machine(ClusterSettings(name="slurm")).per_node == expected


def test_lines_of_slurm_that_are_no_utf_8_are_ignored(commands):
    commands(squeue="printf '\\377\\n7|x|RUNNING|n1|None\\n'")
    assert slurm.find_jobs(["x"], [])["x", "7"].live


def test_queries_ask_the_cluster_to_which_sbatch_submits(commands, monkeypatch):
    commands(squeue="echo $SLURM_CLUSTERS")
    monkeypatch.delenv("SLURM_CLUSTERS", raising=False)
    monkeypatch.setenv("SBATCH_CLUSTERS", "east")
    assert slurm.run_command("squeue").strip() == "east"
    monkeypatch.setenv("SLURM_CLUSTERS", "west")  # for sbatch, too, it comes before the other
    assert slurm.run_command("squeue").strip() == "west"


def test_a_state_that_is_not_known_to_be_final_may_still_run(make_submission, fake_slurm, tmp_path):
    make_submission(job="7")
    for state in ("EXPEDITING", "POWER_UP_NODE", "A_LATER_STATE"):
        fake_slurm.queue = {"7": (NAME, state)}
        [found] = task_state.find_tasks(tmp_path)
        assert found.state.live and found.state.name == state


def test_an_end_in_the_accounting_yields_to_a_job_that_was_requeued(make_submission, fake_slurm, tmp_path):
    make_submission(job="7")
    fake_slurm.accounting = {"7": (NAME, "CANCELLED by 0")}
    assert state_of(tmp_path) == "CANCELLED"
    fake_slurm.queue = {"7": (NAME, "RUNNING")}
    assert state_of(tmp_path) == "RUNNING"
    fake_slurm.queue, fake_slurm.accounting = {}, {"7": (NAME, "TIMEOUT")}
    assert state_of(tmp_path) == "TIMEOUT"


def test_a_job_of_another_user_that_slurm_does_not_list_may_still_run(
    make_submission, fake_slurm, tmp_path, monkeypatch
):
    """With PrivateData=jobs, squeue and sacct list the jobs of the user only."""
    start_journal(make_submission(job="7"))
    assert state_of(tmp_path) == "LOST"
    monkeypatch.setattr(os, "geteuid", lambda: 2**31)
    assert state_of(tmp_path) == "UNKNOWN"
    assert len(task_state.queued_cases(task_state.find_tasks(tmp_path))) == 2
    fake_slurm.accounting = {"7": (NAME, "TIMEOUT")}
    assert state_of(tmp_path) == "TIMEOUT"


def test_a_local_task_of_another_user_that_does_not_run_here_is_lost(make_submission, tmp_path, monkeypatch):
    start_journal(make_submission(kind="local"))
    monkeypatch.setattr(os, "geteuid", lambda: 2**31)
    assert state_of(tmp_path) == "LOST"


def test_a_task_whose_journal_has_ended_is_not_queried(make_submission, fake_slurm, tmp_path):
    journal = start_journal(make_submission(job="7"))
    journal.write("ended")
    fake_slurm.fails = True
    assert state_of(tmp_path) == "COMPLETED" and not fake_slurm.calls
    journal.write("started", job="7", node="n1", nodes=["n1"], pid=1)  # after a requeue
    fake_slurm.fails, fake_slurm.queue = False, {"7": (NAME, "RUNNING")}
    assert state_of(tmp_path) == "RUNNING"


@pytest.mark.parametrize(("words", "state"), [("TIME LIMIT", "TIMEOUT"), ("PREEMPTION", "UNKNOWN")])
def test_if_slurm_does_not_answer_a_job_has_ended_only_if_it_cannot_be_requeued(
    words, state, make_submission, fake_slurm, tmp_path
):
    submission = make_submission(job="7")
    start_journal(submission)
    (submission.folder / "log").mkdir()
    message = f"slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-22T16:00 DUE TO {words} ***"
    (submission.folder / "log" / "7_0_log.err").write_text(message)
    fake_slurm.fails = True
    assert [task.state.name for task in task_state.find_tasks(tmp_path)] == [state]


def test_the_end_of_a_local_task_is_known_on_every_host(make_submission, tmp_path):
    start_journal(make_submission("local", host="login2")).write("stopped")
    assert state_of(tmp_path) == "CANCELLED"


ODD = [None, True, -1, 1.5, "x", [], [[1]], {}, {"a": 1}, 10**30, "2026-01-01T00:00:00"]


def with_odd_values(content):
    """Yield copies of a JSON value in which one entry, at any depth, has another value or is missing."""
    yield from ODD
    if isinstance(content, (dict, list)):
        for place in list(content) if isinstance(content, dict) else range(len(content)):
            for changed in with_odd_values(content[place]):
                copy = content.copy()
                copy[place] = changed
                yield copy
            copy = content.copy()
            del copy[place]
            yield copy


@pytest.mark.thin(3, "thorough")
@pytest.mark.parametrize("name", ["submission.json", "0001.json"])
@pytest.mark.parametrize("host", ["login2", environment.node_name()])
def test_odd_values_in_the_files_of_a_submission_are_one_line_and_no_exception(
    name, host, make_submission, tmp_path, capsys
):
    submission = make_submission("local", job="7", host=host)
    folder, case = submission.folder, first_case(submission)
    item = store.read_json(folder / "0001.json")["jobs"][0][0]
    digests = {"digest": "3f2a", "setting": "3f2a"}
    task_content = {  # without the fields that have default values
        "settings": {"sampling": {"most": 9}, "attempts": 3},
        "machine": {"platform": "cpu", "device_kind": None, "per_node": 2, "untold": []},
        "cluster": {"name": "local"} | {key: [] for key in ("setup", "srun", "hosts", "shell", "sbatch")},
        "nested": False,
        "environments": [[[None, []], digests | {"versions": {"jax": "0.10.2"}, "untold": ["driver"]}]],
        "jobs": [[item | {"case": non_default_fields(case)}]],
    }
    (folder / "0001.json").write_text(json.dumps(task_content))
    assert submission_files.read_task(folder / "0001.json").scheduled_cases[0].case == case
    start = {"event": "started", "at": "2026-11-21T20:15:00+00:00", "pid": 2**22 + 1, "job": None}
    events = [
        start | {"node": "n1", "nodes": ["n1"], "log_starts": [0, 0]},
        {"event": "begin", "at": start["at"], "key": case.key, "replicate": 0, "attempt": 1, "seat": 1},
    ]
    content = {
        "submission.json": store.read_json(folder / "submission.json"),
        "0001.json": task_content,
        "0001.run-1.jsonl": events,
    }
    for changed in itertools.islice(
        with_odd_values(content.pop(name)), 0, None, 7
    ):  # every value and every entry: an entry has 12 copies
        for other, value in [*content.items(), (name, changed)]:
            lines = value if other.endswith(".jsonl") else [value]
            (folder / other).write_text("".join(json.dumps(line) + "\n" for line in lines))
        for verb in ("status", "logs", "cancel"):
            assert main.main([verb, str(tmp_path)]) in (0, 1, 2), changed
            assert capsys.readouterr().err.count("\n") <= 1, changed


def processes_of(folder):
    """Return the command lines of the processes whose working directory is a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(path / "cwd") == str(folder):
                found.append((path / "cmdline").read_bytes())
        except OSError:
            continue  # it has ended
    return [command for command in found if command]


@pytest.mark.parametrize("lines", [("sleep 60",), ()], ids=["setup", "start"])
def test_a_local_task_that_is_cancelled_before_it_has_a_journal_is_cancelled_with_its_processes(
    lines, make_submission, tmp_path
):
    submission = make_submission("local")
    cluster = ClusterSettings(name="local", setup=(f"cd {tmp_path}", *lines))
    command = ["sh", "-c", "exec sleep 60"]  # which ignores the path of the task file
    sbatch._start_process(submission, command, cluster)
    deadline = time.monotonic() + 30
    while b"sleep\x0060" not in b"".join(processes_of(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert state_of(tmp_path) == "PENDING"
    task_state.cancel_tasks(task_state.find_tasks(tmp_path))
    while processes_of(tmp_path) and time.monotonic() < deadline:
        os.waitpid(-1, os.WNOHANG)
        time.sleep(0.02)
    assert not processes_of(tmp_path)
    assert state_of(tmp_path) == "CANCELLED"
    assert task_state.record_lost_cases(tmp_path, task_state.find_tasks(tmp_path)) == 0


def test_the_log_of_an_earlier_run_does_not_explain_the_end_of_a_later_one(make_submission, tmp_path):
    submission = make_submission(job="7")
    [entry] = submission.tasks
    start_journal(submission)
    log = submission.folder / "log" / "7_0_log.err"
    log.parent.mkdir()
    log.write_text(
        "slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-22T16:00 DUE TO PREEMPTION ***\n"
    )

    def explain():
        return task_state._explain_end(task_state.TaskState(submission, entry, JobState("FAILED")))[:2]

    assert explain()[0] == "preempted"
    start_journal(submission, log_starts=[0, log.stat().st_size])
    assert explain() == ("killed", "its job ended (failed) while it ran: `scaling logs` shows more")
    with log.open("a") as file:
        file.write("Segmentation fault\n")
    assert explain() == ("killed", "its job ended (failed) while it ran: Segmentation fault")


def test_a_journal_that_is_a_pipe_is_an_error_and_does_not_block_the_command(tmp_path):
    os.mkfifo(tmp_path / "0001.run-1.jsonl")
    with pytest.raises(OSError, match="Not a regular file"):
        read_journal(tmp_path / "0001.json")


def test_the_journal_contains_the_lengths_of_the_logs_at_the_start_of_a_run(
    make_submission, monkeypatch, tmp_path
):
    [entry] = make_submission("local").tasks
    monkeypatch.setattr(task, "_run_missing_cases", lambda *_: None)
    lengths = [os.fstat(number).st_size for number in (1, 2)]
    assert task._run_with_journal(entry.path, submission_files.read_task(entry.path), 0) == 0
    assert list(read_journal(entry.path).log_starts) == lengths


def test_cancel_fails_if_a_task_may_run_that_it_cannot_see(make_submission, tmp_path, capsys):
    make_submission("local", host="login2")
    assert main.main(["cancel", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert (
        not out
        and "1 task may still run, and cannot be cancelled here: its process is visible on login2 only" in err
    )


def test_cancel_does_not_name_this_host_if_slurm_does_not_answer(
    make_submission, fake_slurm, tmp_path, capsys
):
    make_submission(job="7")
    fake_slurm.fails = True
    assert main.main(["cancel", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert (
        "1 task may still run, and cannot be cancelled here: Slurm: Unable to contact slurm controller"
        in error
    )
    assert environment.node_name() not in error


@pytest.mark.parametrize("refused", [NAME, "scaling-other"])  # either may be the first that is canceled
def test_cancel_ends_the_other_tasks_if_slurm_refuses_one(refused, make_submission, tmp_path, monkeypatch):
    submission, calls = make_submission(job="7"), set()
    submissions = submission, dataclasses.replace(submission, folder=tmp_path / "jobs" / "other")
    tasks = [task_state.TaskState(each, each.tasks[0], JobState("RUNNING")) for each in submissions]

    def cancel(name):
        calls.add(name)
        if name == refused:
            raise Refusal("Slurm: scancel: error: Kill job error on job id 8: Access/permission denied")

    monkeypatch.setattr(slurm, "cancel_jobs", cancel)
    with pytest.raises(Refusal, match="permission denied"):
        task_state.cancel_tasks(tasks)
    assert calls == {NAME, "scaling-other"}


def test_cancel_waits_until_all_tasks_are_submitted(make_submission, fake_slurm, tmp_path, capsys):
    make_submission()
    assert main.main(["status", str(tmp_path)]) == 0
    assert "being submitted" in " ".join(capsys.readouterr().out.split())

    def submit():
        fake_slurm.queue = {"7": (NAME, "PENDING")}
        lock.__exit__(None, None, None)

    lock = store.lock_folder(tmp_path)
    lock.__enter__()
    threading.Timer(0.5, submit).start()
    assert main.main(["cancel", str(tmp_path)]) == 0
    assert "1 task cancelled" in capsys.readouterr().out and not fake_slurm.queue


@pytest.mark.parametrize("verb", ["status", "logs", "cancel"])
def test_a_submission_that_cannot_be_read_is_refused(verb, make_submission, fake_slurm, tmp_path, capsys):
    make_submission(job="7")
    (tmp_path / "jobs" / "foreign").mkdir()
    fake_slurm.queue = {"7": (NAME, "RUNNING")}
    assert state_of(tmp_path) == "RUNNING"  # it is being submitted
    (tmp_path / "jobs" / "foreign" / "submission.json").write_text("[]")
    assert main.main([verb, str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert not out and "cannot read jobs/foreign/submission.json" in err and err.count("\n") == 1


def test_a_task_below_a_linked_jobs_folder_is_found_by_its_process(make_submission, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "jobs").symlink_to(tmp_path / "elsewhere")
    submission = make_submission("local", folder=tmp_path / "here")
    process = subprocess.Popen(["sh", "-c", "sleep 60; true", str(submission.tasks[0].path)])
    submission_files.save_job_ids(submission, {"0001": str(process.pid)})
    assert state_of(tmp_path / "here") == "PENDING"
    process.kill()
    process.wait()
