"""Coming back to a study: what its jobs and cases do, what was written about one, and how to end them.

Most folders are made up; what runs, and is cancelled, runs on this machine.
"""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from scaling.cli import logs, main, status
from scaling.cluster import job_state, lost_cases, sbatch, status_table, submission_files, task, wait
from scaling.cluster.cluster_settings import ClusterSettings
from scaling.cluster.job_state import TaskState
from scaling.cluster.journal import Journal
from scaling.cluster.pack import PackedTask
from scaling.cluster.slurm import JobState
from scaling.core import store
from scaling.core.case import Case, Refusal, label, to_dict
from scaling.core.record import to_line
from scaling.study.completion import complete
from scaling.workers import schedule
from scaling.workers.machine import Machine, ProcessShape
from scaling.workers.preflight_result import PreflightResult
from scaling.workers.run_settings import RunSettings
from scaling.workers.schedule import ScheduledCase, study_manifest

SLOW = [
    "run", "study=function", "workload=poisson", "points=[16,32,48]", "devices=1", "mode=jacrev", "results=here",
    "cluster=local", "sampling.seconds=20", "sampling.least=1000000", "sampling.most=1000000",
]  # fmt: skip
LIVE, QUEUED = ("RUNNING", "PENDING", "COMPLETING"), "PENDING"


@pytest.fixture
def study(tmp_path):
    """A study of so many cases, handed over in tasks of two cases each; what it has done and said is added by its methods."""

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
                PackedTask(ProcessShape(1 + n % 2), (tuple(items[n : n + 2]),), 9.0)
                for n in range(0, cases, 2)
            ]
            settings = RunSettings(attempts=3)
            plan = schedule.make_schedule(
                [item.preflight for item in items], settings, Machine("cpu", None, 2, 2, remote=True), []
            )
            made = submission_files.create_submission(
                self.folder, stamp, ClusterSettings(name=kind), tasks, settings, plan, False
            )
            self.made = submission_files.save_job_ids(
                made, {entry.name: f"7_{n}" for n, entry in enumerate(made.entries)}
            )
            store.write_json(
                self.folder / "study.json", study_manifest("mine", None, [], self.cases, settings)
            )
            self.journals = {}

        def start(self, task, node="n1"):
            self.journals[task] = Journal(self.made.entries[task].path)
            self.journals[task].write("started", job=f"7_{task}", node=node, nodes=[node], pid=1)
            return self

        def say(self, task, event, case, attempt=1, **words):
            key = self.cases[case].key
            self.journals[task].write(event, key=key, replicate=0, attempt=attempt, seat=1, **words)
            return self

        def end(self, task, case, make_record, outcome="ok", attempt=1, **fields):
            """A case that ended, in the journal and on record."""
            reason = fields.get("reason")
            self.say(task, "begin", case, attempt).say(
                task, "end", case, attempt, status=outcome, reason=reason, text=fields.get("text"), seconds=[]
            )
            record = make_record(
                outcome, attempt=attempt, started_at="2099-11-21T20:00:00.000+00:00", **fields
            )
            store.Writer(self.folder).append(dataclasses.replace(record, case=self.cases[case]))
            return self

        def keep(self, *states):
            """States that are remembered, so that nobody is asked."""
            kept = {
                entry.name: {"state": dataclasses.asdict(state), "settled": False}
                for entry, state in zip(self.made.entries, states, strict=False)
            }
            store.write_json(self.made.folder / "states.json", kept)
            return self

        def seen(self, *names):
            states = [name if isinstance(name, JobState) else JobState(name) for name in names]
            return [
                TaskState(self.made, entry, state)
                for entry, state in zip(self.made.entries, states, strict=True)
            ]

        def key(self, case):
            return self.cases[case].key

    return Study


def counted(found):
    return {state: sum(counts[state] for counts in found.counts.values()) for state in status.STATES}


def lines(found, every=False):
    return [line.plain for line in status.lines(found, every)]


def call(words, capsys):
    code = main.main([str(word) for word in words])
    told = capsys.readouterr()
    return code, told.out, told.err


