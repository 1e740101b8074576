"""Tests of user modules that die, hang, fork, print endlessly or modify their process: one failed case, the rest runs."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

from scaling.core.case import Case
from scaling.launcher.worker_group import WorkerDied
from scaling.results.store import latest_records, load
from scaling.study import preflight
from scaling.study.grid import GridCell
from scaling.study.preflight_process import describe_changes
from tests.support.commands import QUICK, wait_until

pytestmark = pytest.mark.process

HEAD = """\
import atexit, builtins, ctypes, json, os, resource, signal, subprocess, sys, threading, time

import jax
import jax.numpy as jnp
import numpy as np

from scaling.workload import Workload, uniform

VARIANTS = ("plain", "other")
RUNNING = "worker" in os.path.basename(sys.argv[0])  # false in the preflight process
"""
TAIL = """

def workload(case):
    {body}

    def function(x):
        return jnp.sin(x)[:2] * x[2]

    return Workload(function=function, points={{"x": uniform(3, low=0.5)}})
"""
# Name -> (code at import, code in workload(case), reason of its record, part of its text).
FAILING = {
    "sleeps_at_import": ("time.sleep(1000)", "", "timeout", "10 s (case_seconds) while it was imported"),
    "sleeps_in_workload": ("", "time.sleep(1000)", "timeout", "10 s (case_seconds) while workload(case), its f"),
    "prints_without_end": ("while True: print('y' * 999, time.sleep(1e-3))", "", "timeout", "10 s (case_seconds)"),
    "becomes_another_program": ("if RUNNING: os.execvp('sleep', ['sleep', '1000'])", "", "timeout", "10 s (case_seconds)"),
    "segfaults": ("ctypes.string_at(0)", "", "killed", "signal 11 (SIGSEGV) while it was imported"),
    "aborts": ("", "os.abort()", "killed", "signal 6 (SIGABRT) while workload(case), its f"),
    "aborts_in_its_function": ("", "return Workload(lambda x: os.abort(), points={'x': uniform(3)})", "killed", ", its function"),
    "kills_its_group": ("os.killpg(0, signal.SIGKILL)", "", "killed", "signal 9 (SIGKILL)"),
    "closes_descriptors": ("os.closerange(3, 999)", "", "killed", "Bad file descriptor"),
    "eats_memory": ("held = []\nwhile True: held.append(np.empty(2**24))", "", "out_of_memory", "MemoryError"),
}  # fmt: skip
CONTAINED = {  # effects that end with the process and do not change the measurement, several in each module
    "leaves_processes": (
        "threading.Thread(target=time.sleep, args=(1000,)).start()\n"
        "subprocess.Popen(['sleep', '1000'])\n"
        "if os.fork() == 0: time.sleep(1000)",
        "os.fork()",  # and both go on
    ),
    "changes_its_process": (
        "os.chdir('/')\n"
        "os.umask(0o777)\n"
        "for s in set(signal.Signals) - {9, 19}: signal.signal(s, signal.SIG_IGN)\n"
        "os.environ.clear()",
        "if RUNNING: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))",
    ),
    "replaces_the_clock": ("time.perf_counter = lambda: 0.0", ""),
    "replaces_functions_of_json": ("json.dumps = lambda value, **options: b'{}'\njson.loads = str", ""),
    "disturbs_its_end": (
        "atexit.register(time.sleep, 1000)\n"
        "for s in range(1, 20):\n    try: os.write(s, b'\\xff{')\n    except OSError: pass",
        "",
    ),
}
HARMLESS = {"good": ("", ""), "good_too": ("", "")}


def write_module(folder, name, head="", body=""):
    (folder / f"{name}.py").write_text(HEAD + head + TAIL.format(body=body or "pass"))


def live_processes(marker):
    """Return the processes whose environment contains a marker, except this one."""
    processes = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if marker.encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                processes.append((path.parent.name, (path.parent / "cmdline").read_bytes()))
        except OSError:
            continue
    return processes


def remaining_processes(marker, seconds=10.0):
    """Wait until no such process is alive; return those that remain after some seconds."""
    deadline = time.monotonic() + seconds
    while (remaining := live_processes(marker)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return remaining


def run_arguments(folder, text, *arguments):
    conf = folder / "my_conf" / "study"
    conf.mkdir(parents=True, exist_ok=True)
    (conf / "mine.yaml").write_text(text)
    return ["run", "--config-dir", "my_conf", "study=mine", *QUICK, *arguments]


def records(folder):
    return latest_records(load(folder / "results" / "mine").records)


def limit_memory():
    resource.setrlimit(resource.RLIMIT_DATA, (3 * 2**30, resource.RLIM_INFINITY))


@pytest.mark.thorough
def test_each_hostile_module_fails_only_its_own_case_and_leaves_no_process(scaling_command, tmp_path):
    assert len(FAILING) + len(CONTAINED) >= 15
    for name, (head, body, *_) in {**FAILING, **CONTAINED, **HARMLESS}.items():
        write_module(tmp_path, name, head, body)
    modules = ", ".join(["good", *FAILING, *CONTAINED, "good_too"])
    text = f"{{points: 6, api: jit, grids: [{{workload: linear, mode: [jacfwd, jacrev]}}, {{workload: [{modules}]}}]}}"
    arguments = run_arguments(tmp_path, text, "case_seconds=10")
    done = scaling_command(arguments, env={"HOSTILE": str(tmp_path)}, timeout=900, preexec_fn=limit_memory)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert remaining_processes(f"HOSTILE={tmp_path}") == []
    by_case = {(record.case.workload, record.case.mode): record for record in records(tmp_path)}
    assert len(by_case) == len(FAILING) + len(CONTAINED) + len(HARMLESS) + 2
    for name in (*HARMLESS, *CONTAINED):
        assert by_case[name, "jacfwd"].status == "ok", (name, by_case[name, "jacfwd"].text)
    assert by_case["linear", "jacfwd"].status == by_case["linear", "jacrev"].status == "ok"
    assert all(path.stat().st_mode & 0o400 for path in (tmp_path / "results").rglob("*.jsonl"))
    for name, (_, _, reason, message) in FAILING.items():
        record = by_case[name, "jacfwd"]
        assert (record.status, record.reason) == ("failed", reason), (name, record.text)
        assert name in record.text and message in record.text and not record.seconds, (name, record.text)


@pytest.mark.thorough
def test_a_variant_that_dies_in_the_preflight_fails_only_its_own_cases(scaling_command, tmp_path):
    write_module(tmp_path, "mine", body="if case.variant == 'plain': os._exit(7)")
    arguments = run_arguments(tmp_path, "{workload: mine, points: 6, api: jit, variant: [plain, other]}")
    assert scaling_command([*arguments, "dry_run=true"]).returncode == 1
    assert not (tmp_path / "results").exists()
    assert scaling_command(arguments).returncode == 1
    outcomes = {record.case.variant: (record.status, record.reason) for record in records(tmp_path)}
    assert outcomes == {"plain": ("failed", "killed"), "other": ("ok", None)}
    write_module(tmp_path, "mine")
    assert scaling_command(arguments).returncode == 0, "the module is repaired"


@pytest.mark.default
@pytest.mark.parametrize(
    ("died_in", "failed", "processes"),
    [("check", [5, 5], 2), ("wait", [5, 5], 2), ("import", [4, 5, 6, 4, 5, 6], 1)],
)
def test_an_examination_that_dies_fails_only_its_size_and_an_import_that_dies_fails_the_module(
    died_in, failed, processes, monkeypatch
):
    started = []

    class Process:
        def request(self, request, seconds):
            dies = died_in == "import" or request["case"]["sizes"] == {"n": 5}
            if not dies or died_in == "check":
                yield {"event": "begin"}
            if dies:
                raise WorkerDied("timeout", "")
            yield {"event": "answer"}

    @contextlib.contextmanager
    def open_group(*_):
        started.append(1)
        yield Process()

    monkeypatch.setattr(preflight, "open_worker_group", open_group)
    cells = [
        GridCell(Case("mine", points=6, sizes={"n": n}, devices=d), "strong")
        for d in (1, 2)
        for n in (4, 5, 6)
    ]
    answers = preflight.check_cells(cells, 3.0, lambda checked, total: None)
    assert len(started) == processes
    failures = {i: answer["failure"] for i, answer in enumerate(answers) if "failure" in answer}
    assert [cells[i].case.sizes["n"] for i in failures] == failed
    called = "workload(case), its function or its reference was called"
    step = "it was imported" if died_in == "import" else called
    assert set(failures.values()) == {("timeout", f"mine: timed out after 3 s (case_seconds) while {step}")}


@pytest.mark.parametrize(
    ("signal_number", "start"),
    [(signal.SIGKILL, ""), (signal.SIGINT, "subprocess.Popen(['sleep', '1000'])\n")],
)
def test_a_module_that_hangs_in_the_preflight_does_not_outlive_its_launcher(
    signal_number, start, start_command, tmp_path, monkeypatch
):
    monkeypatch.setenv("HOSTILE", str(tmp_path))
    write_module(tmp_path, "mine", f"{start}open('begun', 'w').close()\ntime.sleep(1000)")
    process = start_command(run_arguments(tmp_path, "{workload: mine, points: 6, api: jit}"))
    wait_until((tmp_path / "begun").exists, "the import of the module")
    assert len(live_processes(f"HOSTILE={tmp_path}")) >= 2
    process.send_signal(signal_number)
    process.communicate(timeout=60)
    assert process.returncode == (130 if signal_number == signal.SIGINT else -signal_number)
    assert remaining_processes(f"HOSTILE={tmp_path}") == []


@pytest.mark.default
@pytest.mark.parametrize(
    ("setting", "value", "fix"),
    [("jax_enable_x64", None, "dtype=float64 in the study"), ("jax_platforms", "tpu", "variable JAX_PLATFORMS instead"),
     ("jax_disable_jit", True, "remove that code, and set jit=false in the study instead"),
     ("jax_debug_nans", True, "variable JAX_DEBUG_NANS instead"),
     ("jax_disable_most_optimizations", None, "variable JAX_DISABLE_MOST_OPTIMIZATIONS instead"),
     ("jax_default_matmul_precision", "bfloat16", "precision in the study")],
)  # fmt: skip
def test_a_changed_setting_of_jax_is_reported_with_its_values_and_the_remedy(setting, value, fix):
    settings = jax.config.values
    before = settings[setting]
    value = not before if value is None else value
    jax.config.update(setting, value)
    description = describe_changes(settings)
    jax.config.update(setting, before)
    assert description.startswith(f"changed {setting} from {before!r} to {value!r}; ") and fix in description
    assert describe_changes(settings) is None


SECRET = 's3cret/with a "quote" & more'
RAISES = "SECRET = os.environ['MY_API_TOKEN']\nos.environ.clear()\n"
SECRETIVE = {  # name -> (code at import, code in workload(case)) of modules that raise an exception with a secret
    "in_worker": (RAISES, "if RUNNING: raise KeyError(SECRET)"),
    "interrupts": (RAISES, "if RUNNING: raise KeyboardInterrupt(SECRET)"),
    "leaves_worker": (RAISES + "if RUNNING: sys.exit(f'no {SECRET}')", ""),
}


def assert_no_secret(done, folder):
    """Assert that the name of the secret stands for its value in the output and in all files."""
    texts = [done.stdout, done.stderr]
    suffixes = (".json", ".jsonl", ".html", ".md", ".csv")
    texts += [path.read_text() for path in folder.rglob("*") if path.suffix in suffixes]
    assert "<MY_API_TOKEN>" in "".join(texts)
    assert not [text for text in texts if "s3cret" in text or "&amp; more" in text]


def test_a_secret_in_an_exception_is_neither_printed_nor_written(scaling_command, tmp_path):
    for name, (head, body) in SECRETIVE.items():
        write_module(tmp_path, name, head, body)
    arguments = run_arguments(tmp_path, f"{{workload: [{', '.join(SECRETIVE)}], points: 6, api: jit}}")
    done = scaling_command(arguments, env={"MY_API_TOKEN": SECRET})
    assert done.returncode == 1, done.stderr
    assert_no_secret(done, tmp_path)
    texts = {record.case.workload: record.text for record in records(tmp_path)}
    assert texts.keys() == SECRETIVE.keys()
    assert "<MY_API_TOKEN>" in texts["in_worker"]


@pytest.mark.parametrize(
    ("head", "body"),
    [
        ("raise ImportError(f'no {SECRET}')", ""),
        ("TARGETS = SECRET", "raise TypeError(case.target, SECRET)"),
        ("raise type('Root', (BaseException,), {})(SECRET)", ""),
    ],
)
def test_a_secret_in_a_refusal_is_not_printed(head, body, scaling_command, tmp_path):
    write_module(tmp_path, "mine", RAISES + head, body)
    arguments = run_arguments(tmp_path, "{workload: mine, points: 6, api: jit}")
    done = scaling_command(arguments, env={"MY_API_TOKEN": SECRET})
    assert done.returncode == 2
    assert_no_secret(done, tmp_path)


def test_a_workload_is_built_once_for_cases_that_differ_only_in_layout(scaling_command, tmp_path):
    write_module(tmp_path, "mine", body="open('calls', 'a').write('x')")
    text = "{workload: mine, points: [6, 12], devices: [1, 2], api: [shard_map, pmap], block: [1, 2, 3]}"
    done = scaling_command(run_arguments(tmp_path, text, "dry_run=true", "oversubscribe=true"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("  run   ") > 12
    assert len((tmp_path / "calls").read_text()) <= 2 * 2, "at most two calls per case"


def test_processes_that_a_child_process_started_end_when_it_is_closed(tmp_path):
    from scaling.launcher.child_process import ChildProcess

    script = "sleep 1000 >/dev/null & (sh -c 'sleep 1000 & sleep 1000' >/dev/null &) ; exit 5"
    with contextlib.closing(
        ChildProcess(["sh", "-c", script], env={**os.environ, "HOSTILE": str(tmp_path)})
    ) as process:
        assert process.receive(30) == {"event": "exit", "status": 5}
        assert live_processes(f"HOSTILE={tmp_path}")
    assert remaining_processes(f"HOSTILE={tmp_path}") == []


def test_a_fork_of_a_worker_does_not_keep_the_lock_of_its_results_folder(tmp_path):
    code = """
import os, sys
from scaling import worker
lock = os.open(sys.argv[1], os.O_CREAT)
worker._end_with_launcher({"parent": os.getppid(), "lock": lock}, 0)
child = os.fork()
if not child:
    os._exit(os.path.exists(f"/proc/self/fd/{lock}"))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", code, tmp_path / "lock"], check=False).returncode == 0
