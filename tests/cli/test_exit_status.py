"""Tests of the exit status of a run: it depends only on the requested cases in the current environment."""

import errno
import os
import resource
import signal
import subprocess
import sys
import types

import pytest

from scaling.cli import main, report, run
from scaling.cluster import sbatch, task_state
from scaling.core.case import Case
from scaling.core.record import Writer
from scaling.launcher.schedule import PreflightResult
from scaling.results import store
from scaling.results.store import load
from scaling.study.case_rules import complete

TINY = ["run", "study=function", "workload=poisson", "points=16", "devices=1", "mode=jacrev", "results=here"]
SMALL = ["sampling.seconds=0.01", "sampling.most=7", "sampling.warm_up=0.001"]


def test_a_failure_in_another_environment_is_reported_but_does_not_fail_the_run(
    scaling_command, make_record, tmp_path
):
    assert scaling_command([*TINY, *SMALL]).returncode == 0
    case = complete(Case("poisson", points=16, mode="jacrev"))
    assert case.key in {record.key for record in load(tmp_path / "here").records}
    fields = {name: getattr(case, name) for name in ("workload", "target", "sizes", "points", "wrt", "mode")}
    Writer(tmp_path / "here").append(
        make_record(status="failed", digest="another", reason="error", text="long ago", **fields)
    )
    done = scaling_command([*TINY, *SMALL])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 cases to run" in done.stdout and "1 record of other environments" in done.stdout
    assert "long ago" in (tmp_path / "here" / "report" / "index.html").read_text()


@pytest.mark.parametrize(("missing", "queued", "status"), [(0, 0, 0), (2, 0, 1), (2, 1, 1), (2, 2, 0)])
def test_a_run_that_ends_with_cases_without_a_record_exits_with_status_1(
    monkeypatch, make_record, missing, queued, status
):
    """Cases of another study, which has replaced study.json in the meantime, do not count."""
    recorded = [make_record(replicate=number) for number in range(3 - missing)]
    found = types.SimpleNamespace(records=recorded, missing=["a case of another study"])
    monkeypatch.setattr(report, "write_and_print", lambda *_, **__: found)
    job = types.SimpleNamespace(
        folder=None, baseline=None, tracking=None, settings=types.SimpleNamespace(replicates=3),
        checked=[PreflightResult(recorded[0].case, None, None)],
    )  # fmt: skip
    schedule = types.SimpleNamespace(environments={}, queued=queued)
    loaded = types.SimpleNamespace(records=[])
    assert run._report_and_publish(job, schedule, loaded, None) == status


@pytest.mark.usefixtures("preflight_in_this_process")
@pytest.mark.parametrize(("waits", "status"), [("true", 1), ("false", 0)])
def test_a_run_that_waits_for_a_task_without_a_result_submits_it_once_and_exits_with_status_1(
    monkeypatch, tmp_path, restore_signals, waits, status, capsys
):
    monkeypatch.chdir(tmp_path)
    jobs = {"0001": str(2**22 + 1)}
    monkeypatch.setattr(
        sbatch, "_start_process", lambda submission, *_: sbatch.save_job_ids(submission, jobs)
    )
    assert main.main([*TINY, "cluster=local", f"wait={waits}"]) == status
    assert len(list(tmp_path.glob("here/jobs/*"))) == 1
    assert ("repeat the command to run these cases" in capsys.readouterr().out) == (waits == "true")


def test_ctrl_c_while_a_run_waits_for_its_tasks_exits_with_status_130(
    monkeypatch, tmp_path, restore_signals, capsys
):
    monkeypatch.setattr(task_state, "find_tasks", lambda _: os.kill(os.getpid(), signal.SIGINT))
    monkeypatch.setattr(
        main, "_run_command", lambda _, console: run._wait_until_done(tmp_path / "here", console)
    )
    assert main.main([]) == 130
    error = capsys.readouterr().err
    assert error.startswith("scaling: no longer waiting; `scaling status ") and len(error.splitlines()) == 1


def test_signals_during_the_cleanup_after_a_signal_have_no_effect(monkeypatch, restore_signals, capsys):
    def clean_up(*_):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            for number in (signal.SIGHUP, signal.SIGTERM) * 3:
                os.kill(os.getpid(), number)

    monkeypatch.setattr(main, "_run_command", clean_up)
    assert main.main([]) == 130
    os.kill(os.getpid(), signal.SIGTERM)  # while the interpreter ends
    assert capsys.readouterr().err.startswith("scaling: stopped;")


def test_ctrl_c_during_the_imports_of_the_command_is_one_line():
    code = (
        "import os, signal, sys; sys.argv = ['bin/scaling']; sys.path.insert(0, os.getcwd());"
        "signal.signal(signal.SIGINT, signal.default_int_handler); import scaling.cli.main;"
        "os.kill(os.getpid(), signal.SIGINT)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "scaling: stopped\n")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        ImportError("x.so: failed to map segment from shared object"),
        RuntimeError("can't start new thread"),
    ],
)
def test_a_command_that_runs_out_of_memory_ends_with_one_line(error, fail_with):
    status, message = fail_with(error, ["status", "here"])
    assert status == 1 and message.startswith(f"scaling: {str(error) or 'out of memory'}: check `ulimit -a`")


def test_a_limit_of_virtual_memory_in_which_numpy_never_returns_is_refused(
    restore_signals, monkeypatch, capsys, tmp_path
):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (200_000 * 1024, resource.RLIM_INFINITY))
    assert main.main(["report", str(tmp_path)]) == 2
    assert "less than the 1 GiB" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EFBIG, errno.EAGAIN, errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("name", [None, "results/mine"])
def test_an_error_of_the_system_is_one_line_with_its_reason_and_its_file(number, name, fail_with):
    status, message = fail_with(OSError(number, os.strerror(number), name))
    reason = f"{name}: {os.strerror(number)}" if name else os.strerror(number)
    assert status == 1 and message.startswith(f"scaling: cannot continue: {reason}; correct this"), message


def test_the_records_of_a_folder_that_was_deleted_during_a_run_are_not_called_kept(
    monkeypatch, restore_signals, capsys, tmp_path
):
    monkeypatch.setattr(main, "_run_command", lambda *_: Writer(tmp_path / "gone").append("{}"))
    assert main.main(["run"]) == 1
    message = " ".join(capsys.readouterr().err.split())
    assert "No such file or directory; correct this" in message and "kept" not in message


@pytest.mark.parametrize("action", ["read", "write"])
def test_a_folder_in_place_of_a_file_is_one_line_with_its_name(
    action, monkeypatch, restore_signals, capsys, tmp_path
):
    folder, open_before = tmp_path / "study.json", set(os.listdir("/proc/self/fd"))
    folder.mkdir()

    def fail(*_):
        return store.read_file(folder) if action == "read" else store.replace_file(folder, b"")

    monkeypatch.setattr(main, "_run_command", fail)
    assert main.main(["run"]) == 1
    message = "".join(capsys.readouterr().err.split())
    assert message.startswith(f"scaling:cannotcontinue:{folder}:Isadirectory;"), message
    assert set(os.listdir("/proc/self/fd")) <= open_before