def test_every_case_that_was_asked_for_is_in_one_state(study, make_record):
    one = study(12).start(0).start(1, "n2").start(4)
    one.end(0, 0, make_record).end(
        0, 1, make_record, "failed", reason="wrong_answer", text="point 3 is wrong"
    )
    one.say(1, "begin", 2).end(4, 8, make_record).say(4, "begin", 9)
    found = status.read(
        one.folder, one.seen("COMPLETED", "RUNNING", "PENDING", "CANCELLED", "TIMEOUT", "RUNNING")
    )
    # of two cases each: done; one runs and one waits; both wait; neither began; one was cut off; both are to come
    assert counted(found) == {"ok": 2, "skipped": 0, "failed": 2, "running": 1, "queued": 5, "missing": 2}
    assert sum(counted(found).values()) == 12 and found.failed


def test_what_failed_and_what_runs_is_told_with_its_key_node_attempt_and_reason(study, make_record):
    one = study(4).start(0).start(1, "n2")
    one.end(0, 0, make_record).end(
        0, 1, make_record, "failed", reason="error", text="RuntimeError: [bold]luck[/]", attempt=2
    )
    one.say(1, "begin", 2, attempt=3)
    told = lines(status.read(one.folder, one.seen("COMPLETED", "RUNNING")))
    assert len(told) == 2
    assert re.match(
        rf"failed  {one.key(1)[:6]}  poisson .*  on n1, attempt 2  error: RuntimeError: \[bold\]luck\[/\]$",
        told[0],
    )
    assert re.match(
        rf"running {one.key(2)[:6]}  poisson .*  on n2, attempt 3, for \d+ s, task 0002$", told[1]
    )


@pytest.mark.parametrize(
    "state", ["TIMEOUT", "PREEMPTED", "NODE_FAIL", "CANCELLED", "OUT_OF_MEMORY", "FAILED", "LOST"]
)
@pytest.mark.parametrize("begun", [True, False], ids=["begun", "not begun"])
def test_what_a_task_lost_is_told_as_the_next_run_will_put_it_on_record(state, begun, study, make_record):
    one = study(2)
    if begun:
        one.start(0).end(0, 0, make_record).say(0, "begin", 1)
    seen = one.keep(JobState(state)).seen(state)
    before = status.read(one.folder, seen)
    lost_cases.record_lost_cases(one.folder, seen)
    after = status.read(one.folder, seen)
    assert counted(before) == counted(after) and before.failed == after.failed
    assert [line.replace("on n1, ", "") for line in lines(before)] == [
        line.replace("on n1, ", "") for line in lines(after)
    ]


def test_a_requeued_task_runs_nothing_until_it_has_started_again(study):
    one = study(2).start(0).say(0, "begin", 0)
    assert counted(status.read(one.folder, one.seen("RUNNING")))["running"] == 1
    for waits in ("PENDING", "REQUEUED"):
        found = status.read(one.folder, one.seen(waits))
        [row], _ = status_table.task_rows(found.tasks)
        assert counted(found)["queued"] == 2 and row.cells[3:6] == (waits.lower(), "", "")
    one.start(0, "n2")
    found = status.read(one.folder, one.seen("RUNNING"))
    assert counted(found)["queued"] == 2 and found.tasks[0].journal.runs == 2
    one.say(0, "begin", 0, attempt=2)
    found = status.read(one.folder, one.seen("RUNNING"))
    assert (counted(found)["running"], counted(found)["queued"]) == (1, 1)
    assert "on n2, attempt 2" in lines(found)[0]
    [row], _ = status_table.task_rows(found.tasks)
    assert row.cells[0] == "0001, run 2"


@pytest.mark.parametrize(
    ("attempt", "reason", "state"), [(1, "killed", "queued"), (3, "killed", "failed"), (1, "error", "failed")]
)
def test_what_a_task_that_has_started_again_will_not_try_again_is_not_in_the_queue(
    attempt, reason, state, study, make_record
):
    one = study(2).start(0).say(0, "begin", 0, attempt).start(0)
    record = make_record(
        "failed", reason=reason, text="", attempt=attempt, started_at="2099-11-21T20:00:00.000+00:00"
    )
    store.Writer(one.folder).append(dataclasses.replace(record, case=one.cases[0]))
    found = counted(status.read(one.folder, one.seen("RUNNING")))
    assert found["queued"] == 1 + (state == "queued") and found["failed"] == (state == "failed")


def test_the_logs_of_what_has_begun_are_found_without_the_file_of_its_task(study):
    one = study(2).start(0).say(0, "begin", 0).keep(JobState("FAILED"))
    one.made.entries[0].path.unlink()
    known = logs.look(one.folder)
    assert "attempt 1, task 20261121T201500-3f2a/0001" in next(logs.parts(known, one.key(0))).text


