"""`scaling advise`: a function of a file or a workload on the command line; bad words are one line and exit status 2."""

import importlib
import os
import re
import signal
import subprocess
import sys

import jax
import pytest

from scaling.cli import advise
from scaling.cli.advise import import_function
from scaling.cli.main import main
from scaling.cli.output import make_console
from scaling.core.case import Case, Refusal
from scaling.launcher import machine

SPRING = """\
import jax.numpy as jnp

def force(x, stiffness):
    return stiffness * jnp.sin(x[1:] - x[:-1])
"""


@pytest.mark.parametrize(
    ("words", "explanation"),
    [
        ("spring.py:force", "one function with --points"),
        ("--points x=3,2", "one function with --points"),
        ("spring.py:force a.py:g --points x=3,2", "one function with --points"),
        ("workload=linear --points x=3,2", "one function with --points"),
        ("spring.py:force --points x", "--points takes NAME=SHAPE, such as x=100000,17"),
        ("spring.py:force --points x=3,2 --shard k=2", "unrecognized arguments: --shard"),
        ("spring.py:force --points x=3,2 budget=soon", "budget must be a number of seconds"),
        ("spring.py:force --points x=3,2 budget=inf", "budget must be a number of seconds"),
        (
            "spring.py:force --points x=3,2 budget=1e1",
            "budget must be a number of seconds, such as 30 or 0.5, not",
        ),
        (
            "spring.py:M.f --points x=3,2",
            "does not name a function in an existing file with the name of a module: write FILE.py:NAME",
        ),
        (
            "os.path:join --points x=3,2",
            "does not name a function in an existing file with the name of a module: write FILE.py:NAME",
        ),
        ("spring.py:force --points x=3,2 --points x=4,2", "--points x= and x= exclude each other"),
        (
            "spring.py:force --points x=3,2 --shared p.k=2 --shared p=2",
            "--shared p= and p.k= exclude each other: give each input once",
        ),
        (
            "spring.py:force --points x=3,2 budget=1 budget=2",
            "budget must be a number of seconds, such as 30 or 0.5, not '1 2'",
        ),
        ("spring.py:force --points x=3,2:float99", "unknown dtype 'float99'"),
        ("nosuch.py:force --points x=3,2", "'nosuch.py:force' does not name a function in an existing file"),
        ("spring.py:force --points x=3,2 devices=0", "devices=[0]: this machine has"),
        ("spring.py:force --points x=3,2 devices=[]", "devices=[]: give a number of devices, or several"),
        ("workload=linear devices=[[1]]", "devices=[[1]]: give a number of devices"),
        ("workload=linear devices=1.0", "devices=[1.0]: give a number of devices"),
        ("workload=linear devices=true", "devices=[True]: give a number of devices"),
        ("workload=linear budget=", "such as 30 or 0.5, not ''"),
        (
            "spring.py:force --points x=3,2 wrt=x,k",
            "wrt=x,k: to differentiate with respect to all of them, write wrt=x+k; to run each",
        ),
        ("spring.py:force --points x=3,2 chunk=4", "chunk= has no effect on advice: use wrt"),
        ("workload=linear hardware=h100 hardware.memory=1", "hardware.memory= has no effect on advice"),
        ("workload=linear --shared k=2", "one function with --points"),
        ("workload=linear chunk=4", "chunk= has no effect on advice: use workload"),
        ("workload=linear sizes.p=[3,4]", "only devices takes a list"),
        ("workload=linear hardware=h10", "did you mean 'h100'"),
        ("workload=linear devices=4096", "devices=[4096]: this machine has"),
        ("workload=linear budget=0 devices=[1,4096]", "devices=[1, 4096]: this machine has"),
    ],
)
def test_bad_words_are_explained_in_one_line(words, explanation, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    assert main(["advise", *words.split()]) == 2
    out, error = capsys.readouterr()
    assert explanation in error and error.count("\n") == 1
    assert out == ""  # nothing was started


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("my-spring", "name of a module: write FILE.py:NAME"),
        ("lambda", "name of a module: write FILE.py:NAME"),
        ("copy", "another module, copy: rename it"),
    ],
)
def test_a_file_that_its_name_does_not_import_is_refused(file, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / f"{file}.py").write_text(SPRING)
    with pytest.raises(Refusal, match=f"{file}.py.*{words}"):
        import_function(f"{file}.py:force")


