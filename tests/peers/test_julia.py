"""The peer `julia`: what is said without Julia, the protocol against a stand-in, and the systems themselves where Julia is."""

import contextlib
import json
import os
import re
import shutil
import stat
import sys
import textwrap
import time
import tomllib
from pathlib import Path

import pytest

from scaling.core import environment

os.environ["XLA_FLAGS"] = environment.variables("cpu")["XLA_FLAGS"]
import jax

from scaling.core import run_case, shape, workload
from scaling.core.case import Case, Refusal
from scaling.core.record import Record
from scaling.core.timing import Sampling
from scaling.peers import interface, julia
from scaling.study import applicability, completion

pytestmark = pytest.mark.thin(8, "peer")

jax.config.update("jax_enable_x64", True)

ONCE = Sampling(least=1, most=3, seconds=0.1, warm_up=0.0)
CUBE = {"workload": "rbf", "variant": "squared", "points": 7, "sizes": {"m": 5, "d": 3}}
LINEAR = {"workload": "linear", "points": 5, "sizes": {"p": 4, "o": 3}}
PROBLEMS = {
    "rbf": {"workload": "rbf", "points": 7, "sizes": {"m": 5}},
    "rbf rowwise": {"workload": "rbf", "points": 7, "sizes": {"m": 5}, "formulation": "rowwise"},
    "rbf grad": {"workload": "rbf", "target": "grad", "sizes": {"m": 6}},
    "rbf in three dimensions": CUBE,
    "rbf in three dimensions by a product": CUBE | {"formulation": "product"},
    "linear by W": LINEAR,
    "linear by both": LINEAR | {"wrt": "W+X"},
    "linear by both the other way round": LINEAR | {"wrt": "X+W"},
    "linear at once": LINEAR | {"batch": "whole"},
    "residual by m": {"workload": "residual", "points": 4},
    "residual by d": {"workload": "residual", "points": 4, "wrt": "d", "formulation": "dot"},
    "residual by both": {"workload": "residual", "points": 4, "wrt": "m+d"},
    "residual scalar": {"workload": "residual", "points": 4, "wrt": "d+m", "variant": "scalar"},
    "poisson": {"workload": "poisson", "points": 9},
    "poisson at once": {"workload": "poisson", "points": 9, "batch": "whole"},
}
HERE = Path(julia.__file__).parent
SHARED = ("ADTypes", "BenchmarkTools", "Distributions", "JSON", "SpecialFunctions")
SYSTEMS_OWN = ("ForwardDiff", "ReverseDiff", "Zygote", "Enzyme", "DifferentiationInterface")
LOADED = {name: (name,) for name in SYSTEMS_OWN} | {
    "DifferentiationInterface": ("DifferentiationInterface", "ForwardDiff", "ReverseDiff")
}