def tallies(study, states, cases):
    one = study(cases)
    return one.seen(*(states[n % len(states)] for n in range(len(one.made.entries))))


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize(
    "states",
    [
        ["COMPLETED"],
        ["PENDING"],
        ["CANCELLED"],
        ["RUNNING", "PENDING", "COMPLETED"],
        ["FAILED", "TIMEOUT", "RUNNING", "COMPLETED"],
    ],
    ids=",".join,
)
def test_a_table_has_every_task_in_one_line_and_few_lines_of_hundreds(states, every, study):
    tasks = tallies(study, states, 400)
    rows, left_out = status_table.task_rows(tasks, every)
    assert sorted(task.entry.name for row in rows for task in row.tasks) == sorted(
        task.entry.name for task in tasks
    )
    assert left_out == 0 and (len(rows) == 200 if every else len(rows) <= 50)
    assert sum(int(row.cells[6].partition("/")[2]) for row in rows) == 400
    assert all(row.is_single or len(row.tasks) > 1 for row in rows)


def test_of_many_submissions_the_old_lines_are_left_out_but_nothing_that_lives(study):
    several = [study(2, stamp=f"20261121T2015{n:02}-3f2a") for n in range(50)]
    seen = [one.seen("PENDING" if n == 3 else "COMPLETED")[0] for n, one in enumerate(several)]
    rows, left_out = status_table.task_rows(seen)
    assert len(rows) + left_out == 50 and left_out > 0
    assert [row.submission for row in rows if row.open] == ["20261121T201503-3f2a"]
    assert rows[-1].submission == "20261121T201549-3f2a"
    assert status_table.task_rows(seen, every=True)[1] == 0


@pytest.mark.parametrize(
    ("said", "told"), [("1-02:03:04", "26 h 03 min"), ("00:00:05", "5 s"), ("3:04", "3 min"), ("", "")]
)
def test_the_time_of_a_task_is_told_in_words(said, told, study):
    one = study(2)
    [row], _ = status_table.task_rows(one.seen(JobState("COMPLETED", elapsed=said)))
    assert row.cells[5] == told


def test_long_lists_are_cut_and_say_how_to_see_all(study, make_record):
    one = study(60).start(0)
    for case in range(60):
        if case % 2:
            one.end(0, case, make_record, "failed", reason="error", text=f"number {case}.")
    found = status.read(one.folder, one.seen(*["CANCELLED"] * 30))
    cut = lines(found)
    assert (
        len(cut) == 40
        and cut[19] == "failed  and 11 more; --all shows them"
        and cut[39] == "missing and 11 more; --all shows them"
    )
    whole = lines(found, every=True)
    assert len(whole) == 60 and all(
        any(f"number {case}." in line for line in whole) for case in range(1, 60, 2)
    )


def test_what_waits_is_listed_when_all_is_asked_for(study):
    one = study(4)
    found = status.read(one.folder, one.seen("PENDING", "PENDING"))
    assert lines(found) == []
    assert [line.split("  ")[-1] for line in lines(found, every=True)] == ["task 0001"] * 2 + [
        "task 0002"
    ] * 2


def test_a_key_is_shown_as_long_as_it_must_be_and_no_longer():
    assert status.shortest([]) == status.shortest(["ab" * 8]) == 6
    assert status.shortest(["0" * 16, "1" * 16]) == 6
    assert status.shortest(["00000000" + "1" * 8, "00000001" + "1" * 8, "f" * 16]) == 8


def test_a_folder_without_jobs_is_told_as_it_always_was(make_record, tmp_path, capsys):
    good, bad = make_record(points=7), make_record("failed", points=9, reason="error", text="long ago")
    writer = store.Writer(tmp_path)
    writer.append(good)
    writer.append(bad)
    code, out, _ = call(["status", tmp_path], capsys)
    head = re.sub(r"[^\w\s]", "", next(line for line in out.splitlines() if "workload" in line)).split()
    assert code == 1 and head == ["workload", "ok", "skipped", "failed", "missing"]
    assert re.match(rf"failed  {bad.key[:6]}\w*  linear ", out.splitlines()[-1]) and out.splitlines()[
        -1
    ].endswith("  error: long ago")
    assert call(["cancel", tmp_path], capsys)[:2] == (0, "nothing waits or runs\n")