@pytest.mark.parametrize(
    ("replies", "devices", "status", "words"),
    [
        ([("2 s", False), ("1 s", False)], "[1,2]", 0, "devices: 1 device 2 s; 2 devices 1 s.\n"),
        ([("2 s", False), Refusal("few points")], "[1,2]", 0, "\ndevices=2 is left out: few points\n"),
        ([Refusal("few points"), ("2 s", False)], "[2,1]", 0, "\ndevices=2 is left out: few points\n"),
        ([Refusal("no points"), Refusal("few points")], "[2,1]", 2, "scaling: no points"),
        ([("2 s", True)], "[1,2]", 0, ""),
        ([("2 s", False), KeyboardInterrupt()], "[1,2]", 0, ""),
        ([KeyboardInterrupt()], "[1,2]", 130, "stopped before there was any advice"),
        ([("2 s", False)], "[1,1]", 0, ""),
    ],
    ids=["both", "second refused", "first refused", "both refused", "stopped with advice", "stopped in second",
         "stopped", "equal"],
)  # fmt: skip
def test_each_number_of_devices_is_advised_on_once_until_a_signal(
    replies, devices, status, words, monkeypatch, capsys
):
    pending = list(replies)

    def run_in_process(words, request):
        reply = pending.pop(0)
        if isinstance(reply, BaseException):
            raise reply
        return reply

    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setattr(advise.cores, "usable_cores", lambda: [0, 1])
    monkeypatch.setattr(advise, "_run_in_process", run_in_process)
    assert main(["advise", "workload=linear", f"devices={devices}"]) == status
    out, error = capsys.readouterr()
    assert words in out + error and not pending


def test_no_advice_on_a_cpu_is_given_for_an_accelerator_that_jax_does_not_find(monkeypatch, capsys):
    monkeypatch.setenv("JAX_PLATFORMS", "cuda,cpu")
    monkeypatch.setattr(machine, "_query_jax_devices", lambda: machine.Machine("cpu", "cpu", 1))
    monkeypatch.setattr(advise, "_run_in_process", lambda *_: ("1 s", False))
    assert main(["advise", "workload=linear"]) == 2
    assert "JAX cannot start gpu of JAX_PLATFORMS=cuda,cpu" in capsys.readouterr().err


def test_a_list_of_one_workload_is_the_workload():
    request = advise._parse_request(["workload=[linear]"])
    assert request.name == request.case.workload == "linear"


def test_an_empty_target_is_not_replaced_by_the_default():
    request = advise._parse_request(["spring.py:force", "--points", "x=4,5", "target="])
    assert request.options["target"] == "", "`make_problem` refuses it"


def test_ctrl_c_while_the_command_is_imported_names_no_records(monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib, "import_module", interrupt)
    assert main(["advise", "workload=linear"]) == 130
    assert capsys.readouterr().err == "scaling: stopped before there was any advice\n"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Return the environment variable of a cache folder, so that the peaks of this machine are measured once."""
    return {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}


@pytest.mark.process
def test_a_function_of_a_file_is_advised_on(scaling_command, cache, tmp_path):
    no_flags = "import os\nassert not os.environ['XLA_FLAGS'], 'the code to paste sets no flags'\n"
    no_flags += "assert not os.environ['GLIBC_TUNABLES'], 'the code to paste is slower without it'\n"
    no_arguments = "import sys\nassert len(sys.argv) == 1, 'arguments of this program'\n"
    (tmp_path / "spring.py").write_text(SPRING + no_flags + no_arguments)
    words = ["advise", "spring.py:force", "--points", "x=64,5", "--shared", "stiffness=4", "budget=1"]
    done = scaling_command(
        words, env=cache | {"PYTHONIOENCODING": "ascii", "XLA_FLAGS": "", "GLIBC_TUNABLES": ""}, fresh=True
    )  # without a µ
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("spring.py:force on this machine (cpu), devices=[1]: measured for up to 1 s")
    assert "from spring import force" in lines and any(
        line.startswith("jacobian = jax.jit(") for line in lines
    )


@pytest.mark.process
def test_ctrl_c_while_the_function_is_traced_ends_without_advice(scaling_command, cache, tmp_path):
    body = "def force(x):\n    os.kill(os.getppid(), signal.SIGINT)\n    time.sleep(9)\n"
    (tmp_path / "spring.py").write_text(f"import os, signal, time\n\n{body}")
    done = scaling_command(["advise", "spring.py:force", "--points", "x=64,5"], env=cache, fresh=True)
    assert done.returncode == 130 and "stopped before there was any advice" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.process
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 130), (signal.SIGKILL, -9)], ids=["SIGTERM", "SIGKILL"]
)
def test_a_signal_to_the_command_alone_also_ends_the_process_that_measures(
    number, status, start_command, tmp_path
):
    (tmp_path / "spring.py").write_text("import time\nprint('imported', flush=True)\ntime.sleep(1000)\n")
    process = start_command(["advise", "spring.py:force", "--points", "x=64,5"])
    assert "imported\n" in iter(process.stdout.readline, "")
    process.send_signal(number)
    process.communicate(timeout=60)  # until no process holds its output
    assert process.returncode == status


@pytest.mark.process
def test_a_workload_is_advised_on_and_the_command_that_runs_it_is_named(scaling_command, cache, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from scaling.workload import Workload, normal\n\n\n"
        "def workload(case):\n    return Workload(lambda x: x[1:] * x[0], points={'x': normal(5)})\n"
    )
    words = ["advise", "workload=mine", "points=8", "devices=[1,2]", "budget=0"]
    done = scaling_command(words, env=cache, fresh=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("scaling run study=function") == 2
    assert [line for line in done.stdout.splitlines() if ": by compiling alone" in line] == [
        f"mine on this machine (cpu), devices=[{count}]: by compiling alone" for count in (1, 2)
    ]
    last_line = done.stdout.splitlines()[-1]
    assert re.fullmatch(
        r"Best time .* devices: 1 device .+ per call, predicted; 2 devices .+ per call, predicted\.",
        last_line,
    )


@pytest.mark.thin(3, "thorough")
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("def force(x):\n    return float(x[0])\n", "abstract inputs"),
        ("raise SystemExit(3)\n", "spring.py:force raised SystemExit(3); remove it"),
        ("import sys\n\ndef force(x):\n    sys.exit(3)\n", "spring.py:force raised SystemExit(3); remove"),
        ("raise KeyboardInterrupt\n", "spring.py:force raised KeyboardInterrupt(); remove it"),
        ("import os\nos._exit(3)\n", "died"),
        (
            "import jax\njax.config.update('jax_num_cpu_devices', 3)\n",
            "jax_num_cpu_devices config should be updated before",
        ),
        ("def force(y):\n    return y\n", "the function takes (y), but the inputs are x"),
    ],
)
def test_a_bad_function_is_explained_in_one_line(body, words, scaling_command, tmp_path):
    (tmp_path / "spring.py").write_text(body)
    done = scaling_command(["advise", "spring.py:force", "--points", "x=64,5"], fresh=True)
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_a_refusal_follows_no_table(monkeypatch, capsys):
    monkeypatch.setattr(advise, "_start_jax", lambda *_: None)
    options = {"budget": 0.0, "devices": [1], "hardware": None}
    request = advise._Request("linear", Case("linear", target="hessian"), {}, {}, options, False)
    with pytest.raises(Refusal, match="target=hessian"):
        advise._advise(request, make_console())
    assert capsys.readouterr().out == ""


@pytest.mark.process
def test_a_setting_with_which_jax_cannot_start_is_one_line(scaling_command):
    words = ["advise", "workload=linear", "budget=0"]
    done = scaling_command(words, env={"JAX_NUM_CPU_DEVICES": "abc"}, fresh=True)
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("scaling: "))  # plugins log more
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "JAX cannot start: ValueError" in line and "variables JAX_*" in line


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_only_the_compile_threads_leave_the_core_that_is_measured():
    code = """
