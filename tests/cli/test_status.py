"""Tests of `scaling status`, `logs` and `cancel`: states of tasks and cases, logs of a case, and ending tasks.

Most results folders are synthetic; the tasks that run and are cancelled run on this machine.
"""

import contextlib
import dataclasses
import os
import re
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest

from scaling.cli import logs, main, status
from scaling.cluster import submission_files, task, task_state
from scaling.cluster.cluster_settings import ClusterSettings
from scaling.cluster.pack import PackedTask
from scaling.cluster.slurm import JobState
from scaling.cluster.submission_files import Journal
from scaling.cluster.task_state import TaskState
from scaling.core.case import Case, Refusal, label, to_dict
from scaling.core.record import Writer, to_line
from scaling.launcher import schedule
from scaling.launcher.machine import Machine, ProcessShape
from scaling.launcher.run_settings import RunSettings
from scaling.launcher.schedule import PreflightResult, ScheduledCase, study_manifest
from scaling.results import store
from scaling.study.case_rules import complete
from tests.support.commands import wait_until
from tests.support.imported import modules_after

SLOW = [
    "run", "study=function", "workload=poisson", "points=[16,32,48]", "devices=1", "mode=jacrev", "results=here",
    "cluster=local", "sampling.seconds=20", "sampling.least=1000000", "sampling.most=1000000",
]  # fmt: skip
LIVE, QUEUED = ("RUNNING", "PENDING", "COMPLETING"), "PENDING"


@pytest.fixture
def make_study(tmp_path, make_record):
    """A class of studies that were submitted in tasks of two cases each; its methods add events, records and states."""

    class Study:
        folder = tmp_path / "here"

        def __init__(self, cases=6, kind="slurm", stamp="20261121T201500-3f2a"):
            self.folder.mkdir(exist_ok=True)
            self.cases = [
                complete(Case("poisson", points=16 * (n + 1), mode="jacrev", devices=1 + n % 2))
                for n in range(cases)
            ]
            items = [
                ScheduledCase(PreflightResult(case, None, None, ()), n, 1)
                for n, case in enumerate(self.cases)
            ]
            tasks = [
                PackedTask(ProcessShape(1 + n % 2), tuple(items[n : n + 2]), 9.0) for n in range(0, cases, 2)
            ]
            settings = RunSettings(attempts=3)
            plan = schedule.make_schedule(
                [item.preflight for item in items], settings, Machine("cpu", None, 2, 2, remote=True), []
            )
            submission = submission_files.create_submission(
                self.folder, stamp, ClusterSettings(name=kind), tasks, settings, plan, False
            )
            self.submission = submission_files.save_job_ids(
                submission, {entry.name: f"7_{n}" for n, entry in enumerate(submission.tasks)}
            )
            results = [item.preflight for item in items]
            store.write_json(self.folder / "study.json", study_manifest("mine", None, [], results, settings))
            self.journals = {}

        def start(self, task, node="n1"):
            self.journals[task] = Journal(self.submission.tasks[task].path)
            self.journals[task].write("started", job=f"7_{task}", node=node, nodes=[node], pid=1)
            return self

        def log(self, task, event, case, attempt=1, **fields):
            key = self.cases[case].key
            self.journals[task].write(event, key=key, replicate=0, attempt=attempt, seat=1, **fields)
            return self

        def finish(self, task, case, outcome="ok", attempt=1, **fields):
            """Log the end of a case in the journal and write its record."""
            reason = fields.get("reason")
            self.log(task, "begin", case, attempt).log(
                task, "end", case, attempt, status=outcome, reason=reason, text=fields.get("text"), seconds=[]
            )
            fields = {"started_at": "2099-11-21T20:00:00.000+00:00"} | fields
            record = make_record(outcome, attempt=attempt, **fields)
            Writer(self.folder).append(dataclasses.replace(record, case=self.cases[case]))
            return self

        def end(self, task, event="ended"):
            """Log the end of a task, so that the scheduler is not queried."""
            self.journals[task].write(event)
            return self

        def states(self, *names):
            states = [name if isinstance(name, JobState) else JobState(name) for name in names]
            return [
                TaskState(self.submission, entry, state)
                for entry, state in zip(self.submission.tasks, states, strict=True)
            ]

        def summary(self, *names):
            """Summarize the status with these states of the tasks."""
            return status.summarize_status(self.folder, self.states(*names))

        def key(self, case):
            return self.cases[case].key

    return Study