def test_a_rejected_submission_is_said_with_its_reason_while_cases_are_missing(
    tmp_path, make_record, monkeypatch
):
    case = make_record().case
    items = [ScheduledCase(PreflightResult(case, None, None, ()), 0, 1)]
    made = schedule.make_schedule(
        [items[0].preflight], RunSettings(), Machine("cpu", None, 1, remote=True), []
    )
    task_of_one = [PackedTask(ProcessShape(1), (tuple(items),), 9.0)]
    store.write_json(tmp_path / "study.json", study_manifest("mine", None, [], [case], RunSettings()))

    def reject(*_):
        raise Refusal("Slurm: invalid partition specified: gpuu")

    monkeypatch.setattr(sbatch, "_copy_package", reject)
    with pytest.raises(Refusal):
        sbatch.submit(tmp_path, ClusterSettings(name="local"), task_of_one, RunSettings(), made, False)
    (note,) = status.look(tmp_path).notes
    assert "rejected" in note and "gpuu" in note
    store.Writer(tmp_path).append(make_record())
    assert status.look(tmp_path).notes == []


def test_the_command_remembers_what_the_scheduler_has_forgotten(study, make_record, capsys):
    one = (
        study(2)
        .start(0)
        .end(0, 0, make_record)
        .end(0, 1, make_record)
        .keep(JobState("COMPLETED", "n[1-2]", "00:01:40"))
    )
    code, out, _ = call(["status", one.folder], capsys)
    assert code == 0
    assert [
        word in out for word in ("jobs/20261121T201500-3f2a", "7_0", "completed", "n[1-2]", "2 min", "2/2")
    ] == [True] * 6


def test_without_a_scheduler_to_ask_the_folder_still_tells_what_it_knows(
    study, make_record, monkeypatch, capsys
):
    one = study(4).start(0).end(0, 0, make_record).say(0, "begin", 1)
    monkeypatch.setenv("PATH", "")
    code, out, err = call(["status", one.folder], capsys)
    assert (
        (code, err) == (0, "")
        and "is not installed on this host" in out
        and "what jobs do now is not known" in out
    )
    assert re.search(r"poisson *\D* 1 *\D* 0 *\D* 0 *\D* 1 *\D* 2 *\D* 0", out)
    assert call(["logs", one.folder, one.key(1)], capsys)[0] == 0
    code, _, err = call(["cancel", one.folder], capsys)
    assert code == 2 and "is not installed on this host" in err


def test_status_loads_nothing_heavy(study, make_record):
    one = study(2).start(0).end(0, 0, make_record).keep(JobState("COMPLETED"))
    code = f"from scaling.cli import main as cli; cli.main(['status', {str(one.folder)!r}])"
    ask = f"{code}\nimport sys; print('\\n'.join(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    loaded = {line.split(".")[0] for line in done.stderr.splitlines()}
    assert "rich" in loaded and not loaded & {
        "jax",
        "vl_convert",
        "scipy",
        "wandb",
        "hydra",
        "submitit",
        "jinja2",
    }


def test_watching_in_a_pipe_prints_anew_only_upon_a_change_and_ends_when_nothing_is_left(
    study, make_record, monkeypatch, capsys
):
    one = study(2).start(0)
    ended = [
        lambda: one.seen("PENDING"), lambda: one.seen("PENDING"), lambda: one.seen("RUNNING"), lambda: one.seen("RUNNING"),
        lambda: one.end(0, 0, make_record).seen("RUNNING"), lambda: one.end(0, 1, make_record).seen("COMPLETED"),
    ]  # fmt: skip
    moments = iter(ended)
    monkeypatch.setattr(job_state, "find_tasks", lambda results: next(moments)())
    monkeypatch.setattr(wait.time, "sleep", lambda seconds: None)
    code, out, _ = call(["status", one.folder, "--watch"], capsys)
    assert code == 0 and next(moments, None) is None
    assert re.findall(r"(pending|running|completed) .* (\d/2)", out) == [
        ("pending", "0/2"), ("running", "0/2"), ("running", "1/2"), ("completed", "2/2"),
    ]  # fmt: skip


def test_who_follows_bears_with_a_scheduler_that_does_not_answer_for_a_while(study, monkeypatch):
    one = study(2)
    answers = iter(
        [one.seen("RUNNING"), status.Refusal("busy"), status.Refusal("busy"), one.seen("COMPLETED")]
    )

    def look(_):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(job_state, "find_tasks", look)
    monkeypatch.setattr(wait.time, "sleep", lambda seconds: None)
    assert [seen[0].state.name for seen in wait.poll(one.folder)] == ["RUNNING", "COMPLETED"]


