"""Tests of bad input: one line with the value and the alternatives, exit status 2, and no process starts.

Most tests call `cli.main` in this process; a few start the command.
"""

import os
import re

import jax
import pytest

import scaling
from scaling.core.case import Refusal
from tests.support import machines
from tests.support.commands import RBF

pytestmark = pytest.mark.thin(12, "thorough")

BAD_INPUTS = {
    "unknown study": (["run", "study=rbff"], "unknown study 'rbff'.*rbf.*did you mean 'rbf'"),
    "unknown tracking": ([*RBF, "tracking=wand"], "unknown tracking 'wand'.*did you mean 'wandb'"),
    "unknown workload": (
        ["run", "workload=rbff"],
        "unknown workload 'rbff': choose from arrowhead, linear, poisson, rbf, residual, .*did you mean 'rbf'",
    ),
    "unknown mode": ([*RBF, "mode=jacfw"], "unknown mode 'jacfw'.*jacrev.*did you mean 'jacfwd'"),
    "unknown api": ([*RBF, "api=pmapp"], "unknown api 'pmapp'.*shard_map.*did you mean 'pmap'"),
    "unknown split": ([*RBF, "split=point"], "unknown split 'point'.*seeds.*did you mean 'points'"),
    "unknown dtype": ([*RBF, "dtype=float16"], "unknown dtype 'float16'.*float32, float64, bfloat16"),
    "unknown batch": ([*RBF, "batch=all"], "unknown batch 'all'.*vmap, whole"),
    "unknown precision": ([*RBF, "precision=exact"], "unknown precision 'exact'.*highest"),
    "unknown scaling": ([*RBF, "scaling=week"], "unknown scaling 'week'.*did you mean 'weak'"),
    "unknown target": ([*RBF, "target=grad_mup", "where=True"], "unknown target of rbf 'grad_mup'.*did you mean 'grad_map'"),
    "unknown variant": ([*RBF, "variant=square", "where=True"], "unknown variant of rbf 'square'.*did you mean 'squared'"),
    "unknown formulation": (
        [*RBF, "formulation=rowise", "where=True"],
        "unknown formulation of rbf 'rowise'.*did you mean 'rowwise'",
    ),
    "unknown key": ([*RBF, "devises=[1]"], "unknown key 'devises'.*did you mean 'devices'"),
    "unknown key of sampling": ([*RBF, "sampling.secs=1"], "unknown key of sampling 'secs': .*width, .*turns"),
    "unknown key, added": ([*RBF, "+devises=[1]", "dry_run=true"], "unknown key 'devises'.*did you mean 'devices'"),
    "a field with a prefix": ([*RBF, "study.points=3"], "unknown key 'study.points': write points without the prefix study"),
    "unknown key with a prefix": ([*RBF, "study.pints=3"], "unknown key 'pints'.*did you mean 'points'"),
    "a size twice": (["run", "study=linear", "sizes={p:8,o:2,p:16}"], r"sizes.p is given twice: write it once"),
    "a size in two forms": (["run", "study=linear", "sizes.p=8", "sizes={o: 2, p: 16}", "dry_run=true"], "sizes.p is given twice"),
    "a limit in two forms": ([*RBF, "sampling={least: 1}", "sampling.least=2", "dry_run=true"], "sampling.least is given twice"),
    "a sweep of Hydra": ([*RBF, "sizes.m=range(1,3)"], r"scaling: sizes.m=range\(1,3\) needs --multirun; .*are a list"),
    "an empty sweep of a size": (
        ["run", "--multirun", "study=linear", "sizes.p=range(1,1)"],
        r"--multirun study=linear sizes.p=range\(1,1\) sweeps over no value",
    ),
    "wrt joined by a comma": ([*RBF, "wrt='x,m'", "mode=jacfwd"], r"\(wrt, joined by \+\) 'x,m'"),
    "logs of no folder": (["logs"], "arguments are required: DIR;"),
    "unknown verb": (
        ["rnu"],
        "unknown command 'rnu'.*run, plan, advise, status, logs, cancel, report, compare, lint, export, merge.*did you mean 'run'",
    ),
    "unknown wrt": ([*RBF, "wrt=y", "mode=jacfwd"], r"differentiate rbf with respect to \(wrt, joined by \+\) 'y'.*x"),
    "wrt twice": ([*RBF, "wrt=x+x", "mode=jacfwd"], r"wrt='x\+x' names an input twice"),
    "a workload without a study": (["run", "workload=poisson"], r"in study/smoke.yaml, grid 1; study=function runs it alone\)"),
    "unknown size": (["run", "study=linear", "sizes.q=4"], "unknown size of linear 'q'.*p, o"),
    "size zero": (["run", "study=linear", "sizes.p=0"], "sizes.p must be a positive integer, not 0"),
    "size negative": (["run", "study=linear", "sizes.p=[8,-8]"], "sizes.p must be a positive integer, not -8"),
    "size a fraction": (["run", "study=linear", "sizes.p=8.5"], "sizes.p must be a positive integer, not 8.5"),
    "size as text": (["run", "study=linear", "sizes.p=eight"], "sizes.p must be a positive integer, not 'eight'"),
    "sizes not a mapping": (["run", "study=linear", "sizes=8"], "sizes|cannot compose"),
    "folder of Hydra": ([*RBF, "hydra.run.dir=out"], "hydra.run.dir=out has no effect: results=PATH"),
    "a second study": ([*RBF, "+study=smoke"], "study is given twice: write it once, or run several with --multirun"),
    "a second cluster": ([*RBF, "+cluster=slurm"], r"'.*\+cluster=slurm' adds a second file: write it without the \+"),
    "points zero": ([*RBF, "points=0"], "points must be a positive integer, not 0"),
    "points as a float": ([*RBF, "points=1e9"], "points must be a positive integer, not 1000000000.0: write 1000000000"),
    "unknown chunk": ([*RBF, "chunk=all"], "chunk must be a positive integer or auto, not 'all'"),
    "a key of tracking=none": ([*RBF, "tracking.project=a"], "tracking.project has no effect with tracking=none: .*tracking=wandb"),
    "a key added to tracking=none": ([*RBF, "+tracking.colour=red", "dry_run=true"], "unknown key of tracking=none 'colour'"),
    "a tracking of another name": ([*RBF, "tracking.name=mine", "dry_run=true"], "unknown tracking 'mine': choose from none, wandb"),
    "a file outside the group": (["run", "study=../rbf"], "unknown study '../rbf': choose from accelerator"),
    "points true": ([*RBF, "points=true"], "points must be a positive integer, not true"),
    "devices zero": ([*RBF, "devices=0"], "devices must be a positive integer, not 0"),
    "data_seed negative": ([*RBF, "data_seed=-1"], "data_seed must be an integer, zero or more, not -1"),
    "jit as text": ([*RBF, "jit=maybe"], "jit must be true or false, not 'maybe'"),
    "points that do not divide": (
        [
            *RBF,
            "points=7",
            "devices=2",
            "split=points",
            "mode=jacfwd",
            "target=grad_map",
            "api=shard_map",
            "where=True",
        ],
        "points=7 of rbf do not divide over devices=2: take points=6 or 8",
    ),
    "points that do not divide, in every workload": (
        ["run", "study=smoke", "points=7", "devices=2", "split=points"],
        "points=7 of .* do not divide over devices=2",
    ),
    "more devices than cores": ([*RBF, "devices=64", "points=6400", "api=pmap"], r"devices=64 exceed the \d+ cores? here"),
    "an empty sweep": ([*RBF, "points=[]"], "the study has no cases"),
    "where that calls": ([*RBF, "where='open(1)'"], "where='open.1.': Call is not allowed"),
    "where that is incomplete": ([*RBF, "where='devices =='"], "where='devices ==' cannot be read"),
    "where with an unknown name": ([*RBF, "where='devcies==1'"], "unknown name in where 'devcies'.*did you mean 'devices'"),
    "where that excludes everything": ([*RBF, "where=False"], "the study has no cases"),
    "sampling least": ([*RBF, "sampling.least=0"], "sampling.least must be an integer, 1 or more, not 0"),
    "sampling most": ([*RBF, "sampling.least=9", "sampling.most=8"], "sampling.most must be an integer, 9 or more, not 8"),
    "sampling seconds": ([*RBF, "sampling.seconds=-1"], "sampling.seconds must be a number, 0.* or more, not -1"),
    "sampling width": ([*RBF, "sampling.width=nan"], "sampling.width must be a number, 0.* or more, not nan"),
    "sampling as text": ([*RBF, "sampling.warm_up=long"], "sampling.warm_up must be a number, 0.* or more, not 'long'"),
    "sampling not a mapping": ([*RBF, "sampling=5"], "sampling"),
    "case_seconds": ([*RBF, "case_seconds=0"], "case_seconds must be a number, .* or more, not 0"),
    "case_seconds infinite": ([*RBF, "case_seconds=inf", "dry_run=true"], "case_seconds must be a number.*not inf"),
    "sampling turns": ([*RBF, "sampling.turns=0"], "sampling.turns must be an integer, 1 or more, not 0"),
    "sampling compilations": ([*RBF, "sampling.compilations=x"], "sampling.compilations must be an integer, 1 or more, not 'x'"),
    "unknown cache": ([*RBF, "cache=hot"], "unknown cache 'hot'.*cold, warm"),
    "replicates": ([*RBF, "replicates=0"], "replicates must be an integer, 1 or more, not 0"),
    "processes": ([*RBF, "processes=two"], "processes must be device or an integer, 1 or more, not 'two'"),
    "more processes than devices": ([*RBF, "devices=1", "processes=2"], "processes=2 exceed the devices of every case, 1 at most"),
    "a path that no job can use": ([*RBF, "cluster=local", "results=a:b"], "'.*a:b' contains ':'.*results=PATH"),
    "devices that do not divide evenly over processes": (
        [*RBF, "devices=3", "processes=2", "oversubscribe=true"],
        "devices=3 do not divide evenly over processes=2",
    ),
    "versus unknown": ([*RBF, "versus=main"], "unknown versus='main'.*self, commit:REV, jax:VERSION, python:PATH, xla:FLAGS"),
    "versus a commit without a revision": ([*RBF, "versus=commit:"], "unknown versus='commit:'"),
    "versus a revision without a repository": ([*RBF, "versus=commit:HEAD~3"], "versus=commit:HEAD~3 needs a git repository"),
    "versus a missing interpreter": ([*RBF, "versus=python:/nowhere/python"], "versus=python:/nowhere/python: no such program"),
    "versus a folder in a dry run": ([*RBF, "versus=python:.", "dry_run=true"], "versus=python:.: no such program"),
    "versus an interpreter without JAX": ([*RBF, "versus=python:/bin/false"], "versus=python:/bin/false cannot run a worker"),
    "order_seed": ([*RBF, "order_seed=1.5"], "order_seed must be an integer, 0 or more, not 1.5"),
    "dry_run": ([*RBF, "dry_run=perhaps"], "dry_run must be true or false, not 'perhaps'"),
    "bind": ([*RBF, "bind=1"], "bind must be true or false, not 1"),
    "no study": (["run", "study=null"], "study"),
    "two studies without --multirun": (["run", "study=[rbf,linear]"], "study"),
    "two studies separated by a comma": (["run", "study=smoke,rbf"], "study=smoke,rbf names several files: add --multirun"),
    "values without brackets": ([*RBF, "mode=jacfwd,jacrev"], r"write several values in brackets, 'mode=\[jacfwd,jacrev\]'"),
    "an argument that is not an override": ([*RBF, "devices"], "devices"),
    "an incomplete override": ([*RBF, "devices=[1"], r"\[1"),
    "an unknown interpolation": ([*RBF, "results=${nowhere}"], "nowhere"),
    "a folder below a file": ([*RBF, "results=a_file/below"], "cannot write to results=a_file/below: Not.*results=PATH"),
    "a file in place of a folder": ([*RBF, "results=a_file"], "cannot write to results=a_file: .*results=PATH"),
    "a folder that cannot be created": ([*RBF, "results=/proc/nowhere/x"], "cannot write to results=/proc/nowhere/x: .*results=PATH"),
    "null as folder": ([*RBF, "results=null", "dry_run=true"], "results"),
    "an empty folder name": ([*RBF, "results=", "dry_run=true"], "results"),
    "a plan without hardware": (["plan", "study=plan"], "specify the hardware to plan for, such as hardware=v5p"),
    "a plan for unknown hardware": (["plan", "study=plan", "hardware=v6"], "unknown hardware 'v6'.*h100.*v5p"),
    "an unavailable device count": (
        ["plan", "study=plan", "hardware=v5p", "devices=7"],
        "devices=7 are not available on v5p: use 1, 4, 8",
    ),
    "more devices than the largest machine has": (
        ["plan", "study=plan", "hardware=v5p", "devices=258048"],
        "devices=258048 are not available on v5p: use 1, 4, .*8960",
    ),
    "a plan whose points do not divide evenly": (
        ["plan", "study=plan", "hardware=v5p", "devices=8960", "points=7"],
        "do not divide over devices=8960",
    ),
    "a deadline of zero seconds": (
        ["plan", "study=plan", "hardware=v5p", "deadline=0"],
        "deadline must be a positive number of seconds",
    ),
    "an unknown key of hardware": (
        ["plan", "study=plan", "hardware=v5p", "hardware.hue=1"],
        "unknown key of hardware 'hue': .*price",
    ),
    "a rate of a CPU, which are measured": (
        ["plan", "study=plan", "hardware=cpu", "hardware.bandwidth=1e9"],
        "unknown key of hardware 'bandwidth': choose from asking, attained, ceilings",
    ),
    "ceilings of a TPU": (
        ["plan", "study=plan", "hardware=v5p", "+hardware.ceilings=results/linear"],
        "unknown key of hardware 'ceilings'",
    ),
    "a rate that the file leaves out": (
        ["plan", "study=plan", "hardware=h100", "hardware.turned=0"],
        "hardware.turned must be a positive number or null, not 0",
    ),
    "a dtype without a rate": (
        ["plan", "study=plan", "hardware=v5p", "hardware.products.float16=3e12"],
        "hardware.products must be a positive number or null for each of",
    ),
    "a key of hardware without hardware": (
        ["plan", "study=plan", "hardware.price=3"],
        "a key of hardware has no effect without a choice such as hardware=v5p",
    ),
    "ceilings that do not exist": (
        ["plan", "study=plan", "hardware=cpu", "hardware.ceilings=nowhere"],
        "no results in 'nowhere'",
    ),
    "a memory size that is not a number": (
        ["plan", "study=plan", "hardware=v5p", "hardware.memory=big"],
        "hardware.memory must be a positive number",
    ),
    "a plan for a CPU without ceilings": (
        ["plan", "study=plan", "hardware=cpu", "results=none"],
        "ceilings, but there are none.*scaling run study=linear",
    ),
    "hardware in a run": (["run", "study=smoke", "hardware=v5p"], "hardware is an option of `scaling plan`"),
    "devices=all in a run": (["run", "study=plan"], "devices=all works with `scaling plan` only"),
    "a config dir that does not exist": (["run", "--config-dir", "no_conf", "study=rbf"], "no_conf"),
    "compare with nothing": (["compare", "nowhere", "nowhere"], "no results in 'nowhere'"),
    "lint of nothing": (["lint", "nowhere"], "no results in 'nowhere'"),
    "report of nothing": (["report", "nowhere"], "no results in 'nowhere'"),
    "status of nothing": (["status", "nowhere"], "no results in 'nowhere'"),
    "publish of nothing": (["publish", "nowhere"], "no results in 'nowhere'"),
    "export of nothing": (["export", "nowhere"], "no results in 'nowhere'"),
    "export of a folder without results": (["export", "."], r"no results in '\.'"),
    "merge of nothing": (["merge", "nowhere", "a_file", "--output", "both"], "no results in 'nowhere'"),
    "report of a folder without results": (["report", "."], r"no results in '\.'"),
    "status of a file": (["status", "a_file"], "no results in 'a_file'"),
}  # fmt: skip