def count(summary):
    return {state: sum(counts[state] for counts in summary.counts.values()) for state in status.STATES}


def status_lines(summary, every=False):
    return status.case_lines(summary, every)


def run_command(arguments, capsys):
    code = main.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_every_requested_case_is_in_exactly_one_state(make_study):
    study = make_study(12).start(0).start(1, "n2").start(4)
    study.finish(0, 0).finish(0, 1, "failed", reason="wrong_answer", text="point 3 is wrong")
    study.log(1, "begin", 2).finish(4, 8).log(4, "begin", 9)
    summary = study.summary("COMPLETED", "RUNNING", "PENDING", "CANCELLED", "TIMEOUT", "RUNNING")
    # tasks of two cases: both done; one running, one queued; both queued; none begun; one interrupted; both queued
    assert count(summary) == {"ok": 2, "skipped": 0, "failed": 2, "running": 1, "queued": 5, "missing": 2}
    assert sum(count(summary).values()) == 12


def test_failed_and_running_cases_are_shown_with_key_node_attempt_and_reason(make_study):
    study = make_study(4).start(0).start(1, "n2")
    study.finish(0, 0).finish(0, 1, "failed", reason="error", text="RuntimeError: [bold]luck[/]", attempt=2)
    study.log(1, "begin", 2, attempt=3)
    shown = status_lines(study.summary("COMPLETED", "SUSPENDED"))
    assert len(shown) == 2
    assert re.match(
        rf"failed  {study.key(1)[:8]}  poisson .*  on host, attempt 2  error: RuntimeError: \[bold\]luck\[/\]$",
        shown[0],
    )
    assert re.match(
        rf"running {study.key(2)[:8]}  poisson .*  on n2, attempt 3, for \d+ s, task 0002 \(suspended\)$",
        shown[1],
    )


@pytest.mark.parametrize(
    "state", ["TIMEOUT", "PREEMPTED", "NODE_FAIL", "CANCELLED", "OUT_OF_MEMORY", "FAILED", "LOST"]
)
@pytest.mark.parametrize("begun", [True, False], ids=["begun", "not begun"])
def test_status_shows_lost_cases_exactly_as_the_next_run_records_them(state, begun, make_study):
    study = make_study(2)
    if begun:
        study.start(0).finish(0, 0).log(0, "begin", 1)
    states = study.states(state)
    before = status.summarize_status(study.folder, states)
    task_state.record_lost_cases(study.folder, states)
    later = status.summarize_status(study.folder, states)
    assert count(before) == count(later)
    shown = [[line.replace("on n1, ", "") for line in status_lines(each)] for each in (before, later)]
    assert shown[0] == shown[1]


def test_a_requeued_task_has_no_running_case_until_it_restarts(make_study):
    study = make_study(2).start(0).log(0, "begin", 0)
    assert count(study.summary("RUNNING"))["running"] == 1
    for waiting_state in ("PENDING", "REQUEUED"):
        summary = study.summary(waiting_state)
        [row] = status.task_rows(summary.tasks)
        assert count(summary)["queued"] == 2 and row[3:6] == (waiting_state.lower(), "", "")
    study.start(0, "n2")
    summary = study.summary("RUNNING")
    assert count(summary)["queued"] == 2 and summary.tasks[0].journal.runs == 2
    study.log(0, "begin", 0, attempt=2)
    summary = study.summary("RUNNING")
    assert (count(summary)["running"], count(summary)["queued"]) == (1, 1)
    assert "on n2, attempt 2" in status_lines(summary)[0]
    tasks = [*summary.tasks, *make_study(4, stamp="20261121T201500-3f2b").states("RUNNING", "RUNNING")]
    assert [row[0] for row in status.task_rows(tasks)] == ["0001, run 2", "0001, 0002"]