def test_who_follows_is_told_at_once_of_a_scheduler_that_never_answered(study, monkeypatch):
    def look(_):
        raise status.Refusal("there is no squeue here")

    monkeypatch.setattr(job_state, "find_tasks", look)
    with pytest.raises(status.Refusal, match="no squeue"):
        next(wait.poll(study(2).folder))


def test_the_logs_of_a_case_are_its_story_then_its_worker_then_the_scheduler(study, make_record, capsys):
    one = study(2).start(0).say(0, "begin", 0).start(0, "n2").say(0, "begin", 0, attempt=2)
    one.say(0, "end", 0, attempt=2, status="failed", reason="error", text="a [red]word[/red]", seconds=[])
    one.keep(JobState("COMPLETED"))
    second = "second [bold]run[/bold] in {}\n  indented, " + "long " * 60
    for run, words in ((1, "first run"), (2, second.format(f"{one.folder}/secret/place.py:3"))):
        (one.made.folder / f"0001.run-{run}" / "worker-1.log").write_text(words)
    (one.made.folder / "log").mkdir()
    (one.made.folder / "log" / "7_0_0_log.err").write_text("slurmstepd: error: of the job")
    (one.made.folder / "log" / "7_0_0_log.out").write_text("")
    (one.made.folder / "log" / "7_01_0_log.out").write_text("of another job")
    code, out, _ = call(["logs", one.folder, one.key(0)[:5]], capsys)
    assert code == 0
    told = [
        f"{one.key(0)}  poisson ", "attempt 1, task 20261121T201500-3f2a/0001, job 7_0, run 1, on n1: no end",
        "attempt 2, task 20261121T201500-3f2a/0001, job 7_0, run 2, on n2: failed after 0 s, error: a [red]word[/red]",
        "jobs/20261121T201500-3f2a/0001.run-1/worker-1.log", "first run", "jobs/20261121T201500-3f2a/0001.run-2/worker-1.log",
        second.format(f"{one.folder}/secret/place.py:3"), "7_0_0_log.err", "slurmstepd: error: of the job",
    ]  # fmt: skip
    places = [out.find(words) for words in told]
    assert -1 not in places and places == sorted(places)
    assert "another job" not in out and "7_0_0_log.out" not in out


def test_a_long_log_is_told_by_its_end_unless_all_is_asked_for(study, capsys):
    one = study(2).start(0).say(0, "begin", 0).keep(JobState("FAILED"))
    (one.made.folder / "0001.run-1" / "worker-1.log").write_text("".join(f"line {n}.\n" for n in range(3000)))
    _, out, _ = call(["logs", one.folder, one.key(0)], capsys)
    assert (
        "[2000 lines before these; --all shows them]" in out
        and "line 1999." not in out
        and "line 2000.\n" in out
    )
    _, out, _ = call(["logs", one.folder, one.key(0), "--all"], capsys)
    assert "line 0.\n" in out and "line 2999.\n" in out


def test_of_a_case_that_has_not_begun_the_logs_say_in_which_task_it_is(study):
    one = study(6).start(1)
    one.keep(
        JobState("PENDING", reason="Priority"),
        JobState("RUNNING"),
        JobState("FAILED", reason="exit code 1:0"),
    )
    known = logs.look(one.folder)
    for case, words in enumerate(("waits in", "is to run in", "did not begin in")):
        text = next(logs.parts(known, one.key(2 * case))).text
        assert text.startswith(f"{words} task 20261121T201500-3f2a/000{case + 1}, job 7_{case}: ")
    assert next(logs.parts(known, one.key(0))).text.endswith("pending (Priority)")


def test_a_key_that_is_short_unknown_or_of_several_is_refused_with_those_near_it(study, capsys):
    one = study(2).keep(JobState("PENDING"))
    key = one.key(0)
    other = key[:9] + ("0" if key[9] != "0" else "1") + key[10:]
    for given, words in (
        ("ab", "too short"),
        ("zzzzzz", "no case 'zzzzzz' in"),
        (other, f"near it are {key} \\(poisson "),
    ):
        code, out, err = call(["logs", one.folder, given], capsys)
        assert (code, out) == (2, "") and re.search(words, err) and len(err.splitlines()) == 1
    known = dataclasses.replace(logs.look(one.folder), cases={key: one.cases[0], other: one.cases[1]})
    assert logs.find(known, key[:10]) == key
    with pytest.raises(logs.Refusal, match=f"begins 2 keys, give more of it: {key} .*{other} "):
        logs.find(known, key[:9])


