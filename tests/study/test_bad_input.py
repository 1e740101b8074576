"""Tests of bad input: one line with the value and the alternatives, exit status 2, and no process starts.

Most tests call `cli.main` in this process; a few start the command.
"""

import os
import re

import jax
import pytest

import scaling
from scaling.core.case import Refusal
from scaling.study import user_workload
from tests.support.commands import RBF

pytestmark = pytest.mark.thin(12, "thorough")


def check_rejected(done, pattern, folder):
    """Check that the error is one line that matches the pattern, the exit status 2, and that no folder was created."""
    lines = done.stderr.splitlines()
    assert "Traceback" not in done.stderr, lines[-1]
    assert done.returncode == 2, done.stderr
    assert len(lines) == 1, done.stderr
    assert re.search(pattern, lines[0]), lines[0]
    assert lines[0].startswith("scaling: ")
    assert not (folder / "results").exists() and not (folder / "None").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "study=rbff"], "unknown study 'rbff'.*rbf.*did you mean 'rbf'"),
        ([*RBF, "devises=[1]"], "unknown key 'devises'.*did you mean 'devices'"),
        ([*RBF, "devices=64", "points=6400", "api=pmap"], r"devices=64 exceed the \d+ cores? here"),
        ([*RBF, "results=a_file/below"], "cannot write to results=a_file/below: Not.*results=PATH"),
    ],
)
def test_the_command_reports_bad_input_like_main(words, message, scaling_command, tmp_path):
    (tmp_path / "a_file").touch()
    check_rejected(scaling_command(words, timeout=60, fresh=True), message, tmp_path)


def test_compiled_cases_are_rejected_if_jax_compiles_nothing(call_main, tmp_path):
    words = ["run", "study=function", "workload=linear", "devices=1", "dry_run=true"]
    jax.config.update("jax_disable_jit", True)
    try:
        check_rejected(call_main(words), "JAX_DISABLE_JIT is set.*: unset it", tmp_path)
        done = call_main([*words, "jit=false"])
    finally:
        jax.config.update("jax_disable_jit", False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "words", [[*RBF, "devices=1"], ["plan", "study=plan", "hardware=nosuch"], ["advise", "workload=nosuch"]]
)
def test_a_file_of_xla_flags_is_rejected_because_a_record_would_not_contain_them(
    words, call_main, monkeypatch, tmp_path
):
    check_rejected(call_main([*RBF, "versus=xla:flags.txt"]), "versus=xla:flags.txt names a file", tmp_path)
    monkeypatch.setenv("XLA_FLAGS", "flags.txt")
    assert call_main(["run", "--help"]).returncode == 0
    message = "XLA_FLAGS=flags.txt names a file: write the flags that it contains"
    check_rejected(call_main(words), message, tmp_path)


MODULE = """from scaling.workload import Workload, normal
def workload(case):
    return Workload(lambda x: x"""


def test_a_reference_is_called_once_for_all_modes_of_a_problem(call_main, write_study, tmp_path):
    reference = "np.sin(inputs['x']), np.cos(inputs['x'])[:, :, None] * np.eye(3)"
    (tmp_path / "mine.py").write_text(
        "import jax.numpy as jnp, numpy as np\nfrom scaling.workload import Reference, Workload, normal\n"
        f"def reference(inputs):\n    open('calls', 'a').write('x')\n    return Reference({reference})\n"
        "def workload(case):\n    return Workload(lambda x: jnp.sin(x), {'x': normal(3)}, reference=reference)\n"
    )
    study = write_study("{workload: mine, points: 6, api: jit, mode: [jacfwd, jacrev], chunk: [null, 2]}")
    assert call_main([*study, "dry_run=true"]).returncode == 0
    assert (tmp_path / "calls").read_text() == "x"


def test_a_derivative_by_hand_that_takes_other_inputs_is_rejected(call_main, write_study, tmp_path):
    (tmp_path / "mine.py").write_text(
        f"{MODULE}, {{'x': normal(3)}}, whole_modes={{'analytic': lambda y: y}})"
    )
    done = call_main(write_study("{workload: mine, points: 6, api: jit, mode: [jacfwd, analytic]}"))
    message = r"mode=analytic: workload 'mine' fails .* parameters must take the inputs by name: x \(in"
    check_rejected(done, message, tmp_path)


def test_a_gradient_by_hand_of_a_sum_over_points_may_be_a_pytree(call_main, write_study, tmp_path):
    f = "lambda w, b, x: jnp.sum((w @ x + b) ** 2)"
    (tmp_path / "mine.py").write_text(
        "import jax\nimport jax.numpy as jnp\nfrom scaling.workload import Workload, normal\n"
        f"f = {f}\ntotal = lambda w, b, x: jnp.sum(jax.vmap(f, (None, None, 0))(w, b, x))\n"
        "def by_hand(w, b, x):\n    return jax.grad(total, (0, 1))(w, b, x)\n"
        "def workload(case):\n    shared = {'w': normal(4, 3), 'b': normal(4)}\n"
        "    return Workload(f, {'x': normal(3)}, shared, 'w+b', 'points', whole_modes={'analytic': by_hand})\n"
    )
    study = write_study("{workload: mine, points: 6, api: jit, devices: 1, mode: [jacrev, analytic]}")
    done = call_main([*study, "dry_run=true"])
    assert done.returncode == 0, done.stderr


