"""Bad input is told in one line, with the value, what there is instead, and nothing started.

Most of it asks `cli.main` in this process, which is what the command calls; what a newcomer sees first goes through the command.
"""

import logging
import os
import re
import signal
import subprocess
import sys

import pytest

import scaling
from scaling.cli import main
from scaling.core.case import Refusal
from tests.support import machines

pytestmark = pytest.mark.thin(12, "process")

RBF = ("run", "study=rbf")
BAD = {
    "unknown study": (["run", "study=rbff"], "unknown study 'rbff'.*rbf.*did you mean 'rbf'"),
    "unknown tracking": ([*RBF, "tracking=wand"], "unknown tracking 'wand'.*did you mean 'wandb'"),
    "unknown workload": (
        ["run", "workload=rbff"],
        "unknown workload 'rbff'.*linear, poisson, rbf, residual.*did you mean 'rbf'",
    ),
    "unknown mode": ([*RBF, "mode=jacfw"], "unknown mode 'jacfw'.*jacrev.*did you mean 'jacfwd'"),
    "unknown api": ([*RBF, "api=pmapp"], "unknown api 'pmapp'.*shard_map.*did you mean 'pmap'"),
    "unknown split": ([*RBF, "split=point"], "unknown split 'point'.*seeds.*did you mean 'points'"),
    "unknown dtype": ([*RBF, "dtype=float16"], "unknown dtype 'float16'.*float32, float64, bfloat16"),
    "unknown batch": ([*RBF, "batch=all"], "unknown batch 'all'.*vmap, whole"),
    "unknown precision": ([*RBF, "precision=exact"], "unknown precision 'exact'.*highest"),
    "unknown scaling": ([*RBF, "scaling=week"], "unknown scaling 'week'.*did you mean 'weak'"),
    "unknown target": (
        [*RBF, "target=grad_mup", "where=True"],
        "unknown target of rbf 'grad_mup'.*did you mean 'grad_map'",
    ),
    "unknown variant": (
        [*RBF, "variant=square", "where=True"],
        "unknown variant of rbf 'square'.*did you mean 'squared'",
    ),
    "unknown formulation": (
        [*RBF, "formulation=rowise", "where=True"],
        "unknown formulation of rbf 'rowise'.*did you mean 'rowwise'",
    ),
    "unknown key": ([*RBF, "devises=[1]"], "unknown key 'devises'.*did you mean 'devices'"),
    "unknown key of sampling": ([*RBF, "sampling.secs=1"], "unknown key '(sampling.)?secs'"),
    "unknown key, added": (
        [*RBF, "+devises=[1]", "dry_run=true"],
        "unknown key 'devises'.*did you mean 'devices'",
    ),
    "unknown verb": (
        ["rnu"],
        "unknown verb 'rnu'.*run, plan, status, logs, cancel, report, compare, lint, export, merge.*did you mean 'run'",
    ),
    "unknown wrt": ([*RBF, "wrt=y", "mode=jacfwd"], r"differentiate rbf by \(wrt\) 'y'.*x"),
    "wrt twice": ([*RBF, "wrt=x+x", "mode=jacfwd"], r"wrt='x\+x' names an input twice"),
    "unknown size": (["run", "study=linear", "sizes.q=4"], "unknown size of linear 'q'.*p, o"),
    "size zero": (["run", "study=linear", "sizes.p=0"], "sizes.p must be a positive integer, not 0"),
    "size negative": (
        ["run", "study=linear", "sizes.p=[8,-8]"],
        "sizes.p must be a positive integer, not -8",
    ),
    "size broken": (["run", "study=linear", "sizes.p=8.5"], "sizes.p must be a positive integer, not 8.5"),
    "size in words": (
        ["run", "study=linear", "sizes.p=eight"],
        "sizes.p must be a positive integer, not 'eight'",
    ),
    "sizes no mapping": (["run", "study=linear", "sizes=8"], "sizes|cannot compose"),
    "points zero": ([*RBF, "points=0"], "points must be a positive integer, not 0"),
    "points true": ([*RBF, "points=true"], "points must be a positive integer, not True"),
    "devices zero": ([*RBF, "devices=0"], "devices must be a positive integer, not 0"),
    "data_seed negative": ([*RBF, "data_seed=-1"], "data_seed must be an integer, zero or more, not -1"),
    "jit in words": ([*RBF, "jit=maybe"], "jit must be true or false, not 'maybe'"),
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
    "more devices than cores": (
        [*RBF, "devices=64", "points=6400", "api=pmap"],
        r"devices=64 exceed the \d+ cores? here",
    ),
    "an empty sweep": ([*RBF, "points=[]"], "the study has no cases"),
    "where that calls": ([*RBF, "where='open(1)'"], "where='open.1.': Call is not allowed"),
    "where that is torn": ([*RBF, "where='devices =='"], "where='devices ==' cannot be read"),
    "where of nothing known": (
        [*RBF, "where='devcies==1'"],
        "unknown name in where 'devcies'.*did you mean 'devices'",
    ),
    "where that excludes everything": ([*RBF, "where=False"], "the study has no cases"),
    "sampling least": ([*RBF, "sampling.least=0"], "sampling.least must be an integer, 1 or more, not 0"),
    "sampling most": (
        [*RBF, "sampling.least=9", "sampling.most=8"],
        "sampling.most must be an integer, 9 or more, not 8",
    ),
    "sampling seconds": (
        [*RBF, "sampling.seconds=-1"],
        "sampling.seconds must be a number, 0.* or more, not -1",
    ),
    "sampling width": ([*RBF, "sampling.width=nan"], "sampling.width must be a number, 0.* or more, not nan"),
    "sampling in words": (
        [*RBF, "sampling.warm_up=long"],
        "sampling.warm_up must be a number, 0.* or more, not 'long'",
    ),
    "sampling no mapping": ([*RBF, "sampling=5"], "sampling"),
    "case_seconds": ([*RBF, "case_seconds=0"], "case_seconds must be a number, .* or more, not 0"),
    "case_seconds without end": (
        [*RBF, "case_seconds=inf", "dry_run=true"],
        "case_seconds must be a number.*not inf",
    ),
    "sampling turns": ([*RBF, "sampling.turns=0"], "sampling.turns must be an integer, 1 or more, not 0"),
    "sampling compilations": (
        [*RBF, "sampling.compilations=x"],
        "sampling.compilations must be an integer, 1 or more, not 'x'",
    ),
    "unknown cache": ([*RBF, "cache=hot"], "unknown cache 'hot'.*cold, warm"),
    "replicates": ([*RBF, "replicates=0"], "replicates must be an integer, 1 or more, not 0"),
    "processes": ([*RBF, "processes=two"], "processes must be an integer, 1 or more, not 'two'"),
    "devices that do not divide evenly over processes": (
        [*RBF, "devices=3", "processes=2", "oversubscribe=true"],
        "devices=3 do not divide evenly over processes=2",
    ),
    "versus nothing known": (
        [*RBF, "versus=main"],
        "unknown versus='main'.*self, commit:REV, jax:VERSION, python:PATH, xla:FLAGS",
    ),
    "versus what is not said": ([*RBF, "versus=commit:"], "unknown versus='commit:'"),
    "versus a revision of no repository": (
        [*RBF, "versus=commit:HEAD~3"],
        "versus=commit:HEAD~3 needs a git repository",
    ),
    "versus an interpreter that is not there": (
        [*RBF, "versus=python:/nowhere/python"],
        "versus=python:/nowhere/python: python: No",
    ),
    "versus an interpreter without JAX": (
        [*RBF, "versus=python:/bin/false"],
        "versus=python:/bin/false cannot run a worker",
    ),
    "order_seed": ([*RBF, "order_seed=1.5"], "order_seed must be an integer, 0 or more, not 1.5"),
    "dry_run": ([*RBF, "dry_run=perhaps"], "dry_run must be true or false, not 'perhaps'"),
    "bind": ([*RBF, "bind=1"], "bind must be true or false, not 1"),
    "no study": (["run", "study=null"], "study"),
    "two studies without --multirun": (["run", "study=[rbf,linear]"], "study"),
    "a word that is no override": ([*RBF, "devices"], "devices"),
    "an override that is torn": ([*RBF, "devices=[1"], r"\[1"),
    "a reference to nothing": ([*RBF, "results=${nowhere}"], "nowhere"),
    "a folder below a file": (
        [*RBF, "results=a_file/below"],
        "cannot write to results=a_file/below: Not.*results=PATH",
    ),
    "a file in place of a folder": (
        [*RBF, "results=a_file"],
        "cannot write to results=a_file: .*results=PATH",
    ),
    "a folder where none can be": (
        [*RBF, "results=/proc/nowhere/x"],
        "cannot write to results=/proc/nowhere/x: .*results=PATH",
    ),
    "no folder": ([*RBF, "results=null", "dry_run=true"], "results"),
    "an empty folder name": ([*RBF, "results=", "dry_run=true"], "results"),
    "a plan for nothing": (["plan", "study=plan"], "specify the hardware to plan for, such as hardware=v5p"),
    "a plan for what nobody knows": (
        ["plan", "study=plan", "hardware=v6"],
        "unknown hardware 'v6'.*h100.*v5p",
    ),
    "devices that do not come": (
        ["plan", "study=plan", "hardware=v5p", "devices=7"],
        "devices=7 are not available on v5p: use 1, 4, 8",
    ),
    "more than a million devices": (
        ["plan", "study=plan", "hardware=v5p", "devices=1000001"],
        "maximum of a plan: 1000000 devices",
    ),
    "a plan that no machine divides evenly": (
        ["plan", "study=plan", "hardware=v5p", "devices=999999"],
        "do not divide over devices=999999",
    ),
    "a deadline that has passed": (
        ["plan", "study=plan", "hardware=v5p", "deadline=0"],
        "deadline must be a positive number of seconds",
    ),
    "a key that no hardware has": (
        ["plan", "study=plan", "hardware=v5p", "hardware.hue=1"],
        "unknown key of hardware 'hue'",
    ),
    "a figure that is none": (
        ["plan", "study=plan", "hardware=v5p", "hardware.memory=big"],
        "hardware.memory must be a positive number",
    ),
    "a CPU that was not measured": (
        ["plan", "study=plan", "hardware=cpu", "results=none"],
        "ceilings, but there are none.*scaling run study=linear",
    ),
    "hardware of a run": (
        ["run", "study=smoke", "hardware=v5p"],
        "hardware is what `scaling plan` compiles for",
    ),
    "all devices of a run": (["run", "study=plan"], "devices=all is for `scaling plan`"),
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
}