def test_a_case_that_ran_here_has_its_record_for_a_log(make_record, tmp_path, capsys):
    record = make_record(
        "failed", reason="error", text="RuntimeError: no luck", started_at="2026-11-21T20:00:00.123+00:00"
    )
    store.Writer(tmp_path).append(record)
    code, out, _ = call(["logs", tmp_path, record.key], capsys)
    assert code == 0 and out.splitlines()[1:] == [
        "2026-11-21 20:00:00  attempt 1: failed, error: RuntimeError: no luck"
    ]


def until(true, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return found


@pytest.fixture
def running(scaling_command, start_command):
    """A study that runs as a task of this machine; what is left of it is cancelled with the test."""
    submitting = start_command([*SLOW, "wait=false"])
    assert submitting.wait(120) == 0
    until(lambda: re.search(r"running +\w{6,}  poisson", scaling_command(["status", "here"]).stdout))
    yield
    scaling_command(["cancel", "here"])


@pytest.mark.process
def test_who_watches_leaves_with_ctrl_c_and_nothing_is_cancelled(
    running, scaling_command, start_command, tmp_path
):
    watching = start_command(["status", "here", "--watch"])
    assert any("task 0001" in line for line in watching.stdout)
    watching.send_signal(signal.SIGINT)
    _, err = watching.communicate(timeout=30)
    assert (watching.returncode, err) == (130, "")
    [seen] = job_state.find_tasks(tmp_path / "here")
    assert seen.state.name == "RUNNING"
    key = next(attempt.key for attempt in seen.running)
    told = scaling_command(["logs", "here", key[:8]])
    assert told.returncode == 0 and "runs now" in told.stdout and "worker-1.log" in told.stdout


@pytest.mark.process
def test_who_cancels_ends_what_runs(running, scaling_command, tmp_path):
    cancelled = scaling_command(["cancel", "here"])
    assert cancelled.returncode == 0 and cancelled.stdout.startswith("1 task cancelled;"), (
        cancelled.stdout + cancelled.stderr
    )
    assert scaling_command(["cancel", "here"]).stdout == "nothing waits or runs\n"
    after = scaling_command(["status", "here"])
    assert after.returncode == 1 and "cancelled: its job was cancelled while it ran" in after.stdout, (
        after.stdout
    )
    [kept] = (tmp_path / "here" / "jobs").glob("*/states.json")
    assert json.loads(kept.read_text())["0001"]["state"]["name"] == "CANCELLED"


@pytest.mark.process
def test_a_task_of_this_machine_has_the_time_limit_of_its_cluster_and_says_when_it_reaches_it(
    running, scaling_command, tmp_path
):
    [seen] = job_state.find_tasks(tmp_path / "here")
    command = Path(f"/proc/{seen.entry.job}/cmdline").read_bytes().split(b"\0")
    assert command[0] == b"timeout" and b"--signal=USR1" in command and b"86400" in command
    os.kill(seen.journal.pid, task.TIME_LIMIT)
    until(lambda: not job_state.find_tasks(tmp_path / "here")[0].state.live)
    after = scaling_command(["status", "here"])
    assert after.returncode == 1 and "timeout: its job reached its time limit" in after.stdout, after.stdout


def counts_in(text):
    """Return how many cases a text says are ok, skipped and failed."""
    found = re.search(r"(\d+) ok(?:, (\d+) skipped, (\d+) failed)", text)
    return tuple(map(int, found.groups()))


def test_status_terminal_and_page_count_the_same_cases(tmp_path, make_record, scaling_command):
    """Each replicate counts; attempts and an environment of before do not."""
    first, second = {"started_at": "2026-11-21"}, {"started_at": "2026-11-22"}
    made = [make_record(points=7, replicate=replicate, **first) for replicate in (0, 1, 2)]
    made += [make_record(points=8, **first), make_record(points=8, digest="f" * 12, **second)]
    made += [
        make_record("failed", reason="error", text="no", points=9, **first),
        make_record(points=9, replicate=1, **second),
    ]
    made += [
        make_record(points=10, **first),
        make_record("skipped", reason="no_digits", text="none", points=11, **first),
    ]
    ceiling = {
        "workload": "ceiling",
        "target": "copy",
        "sizes": {"k": 4, "terms": 1},
        "mode": "value",
        "api": "jit",
    }
    made += [make_record(**ceiling, started_at="2026-11-21")]
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "a.jsonl").write_text("".join(to_line(record) + "\n" for record in made))
    cases = [{"key": record.key, "case": to_dict(record.case)} for record in made[:7]]
    store.write_json(folder / "study.json", {"study": "mine", "cases": cases})
    found = status.look(folder)
    total = sum(found.counts.values(), Counter())
    assert (total["ok"], total["skipped"], total["failed"]) == (7, 1, 1) and total.total() == 9
    assert counts_in(scaling_command(["report", "here"]).stdout) == (7, 1, 1)
    page = " ".join((folder / "report" / "index.html").read_text().split())
    for count, state in ((7, "ok"), (1, "skipped"), (1, "failed")):
        assert re.search(rf"{count}(?:<[^>]*>|\s)*{state}", page), state