@pytest.mark.parametrize(
    ("attempt", "reason", "state"), [(1, "killed", "queued"), (3, "killed", "failed"), (1, "error", "failed")]
)
def test_cases_that_a_restarted_task_will_not_retry_are_not_queued(attempt, reason, state, make_study):
    study = make_study(2).start(0).log(0, "begin", 0, attempt).log(0, "end", 0, attempt, reason=reason)
    definition = submission_files.read_task(study.submission.tasks[0].path)
    (environment,) = definition.environments.values()
    for number in range(1, attempt + 1):
        item = dataclasses.replace(definition.scheduled_cases[0], attempt=number)
        record = item.record_without_result(environment, definition.settings, "failed", reason, "")
        Writer(study.folder).append(record)
    for requeued in ("PENDING", "RUNNING"):
        if requeued == "RUNNING":
            study.start(0)
        counts = count(study.summary(requeued))
        assert counts["queued"] == 1 + (state == "queued") and counts["failed"] == (state == "failed")


def test_missing_cases_of_ended_jobs_are_shown_with_the_command_that_submits_them(make_study):
    study = make_study(2)
    assert not study.summary("PENDING").notes
    (note,) = study.summary("CANCELLED").notes
    assert note.startswith("repeat the `scaling run` command to submit the missing cases")


@pytest.mark.parametrize("every", [False, True])
def test_tasks_of_a_submission_in_one_state_share_a_row_without_the_option_all(every, make_study):
    tasks = make_study(400).states(*["RUNNING", "PENDING", "COMPLETED", "COMPLETED"] * 50)
    rows = status.task_rows(tasks, every)
    assert len(rows) == (200 if every else 3)
    assert sum(int(row[6].partition("/")[2]) for row in rows) == 400
    assert every or rows[0][0] == "0001, 0005 and 48 more"


def test_tasks_of_old_submissions_are_omitted_once_they_have_ended(make_study):
    studies = [make_study(2, stamp=f"20261121T2015{n:02}-3f2a") for n in range(50)]
    states = [study.states("PENDING" if n == 3 else "COMPLETED")[0] for n, study in enumerate(studies)]
    tables = list(status.task_tables(states, show_all=False))
    assert [table.title for table in tables] == ["jobs/20261121T201503-3f2a", "jobs/20261121T201549-3f2a"]
    assert tables[-1].caption == "48 tasks of earlier submissions ended; --all shows them"
    assert len(list(status.task_tables(states, show_all=True))) == 50


def test_long_lists_are_shortened_and_name_the_option_all(make_study):
    study = make_study(60).start(0)
    for case in range(60):
        if case % 2:
            study.finish(0, case, "failed", reason="error", text=f"number {case}.")
    summary = study.summary(*["CANCELLED"] * 30)
    shortened = status_lines(summary)
    assert len(shortened) == 40 and shortened[19] == "failed  and 11 more; --all shows them"
    assert shortened[39] == "missing and 11 more; --all shows them"
    complete = status_lines(summary, every=True)
    assert len(complete) == 60 and all(
        any(f"number {case}." in line for line in complete) for case in range(1, 60, 2)
    )


def test_queued_cases_are_listed_with_the_option_all(make_study):
    study = make_study(4)
    summary = study.summary("PENDING", "PENDING")
    assert status_lines(summary) == []
    ends = [line.split("  ")[-1] for line in status_lines(summary, every=True)]
    assert ends == [f"task {name} (pending)" for name in ("0001", "0001", "0002", "0002")]


def test_status_of_a_folder_without_jobs_shows_counts_and_failures(make_record, tmp_path, capsys):
    good, bad = make_record(points=7), make_record("failed", points=9, reason="error", text="long ago")
    writer = Writer(tmp_path)
    writer.append(good)
    writer.append(bad)
    code, out, _ = run_command(["status", tmp_path], capsys)
    head = re.sub(r"[^\w\s]", "", next(line for line in out.splitlines() if "workload" in line)).split()
    assert code == 1 and head == ["workload", "ok", "skipped", "failed", "missing"]
    assert re.match(rf"failed  {bad.key[:8]}\w*  linear .*  error: long ago$", out.splitlines()[-1])
    assert run_command(["cancel", tmp_path], capsys)[:2] == (0, "no task is pending or running\n")