import os, threading, time
usable = sorted(os.sched_getaffinity(0))
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()  # like the one that waits for the launcher
os.sched_setaffinity(0, usable[:1])
import jax
from scaling.advice import candidates
jax.devices()
assert candidates._find_compile_cores() == usable[:1]
before = os.listdir("/proc/self/task")
candidates.start_compile_threads(usable)
cores = {thread: os.sched_getaffinity(int(thread)) for thread in os.listdir("/proc/self/task")}
assert all(cores[thread] == {usable[0]} for thread in before)
assert set(usable) in [cores[thread] for thread in set(cores) - set(before)]
assert candidates._find_compile_cores() == usable
"""
    variables = os.environ | {"JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", code], env=variables, check=True, timeout=120)


def test_dotted_names_of_inputs_are_entries_of_nested_dicts():
    shapes = advise._parse_shapes("shared", ["p.w=5,3", "p.deep.b=scalar", "k=2:int32"])
    struct = jax.ShapeDtypeStruct
    expected = {
        "p": {"w": struct((5, 3), "float32"), "deep": {"b": struct((), "float32")}},
        "k": struct((2,), "int32"),
    }
    assert advise._make_structs(shapes) == expected


@pytest.mark.process
def test_a_process_that_dies_is_explained_in_one_line(scaling_command):
    words = ["advise", "workload=linear", "budget=0"]
    done = scaling_command(words, env={"XLA_FLAGS": "--nothing"}, fresh=True)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2 and "died: Unknown flag in XLA_FLAGS: --nothing; correct or unset it" in line


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "explanation"),
    [
        ("workload=nope", "unknown workload 'nope'"),
        ("spring.py:force --points x=64,5 --shared stiffness=4 target=hesian", "did you mean 'hessian'"),
    ],
)
def test_an_argument_that_only_the_process_with_jax_can_check_is_refused_in_one_line(
    words, explanation, scaling_command, tmp_path
):
    (tmp_path / "spring.py").write_text(SPRING)
    done = scaling_command(["advise", *words.split()], fresh=True)
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("scaling: "))  # plugins log more
    assert done.returncode == 2 and done.stdout.count("\n") == 1 and explanation in line