def test_a_failed_case_is_shown_with_the_key_that_logs_wants_and_its_label_will_do(
    tmp_path, make_record, scaling_command
):
    (tmp_path / "here").mkdir()
    record = make_record("failed", reason="error", text="the pump is broken", points=9)
    (tmp_path / "here" / "a.jsonl").write_text(to_line(record) + "\n" + to_line(make_record(points=7)) + "\n")
    shown = scaling_command(["status", "here"]).stdout
    [line] = [line for line in shown.splitlines() if line.startswith("failed")]
    key = line.split()[1]
    assert record.key.startswith(key)
    for words in ([key], [label(record.case)], label(record.case).split(), [label(record.case)[:-1]]):
        done = scaling_command(["logs", "here", *words])
        assert done.returncode == 0 and "the pump is broken" in done.stdout, words
    for words in ([], ["linear"]):
        done = scaling_command(["logs", "here", *words])
        assert (
            done.returncode == 0 and "the pump is broken" in done.stdout and done.stdout.count("attempt") == 1
        )
    shared = " ".join(label(record.case).split()[:3])
    done = scaling_command(["logs", "here", shared])
    assert done.returncode == 2 and "2 cases" in done.stderr


def test_the_logs_of_a_case_that_no_worker_began_are_those_of_the_workers_that_did_not_start(
    study, monkeypatch
):
    one = study(2).start(0)
    one.journals[0].write("stopped", text="the process ended with status 2")
    (one.journals[0].folder / "worker-1.log").write_text(
        "slurmstepd-n1: error: execve(): python: No such file or directory\n"
    )
    one.keep(JobState("FAILED", reason="exit code 1:0"))
    monkeypatch.setattr("scaling.cluster.slurm.run_command", lambda *words: "")
    parts = list(logs.parts(logs.look(one.folder), one.key(0)))
    assert "the process ended with status 2" in parts[0].text
    assert any("execve(): python: No such file" in part.text for part in parts)


def test_each_replicate_that_has_no_record_is_missing_in_status_report_and_lint(
    study, make_record, scaling_command
):
    one = study(2)
    settings = RunSettings(attempts=3, replicates=3)
    store.write_json(
        one.folder / "study.json", study_manifest("mine", None, [], one.cases, settings, {one.key(1)})
    )
    one.start(0).end(0, 0, make_record).say(0, "begin", 0, 1)
    one.journals[0].write("end", key=one.key(0), replicate=0, attempt=1, status="ok", seconds=[])
    one.journals[0].write("begin", key=one.key(0), replicate=1, attempt=1, seat=1)
    now = counted(status.read(one.folder, one.seen("RUNNING")))
    assert (now["ok"], now["running"], now["missing"]) == (1, 1, 1) and now["queued"] == 1
    shutil.rmtree(one.folder / "jobs")
    found = status.look(one.folder)
    assert (counted(found)["ok"], counted(found)["missing"]) == (1, 3)
    assert any(line.startswith("missing") and line.endswith("replicate 2") for line in lines(found))
    assert "3 cases of the study have no record yet" in scaling_command(["report", "here"]).stdout
    assert "cases without a record (3)" in scaling_command(["lint", "here"]).stdout