def test_states_that_the_scheduler_has_forgotten_are_still_shown(make_study, capsys):
    study = make_study(2).start(0).finish(0, 0).finish(0, 1).end(0)
    code, out, _ = run_command(["status", study.folder], capsys)
    assert code == 0
    for text in ("jobs/20261121T201500-3f2a", "7_0", "completed", "n1", "2/2"):
        assert text in out
    assert re.search(r"\b\d+ s\b", out)  # the time between the first and the last event of the journal


def test_status_and_logs_work_without_a_scheduler(make_study, monkeypatch, capsys):
    study = make_study(4).start(0).finish(0, 0).log(0, "begin", 1)
    monkeypatch.setenv("PATH", "")
    code, out, err = run_command(["status", study.folder], capsys)
    assert (code, err) == (0, "") and "is not installed on this host" in out
    assert "the state of these jobs is unknown" in out
    assert re.search(r"poisson *\D* 1 *\D* 0 *\D* 0 *\D* 1 *\D* 2 *\D* 0", out)
    code, out, _ = run_command(["logs", study.folder, study.key(1)], capsys)
    assert code == 0 and "is not installed on this host" in out
    code, _, err = run_command(["cancel", study.folder], capsys)
    assert code == 2 and "is not installed on this host" in err


@pytest.mark.parametrize(("state", "is_needed"), [("RUNNING", True), ("TIMEOUT", True), ("COMPLETED", False)])
def test_a_task_file_that_cannot_be_read_is_refused_if_its_cases_have_no_record(state, is_needed, make_study):
    study = make_study(2).start(0).finish(0, 0)
    study.submission.tasks[0].path.write_text('{"jobs"')
    fix = "jobs/20261121T201500-3f2a/0001.json is not a valid .* and delete jobs/20261121T201500-3f2a$"
    with pytest.raises(Refusal, match=fix) if is_needed else contextlib.nullcontext():
        study.summary(state)


def test_status_imports_no_slow_package(make_study):
    study = make_study(2).start(0).finish(0, 0).end(0)
    loaded = modules_after(f"from scaling.cli import main; main.main(['status', {str(study.folder)!r}])")
    slow = {"jax", "vl_convert", "scipy", "wandb", "hydra", "submitit", "jinja2"}
    assert "rich" in loaded and not loaded & slow


def test_watch_in_a_pipe_prints_only_changes_and_ends_when_all_tasks_ended(make_study, monkeypatch, capsys):
    study = make_study(2).start(0)
    changes = [
        *[lambda: study.states("PENDING")] * 2,
        *[lambda: study.states("RUNNING")] * 2,
        lambda: study.finish(0, 0).states("RUNNING"),
        lambda: study.finish(0, 1).states("COMPLETED"),
    ]
    queries = iter(changes)
    monkeypatch.setattr(task_state, "find_tasks", lambda results: next(queries)())
    monkeypatch.setattr(task_state.time, "sleep", lambda seconds: None)
    code, out, _ = run_command(["status", study.folder, "--watch"], capsys)
    assert code == 0 and next(queries, None) is None
    assert re.findall(r"(pending|running|completed) .* (\d/2)", out) == [
        ("pending", "0/2"), ("running", "0/2"), ("running", "1/2"), ("completed", "2/2"),
    ]  # fmt: skip


def test_poll_tolerates_a_scheduler_that_is_temporarily_unavailable(make_study, monkeypatch):
    study = make_study(2)
    states = ("RUNNING", "UNKNOWN", "UNKNOWN", "COMPLETED")
    answers = iter([study.states(name) for name in states])
    monkeypatch.setattr(task_state, "find_tasks", lambda _: next(answers))
    monkeypatch.setattr(task_state.time, "sleep", lambda seconds: None)
    assert [tasks[0].state.name for tasks in task_state.poll(study.folder)] == ["RUNNING", "COMPLETED"]


def test_poll_raises_at_once_if_the_scheduler_never_answered(make_study, monkeypatch):
    study = make_study(2)
    unknown = study.states(JobState("UNKNOWN", reason="there is no squeue here"))
    monkeypatch.setattr(task_state, "find_tasks", lambda _: unknown)
    with pytest.raises(Refusal, match="no squeue"):
        next(task_state.poll(study.folder))


