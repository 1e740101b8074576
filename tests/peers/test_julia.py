"""Tests of the engine julia: reasons to skip without Julia, the protocol with a fake julia, and results of a real one."""

import contextlib
import json
import re
import shutil
import stat
import sys
import textwrap
import time
import tomllib
from pathlib import Path

import pytest

from tests.support.devices import reason_to_skip, run_once  # isort: skip  # before JAX is used

from scaling.core import shape, workload
from scaling.core.case import Case, Refusal
from scaling.core.timing import Sampling
from scaling.peers import interface, julia
from scaling.study import completion
from tests.support import peer_problems
from tests.support.peer_problems import LINEAR

pytestmark = pytest.mark.thin(8, "peer")

SAMPLING = Sampling(least=1, most=3, seconds=0.1, warm_up=0.0)
PROBLEMS = peer_problems.PROBLEMS | {
    "linear by both in reverse order": LINEAR | {"wrt": "X+W"},
    "linear as a whole batch": LINEAR | {"batch": "whole"},
    "poisson as a whole batch": {"workload": "poisson", "points": 9, "batch": "whole"},
}
PEER_FOLDER = Path(julia.__file__).parent
SHARED = ("ADTypes", "BenchmarkTools", "Distributions", "JSON", "SpecialFunctions")
SYSTEM_PACKAGES = ("ForwardDiff", "ReverseDiff", "Zygote", "Enzyme", "DifferentiationInterface")
LOADED = {name: (name,) for name in SYSTEM_PACKAGES} | {
    "DifferentiationInterface": ("DifferentiationInterface", "ForwardDiff", "ReverseDiff")
}