# Speaks as measure.jl does, and computes with NumPy: an imaginary step, which is as exact as a derivative.
STAND_IN = """\
#!{python}
import json, math, sys, time
import numpy as np

if sys.argv[1:] == ["--version"]:
    print("julia version 1.11.2")
    sys.exit()
TROUBLE = {trouble!r}
log = open({log!r}, "a")
print(json.dumps(sys.argv[1:]), file=log, flush=True)


def read(array):
    return np.fromfile(array["file"], array["type"]).reshape(array["shape"]).astype(np.float64)


def rbf(a, variant):
    x, support = a["x"], a["support"]
    if variant == "squared":
        return np.exp(-0.5 * np.sum((x - support) ** 2, axis=1))
    return np.exp(-0.5 * (-2 * x[0] * support[:, 0] + x[0] + support[:, 0]))


def residual(a, variant):
    f = np.exp(-1.5 * (np.arange(-10, 11) - a["m"]) ** 2)
    rs = a["d"] - np.sum(a["d"] * f) / np.sum(f * f) * f
    return np.sum(rs * rs)[None] if variant == "scalar" else rs


def poisson(a, variant):
    return (a["c"] * np.log(a["lam"]) - a["lam"] - math.lgamma(a["c"] + 1))[None]


FUNCTIONS = {{"rbf": rbf, "residual": residual, "poisson": poisson, "linear": lambda a, variant: a["X"] @ a["W"]}}
PER_POINT = {{"rbf": ["x"], "residual": ["d", "m"], "poisson": ["c", "lam"], "linear": ["X"]}}


def compute(request):
    arrays = {{array["name"]: read(array) for array in request["arrays"]}}
    function, own = FUNCTIONS[request["workload"]], PER_POINT[request["workload"]]
    points = []
    for i in range(len(arrays[own[0]])):
        one = {{name: array[i] if name in own else array for name, array in arrays.items()}}
        if request["mode"] == "value":
            points.append(function(one, request["variant"])[:, None])
            continue
        columns = []
        for name in request["names"]:
            for k in range(one[name].size):
                moved = np.array(one[name], complex)
                moved.reshape(-1)[k] += 1e-30j
                columns.append(function(one | {{name: moved}}, request["variant"]).imag / 1e-30)
        slope = np.stack(columns, axis=1)
        points.append(slope.sum(axis=0, keepdims=True) if request["summed"] else slope)
    result = np.stack(points)
    if request["workload"] == "poisson" and request["whole"] and request["mode"] == "value":
        result = result.sum(keepdims=True)
    assert list(result.shape) == request["shape"], (result.shape, request["shape"])
    return result.astype(request["dtype"])


for line in sys.stdin:
    request = json.loads(line)
    print(line.strip(), file=log, flush=True)
    answer = {{}}
    if TROUBLE.get(request["do"]) == "die":
        print("ERROR: LoadError: the reactor is missing", "Stacktrace:", sep="\\n", file=sys.stderr, flush=True)
        sys.exit(3)
    if TROUBLE.get(request["do"]) == "garbage":
        print("Precompiling project...", flush=True)
    if TROUBLE.get(request["do"]) == "error":
        answer = {{"error": "MethodError: no method matching +(::Nothing)"}}
    elif request["do"] == "prepare":
        result = compute(request) * (1.001 if TROUBLE.get("prepare") == "wrong" else 1)
        answer = {{"seconds": 0.25}}
    elif request["do"] == "result":
        result.tofile(request["file"])
    elif request["do"] == "sample":
        answer = {{"times": [2000.0] * min(request["most"], 3), "evaluations": 10}}
    print(json.dumps(answer), flush=True)
log.write("end\\n")
"""