def test_logs_show_attempts_then_worker_logs_then_scheduler_logs(make_study, capsys):
    study = make_study(2).start(0).log(0, "begin", 0).start(0, "n2").log(0, "begin", 0, attempt=2)
    definition = submission_files.read_task(study.submission.tasks[0].path)
    [lost] = task_state.make_failed_records_of_task(
        [], study.submission.tasks[0].path, definition, "killed", "requeued"
    )
    Writer(study.folder).append(dataclasses.replace(lost, attempt=1))
    study.finish(0, 0, "failed", 2, reason="error", text="a [red]word[/red]")
    study.end(0)
    second = "second [bold]run[/bold] in {}\n  indented, " + "long " * 60
    for run, text in ((1, "first run"), (2, second.format(f"{study.folder}/secret/place.py:3"))):
        (study.submission.folder / f"0001.run-{run}" / "worker-1.log").write_text(text)
    (study.submission.folder / "log").mkdir()
    (study.submission.folder / "log" / "7_0_0_log.err").write_text("slurmstepd: error: of the job")
    (study.submission.folder / "log" / "7_0_0_log.out").write_text("")
    (study.submission.folder / "log" / "7_01_0_log.out").write_text("of another job")
    code, out, _ = run_command(["logs", study.folder, study.key(0)[:5]], capsys)
    assert code == 0
    expected = [
        f"{study.key(0)}  poisson ", "attempt 1: failed, killed", "attempt 2: failed, error: a [red]word[/red]",
        "task 20261121T201500-3f2a/0001, job 7_0: completed",
        "jobs/20261121T201500-3f2a/0001.run-1/worker-1.log", "first run", "jobs/20261121T201500-3f2a/0001.run-2/worker-1.log",
        second.format(f"{study.folder}/secret/place.py:3"), "7_0_0_log.err", "slurmstepd: error: of the job",
    ]  # fmt: skip
    positions = [out.find(text) for text in expected]
    assert -1 not in positions and positions == sorted(positions)
    assert "another job" not in out and "7_0_0_log.out" not in out


def test_logs_of_a_case_that_has_not_begun_name_its_task(make_study, monkeypatch):
    study = make_study(6).start(1)
    pending = JobState("PENDING", reason="Priority")
    tasks = study.states(pending, "RUNNING", JobState("FAILED", reason="exit code 1:0"))
    monkeypatch.setattr(task_state, "find_tasks", lambda _: tasks)
    logged = status.load_status(study.folder)
    for case, expected in enumerate(("pending; Priority", "running", "failed; exit code 1:0")):
        text = next(logs.logs_of_case(logged, study.key(2 * case)))[1]
        line = f"task 20261121T201500-3f2a/000{case + 1}, job 7_{case}: {expected}"
        assert text.splitlines()[-1] == line


def test_an_unknown_key_is_rejected_and_an_ambiguous_one_selects_all_matching_cases(make_study, capsys):
    study = make_study(2)
    key = study.key(0)
    other = key[:9] + ("0" if key[9] != "0" else "1") + key[10:]
    code, out, err = run_command(["logs", study.folder, "zzzzzz"], capsys)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "no case 'zzzzzz' in" in err and "`scaling status --all` shows the keys" in err
    logged = status.load_status(study.folder)
    logged.cases.clear()
    logged.cases.update({key: study.cases[0], other: study.cases[1]})
    assert logs.select_keys(logged, key[:10]) == [key]
    assert logs.select_keys(logged, key[:9]) == [key, other]


def test_logs_of_a_folder_without_cases_name_no_case(tmp_path, capsys):
    store.write_json(tmp_path / "plan-far.json", {"study": "plan"})
    (tmp_path / "records.jsonl").write_text("{\n")
    for words in ([], ["jacfwd"]):
        code, _, err = run_command(["logs", tmp_path, *words], capsys)
        assert code == 2
        assert (
            err.startswith(f"scaling: no case '{' '.join(words)}' in {tmp_path}: ") and err.count("\n") == 1
        )