def check_rejected(done, pattern, folder):
    """Check that the error is one line that matches the pattern, the exit status 2, and that no folder was created."""
    lines = done.stderr.splitlines()
    assert "Traceback" not in done.stderr, lines[-1]
    assert done.returncode == 2, done.stderr
    assert len(lines) == 1, done.stderr
    assert re.search(pattern, lines[0]), lines[0]
    assert lines[0].startswith("scaling: ")
    assert not (folder / "results").exists() and not (folder / "None").exists()


NEEDS_COMPILER = (
    "a plan whose points do not divide evenly",
)  # rejected in the preflight of the cases, which requires the compiler


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_input_exits_with_status_2_and_one_line_and_starts_nothing(name, call_main, tmp_path):
    arguments, message = BAD_INPUTS[name]
    if name in NEEDS_COMPILER:
        machines.require_compiler("libtpu")
    (tmp_path / "a_file").touch()
    before = sorted(tmp_path.iterdir())
    check_rejected(call_main(arguments), message, tmp_path)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "name", ["unknown study", "unknown key", "more devices than cores", "a folder below a file"]
)
def test_the_command_reports_bad_input_like_main(name, scaling_command, tmp_path):
    arguments, message = BAD_INPUTS[name]
    (tmp_path / "a_file").touch()
    check_rejected(scaling_command(arguments, timeout=60, fresh=True), message, tmp_path)