def refused(done, words, folder):
    """One line that says `words`, exit status 2, and nothing made."""
    lines = done.stderr.splitlines()
    assert "Traceback" not in done.stderr, lines[-1]
    assert done.returncode == 2, done.stderr
    assert len(lines) == 1, done.stderr
    assert re.search(words, lines[0]), lines[0]
    assert lines[0].startswith("scaling: ")
    assert not (folder / "results").exists() and not (folder / "None").exists()


@pytest.fixture
def here(tmp_path, monkeypatch, capsys):
    """What the command would do in the test's folder, without the half second that it takes to start."""

    def call(words):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["scaling"])
        monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
        monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        # Hydra sets logging up anew and closes the handlers that were there; absl's would close pytest's own standard error.
        monkeypatch.setattr(logging, "shutdown", lambda *_: None)
        monkeypatch.setattr(signal, "signal", lambda *_: None)  # the tests are ended as ever
        status = main.main(words)
        return subprocess.CompletedProcess(words, status, *capsys.readouterr())

    return call


COMPILED = (
    "a plan that no machine divides evenly",
)  # refused where each case is looked at, which wants the compiler to be there


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_with_status_2_and_starts_nothing(name, here, tmp_path):
    words, told = BAD[name]
    if name in COMPILED:
        machines.needs("libtpu")
    (tmp_path / "a_file").touch()
    before = sorted(tmp_path.iterdir())
    refused(here(words), told, tmp_path)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "name", ["unknown study", "unknown key", "more devices than cores", "a folder below a file"]
)
def test_the_command_says_the_same(name, scaling_command, tmp_path):
    words, told = BAD[name]
    (tmp_path / "a_file").touch()
    refused(scaling_command(words, timeout=60, anew=True), told, tmp_path)