def test_logs_of_a_case_without_a_job_show_its_record(make_record, tmp_path, capsys):
    record = make_record(
        "failed", reason="error", text="RuntimeError: no luck", started_at="2026-11-21T20:00:00.123+00:00"
    )
    Writer(tmp_path).append(record)
    code, out, _ = run_command(["logs", tmp_path, record.key], capsys)
    assert code == 0 and out.splitlines()[1:] == [
        "2026-11-21 20:00:00  attempt 1: failed, error: RuntimeError: no luck",
        "",
    ]
    (tmp_path / "damaged.jsonl").write_text("{")  # it may hide another attempt
    assert run_command(["logs", tmp_path, record.key], capsys)[1].startswith(
        "damaged, ignored: damaged.jsonl:1:"
    )


@pytest.fixture
def running_study(scaling_command, start_command):
    """Start a study as a task on this machine and cancel it after the test."""
    submission = start_command([*SLOW, "wait=false"])
    assert submission.wait(120) == 0
    running = r"running +\w{6,}  poisson"
    wait_until(lambda: re.search(running, scaling_command(["status", "here"]).stdout), "a running case")
    yield
    scaling_command(["cancel", "here"])


@pytest.mark.process
def test_ctrl_c_ends_watch_without_cancelling_tasks(running_study, scaling_command, start_command, tmp_path):
    watcher = start_command(["status", "here", "--watch"])
    assert any("task 0001" in line for line in watcher.stdout)
    watcher.send_signal(signal.SIGINT)
    _, err = watcher.communicate(timeout=30)
    assert (watcher.returncode, err) == (130, "")
    [states] = task_state.find_tasks(tmp_path / "here")
    assert states.state.name == "RUNNING"
    key = next(attempt.key for attempt in states.running_attempts)
    shown = scaling_command(["logs", "here", key[:8]])
    assert shown.returncode == 0 and "runs now" in shown.stdout and "worker-1.log" in shown.stdout


@pytest.mark.process
def test_cancel_ends_a_running_task(running_study, scaling_command, tmp_path):
    cancelled = scaling_command(["cancel", "here"])
    assert cancelled.returncode == 0 and cancelled.stdout.startswith("1 task cancelled;"), (
        cancelled.stdout + cancelled.stderr
    )
    wait_until(lambda: not task_state.find_tasks(tmp_path / "here")[0].state.live, "the end of the task")
    assert scaling_command(["cancel", "here"]).stdout == "no task is pending or running\n"
    later = scaling_command(["status", "here"])
    assert later.returncode == 1 and "cancelled: its job was cancelled while it ran" in later.stdout, (
        later.stdout
    )


@pytest.mark.process
def test_a_local_task_has_the_time_limit_of_its_cluster_and_reports_reaching_it(
    running_study, scaling_command, tmp_path
):
    [states] = task_state.find_tasks(tmp_path / "here")
    command = Path(f"/proc/{states.submitted.job}/cmdline").read_bytes().split(b"\0")
    assert command[0] == b"timeout" and b"--signal=USR1" in command and b"86400" in command
    os.kill(states.journal.pid, task.TIME_LIMIT)
    wait_until(lambda: not task_state.find_tasks(tmp_path / "here")[0].state.live, "the end of the task")
    later = scaling_command(["status", "here"])
    assert later.returncode == 1 and "timeout: its job reached its time limit" in later.stdout, later.stdout


def read_counts(text):
    """Return the counts of ok, skipped and failed cases in a text."""
    match = re.search(r"(\d+) ok(?:, (\d+) skipped, (\d+) failed)", text)
    return tuple(map(int, match.groups()))