def test_report_and_lint_see_what_jobs_lost_as_status_does_and_write_no_record(
    study, make_record, scaling_command
):
    one = (
        study(4)
        .start(0)
        .end(0, 0, make_record)
        .say(0, "begin", 1)
        .keep(JobState("TIMEOUT"), JobState("FAILED"))
    )
    assert counted(status.look(one.folder))["failed"] == 3
    assert counts_in(scaling_command(["report", "here"]).stdout) == (1, 0, 3)
    assert "failed cases (3)" in scaling_command(["lint", "here"]).stdout
    assert len(store.load(one.folder).records) == 1


def test_logs_without_a_key_show_the_last_failures_and_each_file_once(study, make_record):
    one = study(8).start(0)
    for case in range(5):
        one.end(0, case, make_record, "failed", reason="error", text=f"number {case}.")
    (one.journals[0].folder / "worker-1.log").write_text("from /home/me/project/model.py\n")
    one.keep(JobState("COMPLETED"), *[JobState("CANCELLED")] * 3)
    known = logs.look(one.folder)
    parts = list(logs.show(known, logs.select(known, "")))
    assert sum("number" in part.text for part in parts) == 3 and parts[-1].title == "2 more"
    assert len({part.title for part in parts}) == len(parts)
    assert any("from /home/me/project/model.py" in part.text for part in parts)  # paths stay as they are
    assert logs.select(known, "poisson") == logs.select(known, "")


def test_logs_without_a_key_and_without_a_failure_show_the_case_that_began_last(study, make_record):
    one = study(2).start(0).end(0, 0, make_record).keep(JobState("COMPLETED"))
    assert logs.select(logs.look(one.folder), "") == [one.key(0)]


def test_a_task_that_waits_for_cores_says_so_in_status_and_logs_until_it_has_them(study, monkeypatch, capsys):
    one = study(2).start(0)
    text = "waits for cores: another study on this host holds them (process 12)"
    one.journals[0].write("waiting", text=text)
    found = status.read(one.folder, one.seen("RUNNING"))
    [row], _ = status_table.task_rows(found.tasks)
    assert row.cells[-1] == text
    monkeypatch.setattr(job_state, "find_tasks", lambda results, query_scheduler=True: one.seen("RUNNING"))
    assert text in next(logs.parts(logs.look(one.folder), one.key(0))).text
    one.say(0, "begin", 0)
    [row], _ = status_table.task_rows(status.read(one.folder, one.seen("RUNNING")).tasks)
    assert row.cells[-1] == ""


def test_an_exception_in_a_function_names_its_line_and_its_traceback_is_in_the_log(
    write_study, write_workload, scaling_command, tmp_path
):
    write_workload(
        head="def halve(x):\n    raise ValueError('bad luck')",
        body="if RUNNING:\n    halve(x)\nreturn jnp.sin(x)[:2] * x[2]",
    )
    lines = (tmp_path / "mine.py").read_text().splitlines()
    number = next(n for n, line in enumerate(lines, 1) if "bad luck" in line)
    words = write_study("{workload: mine, points: 6, mode: jacfwd}")
    done = scaling_command([*words, "cluster=local", "bind=false", "results=here"], timeout=60)
    [record] = store.load(tmp_path / "here").records
    assert (
        done.returncode == 1
        and record.reason == "error"
        and f"ValueError: bad luck (mine.py:{number})" in record.text
    )
    log = scaling_command(["logs", "here"]).stdout
    assert f'File "{tmp_path / "mine.py"}", line {number}, in halve' in log and "site-packages" not in log


def test_the_cases_of_a_job_that_began_none_are_one_line_with_their_number(study):
    one = study(6).keep(JobState("FAILED"), JobState("CANCELLED"), JobState("CANCELLED"))
    found = status.look(one.folder)
    assert [
        line
        for line in lines(found)
        if line.startswith("failed") and "  2 cases  " in line and "before its first" in line
    ]
    assert sum("before its first" in line for line in lines(found)) == 1
    assert sum("before its first" in line for line in lines(found, every=True)) == 2


def test_the_progress_of_a_submission_counts_all_of_its_cases_from_first_to_last(study, make_record):
    one = study(4)
    said = [wait.progress_line(one.seen("RUNNING", "PENDING"))]
    one.start(0).end(0, 0, make_record).end(0, 1, make_record)
    said.append(wait.progress_line(one.seen("COMPLETED", "RUNNING")))
    assert [words.partition("; ")[2] for words in said] == [
        "0 of 4 cases have ended",
        "2 of 4 cases have ended",
    ]