def test_a_second_study_of_several_that_does_not_exist_is_refused_too(here):
    done = here(["run", "--multirun", "study=rbf,rbff", "dry_run=true"])
    assert (
        done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "unknown study 'rbff'" in done.stderr
    )


def test_as_many_devices_as_there_are_cores_is_what_the_refusal_offers(here):
    done = here([*RBF, "devices=[1,64]", "points=6400", "api=pmap"])
    assert re.search(r"use devices=\[1\]; oversubscribe=true", done.stderr), done.stderr


MODULES = {
    "a syntax error": ("def workload(case:\n", "cannot be imported: SyntaxError"),
    "raises at import": (
        "raise RuntimeError('first line\\nsecond line')",
        "cannot be imported: RuntimeError: first line",
    ),
    "imports what is not there": (
        "import not_there_at_all",
        "cannot be imported: No module named 'not_there_at_all'",
    ),
    "ends the process at import": ("raise SystemExit(3)", ""),
    "has no workload()": ("x = 1", r"no function workload\(case\)"),
    "has a workload that is no function": ("workload = 3", r"no function workload\(case\)"),
    "returns no Workload": ("def workload(case):\n    return 3", "Workload"),
    "takes no case": ("def workload():\n    return 3", "mine.*argument"),
    "raises a KeyError": ("def workload(case):\n    return case.sizes['q']", "mine.*q"),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_that_is_no_workload_is_told_in_one_line(name, here, write_study, tmp_path):
    text, told = MODULES[name]
    (tmp_path / "mine.py").write_text(text)
    refused(here(write_study("{workload: mine, points: 6, api: jit}")), told, tmp_path)


FUNCTIONS = {
    "returns integers": {"body": "return jnp.arange(3)"},
    "returns integers beside real numbers": {"body": "return x, jnp.arange(3)"},
    "returns an empty tuple": {"body": "return ()"},
    "returns nothing": {"body": "pass"},
    "returns a complex number": {"body": "return x[0] + 1j"},
    "raises": {"body": "raise ValueError('not\\nthis')"},
    "has a shape that does not fit": {"body": "return x @ jnp.ones((4, 2))"},
    "takes another input": {
        "body": "return x",
        "returns": 'Workload(function=function, points={"y": uniform(3)})',
    },
    "has no inputs": {"body": "return x", "returns": "Workload(function=function, points={})"},
    "reduces oddly": {
        "body": "return x",
        "returns": 'Workload(function=function, points={"x": uniform(3)}, reduce="columns")',
    },
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_that_cannot_be_differentiated_is_told_in_one_line(
    name, here, write_study, write_workload, tmp_path
):
    write_workload(**FUNCTIONS[name])
    refused(here(write_study("{workload: mine, points: 6, api: jit}")), "mine|reduce", tmp_path)


STUDIES = {
    "a list": ("[1, 2]", "mine"),
    "no mapping": ("just words", "mine|just words"),
    "empty": ("", "mine|study|workload"),
    "no YAML": ("points: [1, 2\nmode: {", "mine|cannot compose"),
    "an unknown key": ("{workload: rbf, devises: 2}", "unknown study key 'devises'.*did you mean 'devices'"),
    "an unknown key in a grid": (
        "{grids: [{workload: rbf, pints: 6}]}",
        "unknown study key 'pints'.*did you mean 'points'",
    ),
    "no workload": ("{points: 6}", "names no workload"),
    "grids that are no list": ("{workload: rbf, grids: {points: 6}}", "grids must be a list"),
    "a size of the wrong kind": (
        "{workload: linear, sizes: {p: '8'}}",
        "sizes.p must be a positive integer, not '8'",
    ),
    "sizes that are no mapping": ("{workload: linear, sizes: [8]}", "sizes must be a mapping"),
    "a list in a list": ("{workload: rbf, points: [[6, 8]]}", "points must be a positive integer"),
}


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_of_ones_own_that_is_wrong_is_told_in_one_line(name, here, write_study, tmp_path):
    text, told = STUDIES[name]
    refused(here(write_study(text)), told, tmp_path)


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
def test_a_damaged_list_of_what_was_asked_for_never_stops_a_status(text, here, tmp_path):
    (tmp_path / "study.json").write_text(text)
    done = here(["status", "."])
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 2) and len(done.stderr.splitlines()) <= 1


HELP = {
    "scaling": ([], ["scaling run", "scaling status", "scaling report", "scaling publish"]),
    "scaling --help": (["--help"], ["scaling run", "scaling status", "scaling report", "scaling publish"]),
    "scaling --version": (["--version"], ["0."]),
    "scaling plan --help": (
        ["plan", "--help"],
        ["hardware=v5p", "deadline=", "--config-dir", "plan-gpu", "Exit status"],
    ),
    "scaling run --help": (
        ["run", "--help"],
        ["study=", "dry_run", "--multirun", "--config-dir", "smoke", "Exit status"],
    ),
    "scaling status --help": (
        ["status", "--help"],
        ["usage: scaling status", "DIR", "results/smoke", "missing"],
    ),
    "scaling report --help": (
        ["report", "--help"],
        ["usage: scaling report", "DIR", "results/smoke", "index.html"],
    ),
    "scaling publish --help": (
        ["publish", "--help"],
        ["usage: scaling publish", "DIR", "WANDB_API_KEY", "--project", "--mode"],
    ),
    "scaling export --help": (
        ["export", "--help"],
        ["usage: scaling export", "DIR", "csv, parquet, extrap", "--output"],
    ),
    "scaling merge --help": (["merge", "--help"], ["usage: scaling merge", "DIR", "--output", "clusters"]),
    "scaling run --cfg job": (
        ["run", "--cfg", "job", "study=rbf"],
        ["devices: null", "workload: rbf", "case_seconds: 600"],
    ),
}


@pytest.mark.parametrize("name", HELP)
def test_help_helps(name, scaling_command, tmp_path):
    words, told = HELP[name]
    done = scaling_command(words)
    assert (done.returncode, done.stderr) == (0, "")
    assert [word for word in told if word not in done.stdout] == []
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_says_what_would_run_and_what_be_skipped_and_starts_nothing(
    here, write_study, write_workload, tmp_path
):
    write_workload()
    words = write_study("{workload: mine, points: [6, 10], devices: [1, 2], mode: [jacfwd, analytic]}")
    before = sorted(tmp_path.iterdir())
    done = here([*words, "dry_run=true", "oversubscribe=true"])
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
    assert done.stdout.splitlines()[-1] == "4 to run, 4 to skip, 0 done before; nothing was started"
    assert sorted(tmp_path.iterdir()) == before


def test_several_studies_can_be_asked_for_at_once(here, write_study, write_workload, tmp_path):
    write_workload()
    write_study("{workload: mine, points: 6, api: jit}", name="one")
    write_study("{workload: mine, points: [8, 10], api: jit}", name="two")
    done = here(["run", "--config-dir", "my_conf", "--multirun", "study=one,two", "dry_run=true"])
    assert (done.returncode, done.stderr) == (0, "")
    assert re.findall(r"^\d+ to run", done.stdout, re.MULTILINE) == ["1 to run", "2 to run"]


def test_a_bad_study_keeps_the_others_of_a_multirun_from_being_called_done(here, write_study, write_workload):
    write_workload()
    write_study("{workload: mine, points: 6, api: jit}", name="good")
    write_study("{workload: mine, points: 0, api: jit}", name="bad")
    done = here(["run", "--config-dir", "my_conf", "--multirun", "study=bad,good", "dry_run=true"])
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1


def test_a_reader_that_goes_away_is_no_crash(start_command, write_study, write_workload):
    write_workload()
    process = start_command([*write_study("{workload: mine, points: 6, api: jit}"), "dry_run=true"])
    process.stdout.close()
    process.stdout = open(os.devnull)  # noqa: SIM115
    _, complaints = process.communicate(timeout=60)
    assert "Traceback" not in complaints and len(complaints.splitlines()) <= 1


def test_a_refusal_in_a_worker_is_a_sentence_in_its_record_without_the_name_of_a_type(
    make_record, monkeypatch
):
    import jax

    from scaling.core import run_case, workload
    from scaling.core.timing import Sampling

    def refuse(case, *_):
        raise Refusal("x must be positive, not -1")

    monkeypatch.setattr(workload, "build", refuse)
    record = run_case.run_case(make_record(seconds=()), jax.devices()[:1], "cpu", Sampling())
    assert (record.status, record.text) == ("failed", "x must be positive, not -1")


COMPLETED = {
    "scaling ": "run plan status logs",
    "scaling sta": "status",
    "scaling run stu": "study=",
    "scaling run study=rb": "study=rbf",
    "scaling run devices=1 dry_": "dry_run=",
    "scaling plan hardware=v5": "hardware=v5e hardware=v5p",
    "scaling status res": "",
    "scaling run results=(": "",
    "scaling run --nothing x": "",
    "scaling nothing x": "",
}


@pytest.mark.parametrize("line", COMPLETED)
def test_completion_in_a_shell_offers_verbs_and_fields_and_never_complains(line, here, monkeypatch):
    monkeypatch.setenv("COMP_LINE", line)
    done = here(["-sc", "query=bash"])
    assert (done.returncode, done.stderr) == (0, "")
    assert COMPLETED[line] in done.stdout and (COMPLETED[line] or not done.stdout.strip())


@pytest.mark.parametrize(
    "words", [["-sc", "install=bash"], ["run", "-sc", "install=bash"], ["-sc", "install=fish"]]
)
def test_completion_is_installed_by_what_is_printed(words, here):
    done = here(words)
    assert (done.returncode, done.stderr) == (0, "") and "-sc query=" in done.stdout


@pytest.mark.parametrize("words", [["version"], ["--version"]])
def test_the_version_has_a_verb(words, here):
    done = here(words)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, scaling.__version__, "")