def test_an_unknown_second_study_of_a_multirun_is_rejected(call_main):
    done = call_main(["run", "--multirun", "study=rbf,rbff", "dry_run=true"])
    assert (
        done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "unknown study 'rbff'" in done.stderr
    )


def test_too_many_devices_are_rejected_with_the_device_counts_that_fit(call_main):
    done = call_main([*RBF, "devices=[1,64]", "points=6400", "api=pmap"])
    assert re.search(r"use devices=\[1\]; oversubscribe=true", done.stderr), done.stderr


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
    message = "XLA_FLAGS=flags.txt names a file: write the flags that it contains"
    check_rejected(call_main(words), message, tmp_path)


MODULE = """from scaling.workload import Reference, Workload, normal
def workload(case):
    return Workload(lambda x: x"""
MODULES = {
    "a syntax error": ("def workload(case:\n", "cannot be imported: SyntaxError"),
    "raises at import": ("raise RuntimeError('first line\\nsecond line')", r"RuntimeError: first line second line \(mine.py:1\)"),
    "raises without a text at import": ("raise RuntimeError", r"RuntimeError \(mine.py:1\)"),
    "raises without a text in workload()": ("def workload(case):\n    assert 0", r"AssertionError \(mine.py:2\)"),
    "raises without a text in its function": (
        f"{MODULE} if 0 else f(x), points={{'x': normal(3)}})\ndef f(x):\n    raise ValueError",
        r"values\): ValueError \(mine.py:5\)",
    ),
    "imports a missing module": ("import not_there_at_all", r"cannot be imported: No module named 'not_there_at_all' \(mine.py:1\)"),
    "ends the process at import": ("raise SystemExit(3)", "status 3 .* while it was imported; remove that exit"),
    "ends the process in workload()": ("def workload(case):\n    raise SystemExit(3)", "status 3 .*; remove that exit"),
    "has no workload()": ("x = 1", r"no function workload\(case\)"),
    "has a workload that is not a function": ("workload = 3", r"no function workload\(case\)"),
    "returns no Workload": ("def workload(case):\n    return 3", "Workload"),
    "misspells a field of Workload": (
        "from scaling.workload import Workload\ndef workload(case):\n    return Workload(len, point={})",
        r"unexpected keyword argument 'point'; the fields are function, points, shared.* \(mine.py:3\)",
    ),
    "sets a field that Workload does not have": (
        f"{MODULE}, points={{'x': normal(3)}}, default_reduce='outputs')", r"argument 'default_reduce'; the fields are function,",
    ),
    "names a parameter unlike its input": (
        f"{MODULE}, points={{'y': normal(3)}}, shared={{'p': {{'w': normal(2)}}}})",
        r"unexpected keyword argument 'y'; its parameters must take the inputs by name: y, p( |$)",
    ),
    "has a reference of the wrong shape": (
        f"{MODULE}, points={{'x': normal(3)}}, reference=lambda inputs: Reference(inputs['x'], inputs['x']))",
        r"reference of 'mine' must return a Reference whose derivative has the shape \(1, 3, 3\) at one point, not \(1, 3\)( |$)",
    ),
    "has a reference with values of the wrong shape": (
        f"{MODULE}, points={{'x': normal(3)}}, "
        "reference=lambda inputs: Reference(inputs['x'][:, :2], inputs['x'][:, None] + [[0], [0], [0]]))",
        r"must return a Reference whose value has the shape \(1, 3\) at one point, not \(1, 2\)( |$)",
    ),
    "has nonzeros without a pattern": (
        f"{MODULE}, points={{'x': normal(3)}}, nonzeros=lambda inputs: Reference(inputs['x'], inputs['x']))",
        "nonzeros of 'mine' has no effect without pattern",
    ),
    "has nonzeros of the wrong shape": (
        f"{MODULE}, points={{'x': normal(3)}}, pattern=lambda: ([0, 1, 2], [0, 1, 2]), "
        "nonzeros=lambda inputs: Reference(inputs['x'], inputs['x']))",
        r"nonzeros of 'mine' must return a Reference whose derivative has the shape \(1, 1, 3\) at one point, not \(1, 3\)( |$)",
    ),
    "has a pattern that is not sorted": (
        f"{MODULE}, points={{'x': normal(3)}}, pattern=lambda: ([0, 2, 1], [0, 2, 1]))", "a pattern must be .* sorted by row",
    ),
    "has a reference that raises": (
        f"{MODULE}, points={{'x': normal(3)}}, reference=lambda inputs: inputs['y'])", r"mine: KeyError: 'y' \(mine.py:3\)",
    ),
    "takes no case": ("def workload():\n    return 3", "mine.*argument"),
    "raises a KeyError": ("def workload(case):\n    return {}['q']", r"mine: KeyError: 'q' \(mine.py:2\)"),
    "uses a size that it does not declare": (
        "def workload(case):\n    return case.sizes['q']", r"has no size 'q' \(mine.py:2\): declare .*SIZES = {'q': 8}",
    ),
    "has a size without a default": (
        "SIZES = {'q': None}\ndef workload(case):\n    return 3", "'q' of mine has no default: write sizes.q=8",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_an_invalid_workload_module_is_rejected_in_one_line(name, call_main, write_study, tmp_path):
    text, message = MODULES[name]
    (tmp_path / "mine.py").write_text(text)
    check_rejected(call_main(write_study("{workload: mine, points: 6, api: jit}")), message, tmp_path)


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


@pytest.mark.parametrize(
    "sizes, suffix", [("[4, 7, 9]", r" \(mine.py:5\), with n=7 \(in"), ("7", r" \(mine.py:5\) \(in")]
)
def test_a_refused_size_is_named_where_other_sizes_are_valid(sizes, suffix, call_main, write_study, tmp_path):
    check = "    if case.sizes['n'] == 7:\n        raise ValueError('odd')\n"
    (tmp_path / "mine.py").write_text(
        f"SIZES = {{'n': 4}}\n{MODULE}, {{'x': normal(3)}})".replace("    return", f"{check}    return")
    )
    done = call_main(write_study(f"{{workload: mine, points: 6, api: jit, sizes: {{n: {sizes}}}}}"))
    check_rejected(done, f"mine: ValueError: odd{suffix}", tmp_path)


FUNCTIONS = {
    "raises": {"body": "raise ValueError('not\\nthis')"},
    "has incompatible shapes": {"body": "return x @ jnp.ones((4, 2))"},
    "takes another input": {
        "body": "return x",
        "returns": 'Workload(function=function, points={"y": uniform(3)})',
    },
    "has no inputs": {"body": "return x", "returns": "Workload(function=function, points={})"},
    "has an unknown reduce": {
        "body": "return x",
        "returns": 'Workload(function=function, points={"x": uniform(3)}, reduce="columns")',
    },
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_that_cannot_be_differentiated_is_rejected_in_one_line(
    name, call_main, write_study, write_workload, tmp_path
):
    write_workload(**FUNCTIONS[name])
    check_rejected(call_main(write_study("{workload: mine, points: 6, api: jit}")), "mine|reduce", tmp_path)


STUDIES = {
    "a list": ("[1, 2]", "mine"),
    "not a mapping": ("just words", "mine|just words"),
    "empty": ("", "mine|study|workload"),
    "not YAML": ("points: [1, 2\nmode: {", "mine|cannot compose"),
    "an unknown key": ("{workload: rbf, devises: 2}", "unknown study key 'devises'.*did you mean 'devices'"),
    "an unknown key in a grid": ("{grids: [{workload: rbf, pints: 6}]}", "unknown study key 'pints'.*did you mean 'points'"),
    "no workload": ("{points: 6}", "names no workload"),
    "grids that are not a list": ("{workload: rbf, grids: {points: 6}}", "grids must be a list"),
    "a size of the wrong kind": ("{workload: linear, sizes: {p: '8'}}", "sizes.p must be a positive integer, not '8'"),
    "sizes that are not a mapping": ("{workload: linear, sizes: [8]}", "sizes must be a mapping"),
    "a list in a list": ("{workload: rbf, points: [[6, 8]]}", "points must be a positive integer"),
}  # fmt: skip


@pytest.mark.parametrize("name", STUDIES)
def test_an_invalid_user_study_is_rejected_in_one_line(name, call_main, write_study, tmp_path):
    text, message = STUDIES[name]
    check_rejected(call_main(write_study(text)), message, tmp_path)


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
    "scaling plan --help": (["plan", "--help"], ["hardware=v5p", "deadline=", "--config-dir", "plan-gpu", "Exit status"]),
    "scaling run --help": (["run", "--help"], ["study=", "dry_run", "--multirun", "--config-dir", "smoke", "Exit status"]),
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
    assert (
        len(
            re.findall(
                r"^  skip  mine .*analytic.*not_offered: mine offers no analytic", done.stdout, re.MULTILINE
            )
        )
        == 4
    )
    assert len(re.findall(r"a process with \d cpu device", done.stdout)) == 2
    assert done.stdout.splitlines()[-1] == "4 to run, 4 to skip, 0 already done; nothing was started"
    assert sorted(tmp_path.iterdir()) == before


def test_multirun_runs_several_studies(call_main, write_study, write_workload, tmp_path):
    write_workload()
    write_study("{workload: mine, points: 6, api: jit}", name="one")
    write_study("{workload: mine, points: [8, 10], api: jit}", name="two")
    done = call_main(["run", "--config-dir", "my_conf", "--multirun", "study=one,two", "dry_run=true"])
    assert (done.returncode, done.stderr) == (0, "")
    assert re.findall(r"^\d+ to run", done.stdout, re.MULTILINE) == ["1 to run", "2 to run"]


def test_a_multirun_with_a_bad_study_exits_with_status_2(call_main, write_study, write_workload):
    write_workload()
    write_study("{workload: mine, points: 6, api: jit}", name="good")
    write_study("{workload: mine, points: 0, api: jit}", name="bad")
    done = call_main(["run", "--config-dir", "my_conf", "--multirun", "study=bad,good", "dry_run=true"])
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1


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


@pytest.mark.parametrize("arguments", [["version"], ["--version"]])
def test_the_version_is_printed_by_a_verb_and_an_option(arguments, call_main):
    done = call_main(arguments)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, scaling.__version__, "")