@pytest.fixture(autouse=True)
def fresh_versions():
    """What is installed changes from test to test."""
    interface.versions.cache_clear()
    yield
    interface.versions.cache_clear()


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A `julia` first on the PATH with an environment that holds every package; what it was told, line by line, in the log."""

    def make(**trouble):
        log, folder = tmp_path / "log", tmp_path / "bin"
        folder.mkdir()
        (folder / "julia").write_text(STAND_IN.format(python=sys.executable, trouble=trouble, log=str(log)))
        (folder / "julia").chmod(stat.S_IRWXU)
        monkeypatch.setenv("PATH", str(folder))
        monkeypatch.setenv("JULIA_DEPOT_PATH", str(tmp_path / "depot"))
        instantiate(tmp_path / "depot")
        return log

    return make


def instantiate(depot, leave_out=(), name="Manifest.toml", version="1.2.3"):
    """A manifest as Julia writes it."""
    names = tomllib.loads((HERE / "Project.toml").read_text())["deps"]
    folder = depot / "environments" / "ad-scaling"
    folder.mkdir(parents=True, exist_ok=True)
    entries = [f'[[deps.{each}]]\nversion = "{version}"\n' for each in names if each not in leave_out]
    (folder / name).write_text('manifest_format = "2.0"\n' + "".join(entries))


def completed(**fields):
    return completion.complete(Case(**{"engine": "julia/ForwardDiff", "dtype": "float64"} | fields))


def refusal(case):
    built = workload.build(case)
    return applicability.why_inapplicable(case, built, shape.derivative_shape(case, built))


def run(case):
    return run_case.run_case(
        Record(case, "failed", {"digest": "test", "platform": "cpu"}), jax.devices()[:1], "cpu", ONCE
    )


@pytest.mark.parametrize("system", julia.SYSTEMS)
def test_without_julia_every_system_is_skipped_with_the_way_to_install_it(system, monkeypatch):
    monkeypatch.setenv("PATH", "")
    reason, words = refusal(
        completed(workload="residual", points=3, engine=f"julia/{system}", mode=julia.MODES[system][0])
    )
    assert reason == "not_installed"
    assert words.startswith("julia is not installed; see https://julialang.org/install, then: ")
    assert "\n" not in words and not re.search(r"\s/", words)


def test_an_unknown_system_is_refused_with_those_that_there_are():
    with pytest.raises(Refusal) as refused:
        completed(workload="residual", points=3, engine="julia/Tracker")
    assert all(f"julia/{system}" in str(refused.value) for system in julia.SYSTEMS)


def test_versions_are_those_of_julia_and_of_its_environment(stand_in, tmp_path):
    stand_in()
    for system, own in LOADED.items():
        assert interface.versions(f"julia/{system}") == {"julia": "1.11.2"} | dict.fromkeys(
            {*SHARED, *own}, "1.2.3"
        )


@pytest.mark.parametrize("absent", [*SYSTEMS_OWN, *SHARED])
def test_an_absent_package_takes_away_only_the_systems_that_load_it(absent, stand_in, tmp_path, monkeypatch):
    stand_in()
    monkeypatch.setenv("JULIA_DEPOT_PATH", str(tmp_path / "other"))
    instantiate(tmp_path / "other", leave_out=[absent])
    for system, own in LOADED.items():
        lacks = absent in (*own, *SHARED)
        case = completed(workload="residual", points=3, engine=f"julia/{system}", mode=julia.MODES[system][0])
        expected = ("not_installed", f"{absent} is not installed; {julia.INSTALL}") if lacks else None
        assert refusal(case) == expected, system


@pytest.mark.parametrize(
    ("manifests", "taken"),
    [
        ({"Manifest.toml": "1.0.0", "Manifest-v1.11.toml": "1.1.0", "Manifest-v1.12.toml": "1.2.0"}, "1.1.0"),
        ({"Manifest.toml": "1.0.0", "Manifest-v1.12.toml": "1.2.0", "Manifest-v1.1.toml": "0.1.0"}, "1.0.0"),
        ({"Manifest-v1.10.toml": "1.0.0", "Manifest-v1.11.toml": "1.1.0"}, "1.1.0"),
        (
            {
                "JuliaManifest-v1.11.toml": "1.3.0",
                "Manifest-v1.11.toml": "1.1.0",
                "JuliaManifest.toml": "1.4.0",
            },
            "1.3.0",
        ),
        ({"JuliaManifest.toml": "1.4.0", "Manifest.toml": "1.0.0"}, "1.4.0"),
        ({"Manifest-v1.12.toml": "1.2.0"}, None),
    ],
)
def test_of_several_manifests_the_one_of_the_running_julia_counts(
    manifests, taken, stand_in, tmp_path, monkeypatch
):
    stand_in()
    monkeypatch.setenv("JULIA_DEPOT_PATH", str(tmp_path / "other"))
    for name, version in manifests.items():
        instantiate(tmp_path / "other", name=name, version=version)
    assert interface.versions("julia/ForwardDiff") == {"julia": "1.11.2"} | dict.fromkeys(
        [*SHARED, "ForwardDiff"], taken
    )


def test_a_manifest_of_the_first_format_and_a_damaged_one_are_read_for_what_they_say(stand_in, tmp_path):
    stand_in()
    manifest = tmp_path / "depot" / "environments" / "ad-scaling" / "Manifest.toml"
    manifest.write_text('[[JSON]]\nversion = "0.21.1"\n[[LinearAlgebra]]\n')
    assert julia.versions("Zygote")["JSON"] == "0.21.1" and julia.versions("Zygote")["Zygote"] is None
    manifest.write_text("[[torn")
    assert set(julia.versions("Zygote").values()) == {"1.11.2", None}


def test_a_package_that_is_not_in_the_environment_is_named(stand_in, tmp_path, monkeypatch):
    stand_in()
    monkeypatch.setenv("JULIA_DEPOT_PATH", str(tmp_path / "other"))
    instantiate(tmp_path / "other", leave_out=["Enzyme"])
    case = completed(workload="residual", points=3, engine="julia/Enzyme", mode="jacrev")
    assert refusal(case) == ("not_installed", f"Enzyme is not installed; {julia.INSTALL}")


@pytest.mark.parametrize(
    ("mode", "dtype"), [("jacfwd", "float64"), ("jacfwd", "float32"), ("value", "float64")]
)
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_the_numbers_that_are_handed_over_come_back_in_order(problem, mode, dtype, stand_in):
    log = stand_in()
    case = completed(**problem | {"mode": mode, "dtype": dtype})
    assert refusal(case) is None
    record = run(case)
    assert record.status == "ok", record.text
    assert record.error <= record.tolerance
    assert (
        record.seconds == pytest.approx([2e-6] * 3)
        and record.calls_per_sample == 10
        and record.stop_reason == "most"
    )
    assert record.compile_seconds == 0.25
    asked = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    assert [line["do"] for line in asked][:3] == ["prepare", "call", "result"]
    assert asked[0]["names"] == (case.wrt or workload.build(case).wrt).split("+")


def test_the_process_is_told_its_system_threads_and_environment(stand_in, tmp_path):
    log = stand_in()
    run(completed(workload="poisson", points=4, engine="julia/Enzyme", mode="jacrev", devices=2))
    words = json.loads(log.read_text().splitlines()[0])
    depot = tmp_path / "depot" / "environments" / "ad-scaling"
    assert words == [
        "--startup-file=no",
        f"--project={depot}",
        "--threads=2",
        str(HERE / "measure.jl"),
        "Enzyme",
    ]


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        (
            {"prepare": "die"},
            "RuntimeError: Julia exited with status 3: ERROR: LoadError: the reactor is missing",
        ),
        (
            {"call": "die"},
            "RuntimeError: Julia exited with status 3: ERROR: LoadError: the reactor is missing",
        ),
        ({"prepare": "error"}, "RuntimeError: Julia: MethodError: no method matching +(::Nothing)"),
        ({"sample": "error"}, "RuntimeError: Julia: MethodError: no method matching +(::Nothing)"),
    ],
)
def test_whatever_goes_wrong_in_julia_is_one_failed_record(trouble, words, stand_in):
    stand_in(**trouble)
    record = run(completed(workload="poisson", points=4))
    assert (record.status, record.reason, record.text, record.seconds) == ("failed", "error", words, [])


def test_what_julia_prints_between_its_answers_is_ignored(stand_in):
    stand_in(call="garbage")
    assert run(completed(workload="poisson", points=4)).status == "ok"


def test_a_wrong_answer_is_never_timed(stand_in):
    log = stand_in(prepare="wrong")
    record = run(completed(workload="poisson", points=4))
    assert (record.status, record.reason) == ("failed", "wrong_answer")
    assert '"sample"' not in log.read_text()


def test_nothing_is_left_behind(stand_in, tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    stand_in()
    case = completed(workload="poisson", points=4)
    built = workload.build(case)
    sizes = shape.derivative_shape(case, built)
    prepared = julia.prepare(case, built, sizes, _arrays(case, built), 1)
    [folder] = (tmp_path / "temporary").iterdir()
    prepared.call()
    processes = [p for p in _started_with(tmp_path / "bin") if _words(p)[-1:] == ["ForwardDiff"]]
    assert len(processes) == 1
    del prepared
    assert not folder.exists()
    until = time.monotonic() + 5
    while processes[0].exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert not processes[0].exists()


def _started_with(path):
    """Return the processes that look for programs in this folder alone."""
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit() and f"PATH={path}".encode() in (process / "environ").read_bytes().split(
                b"\0"
            ):
                found.append(process)
    return found


def _arrays(case, built):
    from scaling.core import inputs

    return inputs.input_arrays(case, built)


def _words(process):
    try:
        return (process / "cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"mode": "jacrev"}, "julia/ForwardDiff offers jacfwd"),
        ({"mode": "jacfwd", "engine": "julia/Zygote"}, "julia/Zygote offers jacrev"),
        ({"mode": "analytic"}, "offers"),
        ({"dtype": "bfloat16"}, "float32 and float64"),
        ({"mode": "finite_difference", "dtype": "float32"}, "float64"),
        ({"chunk": 2}, "chunk size"),
        ({"jit": False}, "jit=false"),
        ({"jit": False, "mode": "jacrev", "engine": "julia/Enzyme"}, "jit=false"),
        ({"formulation": "loop"}, "batch=whole"),
        ({"formulation": "forward_inside", "batch": "whole"}, "a feature of ReverseDiff"),
        ({"batch": "whole", "devices": 2}, "a single thread"),
        ({"workload": "scaling.workloads.ceiling"}, "implements the workloads"),
    ],
)
def test_what_is_not_offered_is_told_in_words(fields, words):
    reason, text = refusal(completed(**{"workload": "poisson", "points": 3} | fields))
    assert reason == "not_offered" and words in text


def _packages():
    return tomllib.loads((HERE / "Project.toml").read_text())["deps"]


def test_the_script_and_its_environment_name_the_same_packages():
    script = (HERE / "measure.jl").read_text()
    loaded = re.findall(r"^(?:using|import) (\w+)", script, re.MULTILINE)
    differentiate = re.search(r"const PACKAGES = Dict\((.*?)^\)", script, re.MULTILINE | re.DOTALL).group(1)
    named = re.findall(r"^    :(\w+) => \[(.*?)\],$", differentiate, re.MULTILINE)
    assert {system: tuple(re.findall(r":(\w+)", words)) for system, words in named} == LOADED
    assert set(loaded) - {"LinearAlgebra"} == set(SHARED)
    assert set(julia.SYSTEMS) == set(LOADED)
    assert set(loaded) | set(re.findall(r":(\w+)", differentiate)) == set(_packages())
    assert set(tomllib.loads((HERE / "Project.toml").read_text())["compat"]) == set(_packages()) - {
        "LinearAlgebra"
    } | {"julia"}


def test_every_formulation_and_mode_is_a_word_of_the_script():
    script = (HERE / "measure.jl").read_text()
    for name in (*julia.FORMULATIONS["poisson"][:-1], "rowwise", "product", "dot", "scalar", "squared"):
        assert f'"{name}"' in script
    for system, modes in julia.MODES.items():
        assert all(re.search(rf"Val\{{:{system}\}}.*:{mode}\}}", script) for mode in modes)


@pytest.mark.skipif(shutil.which("julia") is None, reason=textwrap.shorten(julia.INSTALL, 60))
@pytest.mark.parametrize("system", julia.SYSTEMS)
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_the_systems_themselves_are_right(problem, system):
    for mode in (*julia.MODES[system], "value", "finite_difference"):
        case = completed(**problem | {"engine": f"julia/{system}", "mode": mode})
        if refusal(case) is not None:
            assert refusal(case)[0] != "not_installed", refusal(case)
            continue
        record = run(case)
        assert record.status == "ok", (mode, record.text)
        assert record.error <= record.tolerance


@pytest.mark.skipif(shutil.which("julia") is None, reason=textwrap.shorten(julia.INSTALL, 60))
@pytest.mark.parametrize("jit", [True, False])
@pytest.mark.parametrize("formulation", julia.FORMULATIONS["poisson"])
def test_the_formulations_of_the_thread_are_right(formulation, jit):
    case = completed(
        workload="poisson",
        points=20,
        batch="whole",
        mode="jacrev",
        engine="julia/ReverseDiff",
        formulation=formulation,
        jit=jit,
    )
    record = run(case)
    assert record.status == "ok", record.text