def test_an_error_of_a_module_is_refused_with_the_sizes(call_main, write_study, tmp_path):
    check = "    if case.sizes['n'] == 7:\n        raise ValueError('odd')\n"
    (tmp_path / "mine.py").write_text(
        f"SIZES = {{'n': 4}}\n{MODULE}, {{'x': normal(3)}})".replace("    return", f"{check}    return")
    )
    done = call_main(write_study("{workload: mine, points: 6, api: jit, sizes: {n: [4, 7, 9]}}"))
    check_rejected(done, r"mine n=7: ValueError: odd \(mine.py:5\) \(in", tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[1]",
        "5",
        '{"cases": 3}',
        '{"cases": [{"key": "x"}]}',
        '{"cases": [{"key": "x", "case": {}}]}',
    ],
)
def test_a_damaged_study_file_causes_no_traceback_in_status(text, call_main, tmp_path):
    (tmp_path / "study.json").write_text(text)
    done = call_main(["status", "."])
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 2) and len(done.stderr.splitlines()) <= 1


HELP = {
    "scaling": ([], ["scaling run", "scaling status", "scaling report", "scaling publish"]),
    "scaling --help": (["--help"], ["scaling run", "scaling status", "scaling report", "scaling publish"]),
    "scaling --version": (["--version"], ["0."]),
    "scaling plan --help": (["plan", "--help"], ["hardware=v5p", "--config-dir", "plan-gpu", "Exit status"]),
    "scaling run --help": (["run", "--help"], ["study=", "dry_run", "--cfg", "--config-dir", "smoke", "Exit status"]),
    "scaling status --help": (["status", "--help"], ["usage: scaling status", "DIR", "results/smoke", "missing"]),
    "scaling report --help": (["report", "--help"], ["usage: scaling report", "DIR", "results/smoke", "index.html"]),
    "scaling publish --help": (["publish", "--help"], ["usage: scaling publish", "DIR", "WANDB_MODE", "--project", "--mode"]),
    "scaling export --help": (["export", "--help"], ["usage: scaling export", "DIR", "csv, parquet, extrap", "--output"]),
    "scaling merge --help": (["merge", "--help"], ["usage: scaling merge", "DIR", "--output", "clusters"]),
    "scaling run --cfg job": (["run", "--cfg", "job", "study=rbf"], ["devices: null", "workload: rbf", "case_seconds: 600"]),
}  # fmt: skip


@pytest.mark.parametrize("name", HELP)
def test_help_shows_arguments_and_examples_of_a_verb(name, scaling_command, tmp_path):
    arguments, message = HELP[name]
    done = scaling_command(arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert [text for text in message if text not in done.stdout] == []
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_lists_cases_to_run_and_to_skip_and_starts_nothing(
    call_main, write_study, write_workload, tmp_path
):
    write_workload()
    arguments = write_study("{workload: mine, points: [6, 10], devices: [1, 2], mode: [jacfwd, analytic]}")
    before = sorted(tmp_path.iterdir())
    done = call_main([*arguments, "dry_run=true", "oversubscribe=true"])
    assert (done.returncode, done.stderr) == (0, "")
    assert len(re.findall(r"^  run   mine .*jacfwd", done.stdout, re.MULTILINE)) == 4
    skipped = r"^  skip  mine .*analytic.*not_offered: mine offers no analytic"
    assert len(re.findall(skipped, done.stdout, re.MULTILINE)) == 4
    assert len(re.findall(r"a process with \d cpu device", done.stdout)) == 2
    assert done.stdout.splitlines()[-1] == "4 to run, 4 to skip, 0 already done; nothing was started"
    assert sorted(tmp_path.iterdir()) == before


def test_a_closed_pipe_at_the_output_causes_no_traceback(start_command, write_study, write_workload):
    write_workload()
    process = start_command([*write_study("{workload: mine, points: 6, api: jit}"), "dry_run=true"])
    process.stdout.close()
    process.stdout = open(os.devnull)  # noqa: SIM115
    _, stderr = process.communicate(timeout=60)
    assert "Traceback" not in stderr and len(stderr.splitlines()) <= 1


def test_a_refusal_in_a_worker_is_recorded_without_the_exception_type(make_record, monkeypatch):
    import jax

    from scaling.core import run_case, workload
    from scaling.core.timing import Sampling

    def reject(case, *_):
        raise Refusal("x must be positive, not -1")

    monkeypatch.setattr(workload, "build", reject)
    record = run_case.run_case(make_record(seconds=()), jax.devices()[:1], "cpu", Sampling())
    assert (record.status, record.text) == ("failed", "x must be positive, not -1")


def test_an_option_prints_the_version(call_main):
    done = call_main(["--version"])
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, scaling.__version__, "")


def test_a_module_on_pythonpath_with_the_name_of_a_built_in_workload_is_rejected(tmp_path, monkeypatch):
    (tmp_path / "linear.py").write_text("def workload(case):\n    pass\n")
    monkeypatch.setenv("PYTHONPATH", f"{os.pathsep}{tmp_path}")
    with pytest.raises(Refusal, match=r"is built in, and .*/linear\.py has the same name: rename that file"):
        user_workload.check_not_shadowed("linear")
