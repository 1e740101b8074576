"""Shared fixtures: the `scaling` command in its own process, synthetic records, user workloads and studies; test tiers."""

import gc
import os
import signal
import subprocess
import textwrap
from collections import Counter, defaultdict
from importlib import metadata

import pytest

from scaling.core.case import Case
from scaling.core.record import Record
from tests.support import loaded, pairs, tiers
from tests.support.commands import COMMAND, COMMAND_TIMEOUT, QUICK, command_environment
from tests.support.preflight import call_main, preflight_in_this_process  # noqa: F401  # fixtures
from tests.support.slurm import cluster  # noqa: F401  # a fixture

# In this process, where compiling costs more than computing: half the time of compiling.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
if metadata.version("jaxlib").startswith("0.10."):  # jaxlib 0.11 aborts at an unknown flag
    os.environ["XLA_FLAGS"] = "--xla_cpu_use_fusion_emitters=false"

SLOWEST = [  # modules of all tiers that take longest, longest first
    f"test_{name}.py"
    for name in (
        "online", "contract", "readme", "check_computed", "hostile_modules", "layouts", "faults", "check", "own_functions", "browser",
        "malformed", "command", "replicates", "peer", "streams", "accelerator", "docs", "small", "torch",
    )
]  # fmt: skip


@pytest.fixture(scope="session")
def loaded_command():
    """A server that runs the command in forks of a process that has already imported it."""
    server = loaded.Server()
    yield server
    server.close()


@pytest.fixture
def scaling_command(tmp_path, loaded_command):
    """Run `scaling ARGUMENTS...` in its own process and folder; in a new interpreter if `fresh` or with options of subprocess.run."""

    def call(arguments, cwd=tmp_path, env=None, timeout=COMMAND_TIMEOUT, fresh=False, **options):
        if not (fresh or options):
            return loaded_command.run([str(COMMAND), *arguments], cwd, command_environment(env), timeout)
        return subprocess.run(
            [str(COMMAND), *arguments], cwd=cwd, env=command_environment(env), timeout=timeout, capture_output=True, text=True,
            check=False, **options,
        )  # fmt: skip

    return call


@pytest.fixture
def start_command(tmp_path):
    """Start `scaling ARGUMENTS...` in its own session without waiting for it; kill it after the test if it still runs."""
    started = []

    def start(arguments, **options):
        process = subprocess.Popen(
            [str(COMMAND), *arguments], cwd=tmp_path, env=command_environment(), text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=COMMAND_TIMEOUT)


@pytest.fixture
def make_record():
    """Make a record from fields of the case and of the record. A `block` that is text belongs to the record, a number to the case."""

    def make(status="ok", digest="e" * 12, seconds=(0.003, 0.001, 0.002), environment=None, **fields):
        case_fields = [
            k
            for k in fields
            if k in Case.__dataclass_fields__ and (k != "block" or not isinstance(fields[k], str))
        ]
        case = Case(
            **{"workload": "linear", "sizes": {"p": 5, "o": 3}, "points": 7}
            | {k: fields.pop(k) for k in case_fields}
        )
        samples = list(seconds) if status == "ok" else []
        record_environment = {
            "digest": digest, "platform": "cpu", "device_kind": "A processor", "cores": list(range(case.devices)),
            "hosts": ["host"], "versions": {"jax": "0.10.2"}, "xla_flags": "", "commit": None, "dirty": None, "source": "5" * 12,
            "workload_digest": None, "bound": True, "load": 0.1,
        }  # fmt: skip
        return Record(
            case,
            status,
            record_environment | (environment or {}),
            **{"seconds": samples, "seconds_min": samples, "error": 1e-7} | fields,
        )

    return make


@pytest.fixture
def write_workload(tmp_path):
    """Write a user's workload module: the body of `function` computes from the point `x`, an array of three numbers."""

    def write(name="mine", body="return jnp.sin(x)[:2] * x[2]", head="", returns=None):
        returns = returns or 'Workload(function=function, points={"x": uniform(3, low=0.5)})'
        text = f"""\
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np

from scaling.workload import Reference, Workload, uniform

VARIANTS = ("plain",)
RUNNING = "worker" in os.path.basename(sys.argv[0])  # false in the preflight process
{textwrap.dedent(head)}

def workload(case):
    def function(x):
{textwrap.indent(textwrap.dedent(body), " " * 8)}

    return {returns}
"""
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def write_study(tmp_path):
    """Write a user's study file, of a text or of fields, and return the arguments of the command that runs it."""

    def write(text="", name="mine", **fields):
        text = text or f"{{{', '.join(f'{field}: {value}' for field, value in fields.items())}}}"
        folder = tmp_path / "my_conf" / "study"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.yaml").write_text(textwrap.dedent(text))
        return ["run", "--config-dir", "my_conf", f"study={name}", *QUICK]

    return write


def pytest_configure():
    """Restore the handler of Ctrl-C, which processes in the background of a shell ignore and their children too."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def runs_by_default(item):
    return item.get_closest_marker("default") or not any(map(item.get_closest_marker, tiers.TIERS))


def redundant(product):
    """Return the items of a product of parameters that its marker `covering` leaves out."""
    rows = {tuple(item.callspec._idlist): item for item in product}
    default = [row for row, item in rows.items() if runs_by_default(item)]
    chosen = pairs.find_cover(list(rows), product[0].get_closest_marker("covering").args[0], default)
    return [item for row, item in rows.items() if row not in chosen]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Apply the markers `thin`, `sample` and `covering`, and run the slowest modules first, so that all workers end together."""
    order = {name: number for number, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))
    counts, products = Counter(), defaultdict(list)
    for item in items:
        function = item.nodeid.partition("[")[0]
        index = counts[function]
        counts[function] += 1
        for thin in item.iter_markers("thin"):
            step, tier = thin.args
            if index % step:
                item.add_marker(tier)
        if (sample := item.get_closest_marker("sample")) and index % sample.args[0] == 0:
            item.add_marker("default")
        if item.get_closest_marker("covering"):
            products[function].append(item)
    left_out = {item for product in products.values() for item in redundant(product)}
    items[:] = [item for item in items if item not in left_out]


def pytest_ignore_collect(collection_path, config):
    """Leave out a module without a test of the tiers that `-m` selects."""
    if collection_path.match("test_*.py") and not tiers.may_match(collection_path, config.option.markexpr):
        return True
    return None


def pytest_collection_finish():
    """Exempt imported modules from garbage collection, which every failed case triggers in its process."""
    gc.freeze()


def pytest_runtest_setup(item):
    """Skip a test whose tier cannot run on this machine; fail it if the tier is required."""
    for tier in tiers.TIERS:
        if item.get_closest_marker(tier) and (reason := tiers.missing(tier)):
            tiers.skip_or_fail(tier, reason)