def test_status_terminal_and_page_count_the_same_cases(tmp_path, make_record, scaling_command):
    """Each replicate is counted; earlier attempts and earlier environments are not."""
    first, second = {"started_at": "2026-11-21"}, {"started_at": "2026-11-22"}
    records = [make_record(points=7, replicate=replicate, **first) for replicate in (0, 1, 2)]
    records += [make_record(points=8, **first), make_record(points=8, digest="f" * 12, **second)]
    records += [
        make_record("failed", reason="error", text="no", points=9, **first),
        make_record(points=9, replicate=1, **second),
    ]
    records += [
        make_record(points=10, **first),
        make_record("skipped", reason="no_digits", text="none", points=11, **first),
    ]
    peak_case = {
        "workload": "ceiling",
        "target": "copy",
        "sizes": {"k": 4, "terms": 1},
        "mode": "value",
        "api": "jit",
    }
    records += [make_record(**peak_case, started_at="2026-11-21")]
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "a.jsonl").write_text("".join(to_line(record) + "\n" for record in records))
    cases = [{"key": record.key, "case": to_dict(record.case)} for record in records[:7]]
    store.write_json(folder / "study.json", {"study": "mine", "cases": cases})
    summary = status.load_status(folder)
    total = sum(summary.counts.values(), Counter())
    assert (total["ok"], total["skipped"], total["failed"]) == (7, 1, 1) and total.total() == 9
    assert read_counts(scaling_command(["report", "here"]).stdout) == (7, 1, 1)
    page = " ".join((folder / "report" / "index.html").read_text().split())
    for count, state in ((7, "ok"), (1, "skipped"), (1, "failed")):
        assert re.search(rf"{count}(?:<[^>]*>|\s)*{state}", page), state


def test_logs_accepts_the_key_that_status_shows_or_the_label_of_the_case(
    tmp_path, make_record, scaling_command
):
    (tmp_path / "here").mkdir()
    record = make_record("failed", reason="error", text="the pump is broken", points=9)
    (tmp_path / "here" / "a.jsonl").write_text(to_line(record) + "\n" + to_line(make_record(points=7)) + "\n")
    shown = scaling_command(["status", "here"]).stdout
    [line] = [line for line in shown.splitlines() if line.startswith("failed")]
    key = line.split()[1]
    assert record.key.startswith(key)
    for arguments in ([key], [label(record.case)], label(record.case).split(), [label(record.case)[:-1]]):
        done = scaling_command(["logs", "here", *arguments])
        assert done.returncode == 0 and "the pump is broken" in done.stdout, arguments
    for arguments in ([], ["linear"]):
        done = scaling_command(["logs", "here", *arguments])
        assert done.returncode == 0 and "the pump is broken" in done.stdout
        assert done.stdout.count("attempt") == 1
    common_label = " ".join(label(record.case).split()[:3])
    done = scaling_command(["logs", "here", common_label])
    assert done.returncode == 0 and done.stdout.count("attempt") == 1  # of the cases, only one failed


def test_logs_of_a_case_that_no_worker_began_show_why_workers_did_not_start(make_study, monkeypatch):
    study = make_study(2).start(0)
    study.journals[0].write("stopped", text="the process ended with status 2")
    (study.journals[0].folder / "worker-1.log").write_text(
        "slurmstepd-n1: error: execve(): python: No such file or directory\n"
    )
    monkeypatch.setattr("scaling.cluster.slurm.run_command", lambda *_: "")
    parts = list(logs.logs_of_case(status.load_status(study.folder), study.key(0)))
    assert "the process ended with status 2" in parts[0][1]
    assert any("execve(): python: No such file" in text for _, text in parts)


def test_each_replicate_without_a_record_is_missing_in_status_report_and_lint(make_study, scaling_command):
    study = make_study(2)
    settings = RunSettings(attempts=3, replicates=3)
    outcomes = None, ("skipped", "not_offered", "")
    results = [PreflightResult(*pair, None) for pair in zip(study.cases, outcomes, strict=True)]
    store.write_json(study.folder / "study.json", study_manifest("mine", None, [], results, settings))
    study.start(0).finish(0, 0).log(0, "begin", 0, 1)
    study.journals[0].write("end", key=study.key(0), replicate=0, attempt=1, status="ok", seconds=[])
    study.journals[0].write("begin", key=study.key(0), replicate=1, attempt=1, seat=1)
    counts = count(study.summary("RUNNING"))
    assert (counts["ok"], counts["running"], counts["missing"]) == (1, 1, 1) and counts["queued"] == 1
    shutil.rmtree(study.folder / "jobs")
    summary = status.load_status(study.folder)
    assert (count(summary)["ok"], count(summary)["missing"]) == (1, 3)
    assert any(line.startswith("missing") and line.endswith("replicate 3") for line in status_lines(summary))
    for verb in ("report", "lint"):
        assert "missing cases (3)" in scaling_command([verb, "here"]).stdout