# Implements the protocol of measure.jl and computes with NumPy by complex-step differentiation, which is exact.
FAKE_JULIA = """\
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
def clear_version_cache():
    """Clear the cache because installed packages differ between tests."""
    interface.versions.cache_clear()
    yield
    interface.versions.cache_clear()


@pytest.fixture
def fake_julia(tmp_path, monkeypatch):
    """Put a fake `julia` on the PATH with an environment of all packages, and return its log of requests."""

    def make(**trouble):
        log, folder = tmp_path / "log", tmp_path / "bin"
        folder.mkdir()
        (folder / "julia").write_text(FAKE_JULIA.format(python=sys.executable, trouble=trouble, log=str(log)))
        (folder / "julia").chmod(stat.S_IRWXU)
        monkeypatch.setenv("PATH", str(folder))
        monkeypatch.setenv("JULIA_DEPOT_PATH", str(tmp_path / "depot"))
        write_manifest(tmp_path / "depot")
        return log

    return make


def write_manifest(depot, omitted=()):
    """Write a manifest like Julia."""
    names = tomllib.loads((PEER_FOLDER / "Project.toml").read_text())["deps"]
    folder = depot / "environments" / "ad-scaling"
    folder.mkdir(parents=True, exist_ok=True)
    entries = [f'[[deps.{package}]]\nversion = "1.2.3"\n' for package in names if package not in omitted]
    (folder / "Manifest.toml").write_text('manifest_format = "2.0"\n' + "".join(entries))


def make_case(**fields):
    return completion.complete(Case(**{"engine": "julia/ForwardDiff", "dtype": "float64"} | fields))


def run(case):
    return run_once(case, SAMPLING)


@pytest.mark.parametrize("system", julia.SYSTEMS)
def test_without_julia_every_system_is_skipped_with_install_instructions(system, monkeypatch):
    monkeypatch.setenv("PATH", "")
    reason, text = reason_to_skip(
        make_case(workload="residual", points=3, engine=f"julia/{system}", mode=julia.MODES[system][0])
    )
    assert reason == "not_installed"
    assert text.startswith("julia is not installed; see https://julialang.org/install, then: ")
    assert "\n" not in text and not re.search(r"\s/", text)


def test_an_unknown_system_is_rejected_with_the_known_ones():
    with pytest.raises(Refusal) as error:
        make_case(workload="residual", points=3, engine="julia/Tracker")
    assert all(f"julia/{system}" in str(error.value) for system in julia.SYSTEMS)


def test_versions_are_those_of_julia_and_the_packages_of_the_system(fake_julia, tmp_path):
    fake_julia()
    for system, packages in LOADED.items():
        assert interface.versions(f"julia/{system}") == {"julia": "1.11.2"} | dict.fromkeys(
            {*SHARED, *packages}, "1.2.3"
        )


@pytest.mark.parametrize("absent", [*SYSTEM_PACKAGES, *SHARED])
def test_a_missing_package_disables_only_the_systems_that_load_it(absent, fake_julia, tmp_path, monkeypatch):
    fake_julia()
    monkeypatch.setenv("JULIA_DEPOT_PATH", str(tmp_path / "other"))
    write_manifest(tmp_path / "other", omitted=[absent])
    for system, packages in LOADED.items():
        is_affected = absent in (*packages, *SHARED)
        case = make_case(workload="residual", points=3, engine=f"julia/{system}", mode=julia.MODES[system][0])
        expected = ("not_installed", f"{absent} is not installed; {julia.INSTALL}") if is_affected else None
        assert reason_to_skip(case) == expected, system


def test_a_manifest_of_format_1_is_read_and_a_damaged_one_gives_no_versions(fake_julia, tmp_path):
    fake_julia()
    manifest = tmp_path / "depot" / "environments" / "ad-scaling" / "Manifest.toml"
    manifest.write_text('[[JSON]]\nversion = "0.21.1"\n[[LinearAlgebra]]\n')
    assert julia.versions("Zygote")["JSON"] == "0.21.1" and julia.versions("Zygote")["Zygote"] is None
    manifest.write_text("[[torn")
    assert set(julia.versions("Zygote").values()) == {"1.11.2", None}


def test_a_package_missing_in_the_environment_is_named(fake_julia, tmp_path, monkeypatch):
    fake_julia()
    monkeypatch.setenv("JULIA_DEPOT_PATH", str(tmp_path / "other"))
    write_manifest(tmp_path / "other", omitted=["Enzyme"])
    case = make_case(workload="residual", points=3, engine="julia/Enzyme", mode="jacrev")
    assert reason_to_skip(case) == ("not_installed", f"Enzyme is not installed; {julia.INSTALL}")


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    ("mode", "dtype"), [("jacfwd", "float64"), ("jacfwd", "float32"), ("value", "float64")]
)
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_arrays_are_passed_to_julia_and_back_in_order(problem, mode, dtype, fake_julia):
    log = fake_julia()
    case = make_case(**problem | {"mode": mode, "dtype": dtype})
    assert reason_to_skip(case) is None
    record = run(case)
    assert record.status == "ok", record.text
    assert record.error <= record.tolerance
    assert (
        record.seconds == pytest.approx([2e-6] * 3)
        and record.calls_per_sample == 10
        and record.stop_reason == "most"
    )
    assert record.compile_seconds == 0.25
    requests = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    assert [line["do"] for line in requests][:3] == ["prepare", "call", "result"]
    assert requests[0]["names"] == (case.wrt or workload.build(case).wrt).split("+")


def test_the_command_line_of_julia_has_system_threads_and_environment(fake_julia, tmp_path):
    log = fake_julia()
    run(make_case(workload="poisson", points=4, engine="julia/Enzyme", mode="jacrev", devices=2))
    arguments = json.loads(log.read_text().splitlines()[0])
    depot = tmp_path / "depot" / "environments" / "ad-scaling"
    assert arguments == [
        "--startup-file=no",
        f"--project={depot}",
        "--threads=2",
        str(PEER_FOLDER / "measure.jl"),
        "Enzyme",
    ]


@pytest.mark.parametrize(
    ("trouble", "message"),
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
def test_an_error_in_julia_gives_one_failed_record(trouble, message, fake_julia):
    fake_julia(**trouble)
    record = run(make_case(workload="poisson", points=4))
    assert (record.status, record.reason, record.text, record.seconds) == ("failed", "error", message, [])


def test_output_of_julia_between_its_replies_is_ignored(fake_julia):
    fake_julia(call="garbage")
    assert run(make_case(workload="poisson", points=4)).status == "ok"


def test_a_wrong_answer_is_not_timed(fake_julia):
    log = fake_julia(prepare="wrong")
    record = run(make_case(workload="poisson", points=4))
    assert (record.status, record.reason) == ("failed", "wrong_answer")
    assert '"sample"' not in log.read_text()


def test_the_julia_process_and_its_folder_are_removed(fake_julia, tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    fake_julia()
    case = make_case(workload="poisson", points=4)
    built = workload.build(case)
    sizes = shape.derivative_shape(case, built)
    prepared = julia.prepare(case, built, sizes, _input_arrays(case, built), 1)
    [folder] = (tmp_path / "temporary").iterdir()
    prepared.call()
    processes = [
        p for p in _processes_with_path(tmp_path / "bin") if _command_line(p)[-1:] == ["ForwardDiff"]
    ]
    assert len(processes) == 1
    del prepared
    assert not folder.exists()
    deadline = time.monotonic() + 5
    while processes[0].exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not processes[0].exists()


def _processes_with_path(path):
    """Return the processes whose PATH is this folder."""
    processes = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit() and f"PATH={path}".encode() in (process / "environ").read_bytes().split(
                b"\0"
            ):
                processes.append(process)
    return processes


def _input_arrays(case, built):
    from scaling.core import inputs

    return inputs.input_arrays(case, built)


def _command_line(process):
    try:
        return (process / "cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []


@pytest.mark.parametrize(
    ("fields", "message"),
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
        ({"workload": "scaling.workloads.ceiling"}, "implements the functions"),
    ],
)
def test_an_unsupported_case_is_skipped_with_the_reason(fields, message):
    reason, text = reason_to_skip(make_case(**{"workload": "poisson", "points": 3} | fields))
    assert reason == "not_offered" and message in text


def _packages():
    return tomllib.loads((PEER_FOLDER / "Project.toml").read_text())["deps"]


def test_the_script_and_its_project_file_list_the_same_packages():
    script = (PEER_FOLDER / "measure.jl").read_text()
    loaded = re.findall(r"^(?:using|import) (\w+)", script, re.MULTILINE)
    table = re.search(r"const PACKAGES = Dict\((.*?)^\)", script, re.MULTILINE | re.DOTALL).group(1)
    by_system = re.findall(r"^    :(\w+) => \[(.*?)\],$", table, re.MULTILINE)
    assert {system: tuple(re.findall(r":(\w+)", packages)) for system, packages in by_system} == LOADED
    assert set(loaded) - {"LinearAlgebra"} == set(SHARED)
    assert set(julia.SYSTEMS) == set(LOADED)
    assert set(loaded) | set(re.findall(r":(\w+)", table)) == set(_packages())
    assert set(tomllib.loads((PEER_FOLDER / "Project.toml").read_text())["compat"]) == set(_packages()) - {
        "LinearAlgebra"
    } | {"julia"}


def test_the_script_implements_every_formulation_and_mode():
    script = (PEER_FOLDER / "measure.jl").read_text()
    for name in (*julia.FORMULATIONS["poisson"][:-1], "rowwise", "product", "dot", "scalar", "squared"):
        assert f'"{name}"' in script
    for system, modes in julia.MODES.items():
        assert all(re.search(rf"Val\{{:{system}\}}.*:{mode}\}}", script) for mode in modes)


@pytest.mark.skipif(shutil.which("julia") is None, reason=textwrap.shorten(julia.INSTALL, 60))
@pytest.mark.parametrize("system", julia.SYSTEMS)
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_results_of_the_real_systems_are_correct(problem, system):
    for mode in (*julia.MODES[system], "value", "finite_difference"):
        case = make_case(**problem | {"engine": f"julia/{system}", "mode": mode})
        if reason_to_skip(case) is not None:
            assert reason_to_skip(case)[0] != "not_installed", reason_to_skip(case)
            continue
        record = run(case)
        assert record.status == "ok", (mode, record.text)
        assert record.error <= record.tolerance


@pytest.mark.skipif(shutil.which("julia") is None, reason=textwrap.shorten(julia.INSTALL, 60))
@pytest.mark.parametrize("jit", [True, False])
@pytest.mark.parametrize("formulation", julia.FORMULATIONS["poisson"])
def test_every_poisson_formulation_is_correct_with_reversediff(formulation, jit):
    case = make_case(
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