def test_report_and_lint_count_lost_cases_like_status_and_write_no_record(make_study, scaling_command):
    study = make_study(4, "local").start(0).finish(0, 0).log(0, "begin", 1).end(0, "stopped")
    (study.submission.folder / "log").mkdir()
    log = study.submission.tasks[1].log_path("err")
    log.write_text(f"{submission_files.SETUP_FAILED} 1: module load cuda\n")
    assert count(status.load_status(study.folder))["failed"] == 3
    assert read_counts(scaling_command(["report", "here"]).stdout) == (1, 0, 3)
    assert "failed cases (3)" in scaling_command(["lint", "here"]).stdout
    assert len(store.load(study.folder).records) == 1


def test_logs_without_a_key_show_the_failed_cases_and_each_file_once(make_study, monkeypatch, capsys):
    study = make_study(8).start(0)
    for case in range(5):
        study.finish(0, case, "failed", reason="error", text=f"number {case}.")
    (study.journals[0].folder / "worker-1.log").write_text("from /home/me/project/model.py\n")
    states = study.states("COMPLETED", *["CANCELLED"] * 3)
    monkeypatch.setattr(task_state, "find_tasks", lambda results: states)
    logged = status.load_status(study.folder)
    assert sorted(logs.select_keys(logged, "")) == sorted(study.key(case) for case in range(5))
    assert logs.select_keys(logged, "poisson") == logs.select_keys(logged, "")
    _, out, _ = run_command(["logs", study.folder], capsys)
    assert out.count("number") == 3 and out.endswith("2 more: give the key of one, or --all\n")
    assert out.count("worker-1.log") == 1
    assert "from /home/me/project/model.py" in out  # paths in logs are kept


def test_logs_without_a_key_or_failure_show_all_cases(make_study):
    study = make_study(2).start(0).finish(0, 0).finish(0, 1).end(0)
    assert set(logs.select_keys(status.load_status(study.folder), "")) == {study.key(0), study.key(1)}


def test_status_and_logs_show_that_a_task_waits_for_cores(make_study, monkeypatch, capsys):
    study = make_study(2).start(0)
    text = "waits for cores: another study on this host holds them (process 12)"
    study.journals[0].write("waiting", text=text)
    summary = study.summary("RUNNING")
    [row] = status.task_rows(summary.tasks)
    assert row[-1] == text
    monkeypatch.setattr(task_state, "find_tasks", lambda _: study.states("RUNNING"))
    assert text in next(logs.logs_of_case(status.load_status(study.folder), study.key(0)))[1]
    study.log(0, "begin", 0)
    [row] = status.task_rows(study.summary("RUNNING").tasks)
    assert row[-1] == ""


def test_an_exception_is_recorded_with_its_line_and_logged_with_its_traceback(
    write_study, write_workload, scaling_command, tmp_path
):
    write_workload(
        head="def halve(x):\n    raise ValueError('bad luck')",
        body="if RUNNING:\n    halve(x)\nreturn jnp.sin(x)[:2] * x[2]",
    )
    source_lines = (tmp_path / "mine.py").read_text().splitlines()
    number = next(n for n, line in enumerate(source_lines, 1) if "bad luck" in line)
    arguments = write_study("{workload: mine, points: 6, mode: jacfwd}")
    done = scaling_command([*arguments, "cluster=local", "bind=false", "results=here"])
    records = store.load(tmp_path / "here").records
    assert len(records) == 1, [(r.reason, r.text) for r in records]
    record = records[0]
    assert done.returncode == 1 and record.reason == "error"
    assert f"ValueError: bad luck (mine.py:{number})" in record.text
    log = scaling_command(["logs", "here"]).stdout
    assert f'File "{tmp_path / "mine.py"}", line {number}, in halve' in log and "site-packages" not in log


def test_progress_counts_all_cases_of_a_submission(make_study):
    study = make_study(4)
    progress = [task_state.progress_line(study.states("RUNNING", "PENDING"))]
    study.start(0).finish(0, 0).finish(0, 1)
    progress.append(task_state.progress_line(study.states("COMPLETED", "RUNNING")))
    ended = [line.partition("; ")[2] for line in progress]
    assert ended == [f"{number} of 4 cases have ended" for number in (0, 2)]
