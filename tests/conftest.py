"""What the tests share: the command in a process of its own, made-up records, and a user's workload."""

import gc
import os
import signal
import subprocess
import textwrap
from collections import Counter

import pytest

from scaling.core.case import Case
from scaling.core.record import Record
from tests.support import loaded, tiers
from tests.support.commands import COMMAND, QUICK, SLOWEST, command_environment
from tests.support.slurm import cluster  # noqa: F401  # a fixture

os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # in this process: compiling costs more than computing


@pytest.fixture(scope="session")
def loaded_command():
    """What runs the command without its having to be imported each time."""
    server = loaded.Server()
    yield server
    server.close()


@pytest.fixture
def scaling_command(tmp_path, loaded_command):
    """`scaling WORDS...` in a process of its own, in the test's own folder; started from nothing if `anew`, or with options."""

    def call(words, cwd=tmp_path, env=None, timeout=SLOWEST, anew=False, **options):
        if not (anew or options):
            return loaded_command.run([str(COMMAND), *words], cwd, command_environment(env), timeout)
        return subprocess.run(
            [str(COMMAND), *words], cwd=cwd, env=command_environment(env), timeout=timeout, capture_output=True, text=True,
            check=False, **options,
        )  # fmt: skip

    return call


@pytest.fixture
def start_command(tmp_path):
    """The same, left running in a session of its own; whatever is still alive of it is ended with the test."""
    started = []

    def start(words, **options):
        process = subprocess.Popen(
            [str(COMMAND), *words], cwd=tmp_path, env=command_environment(), text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=SLOWEST)


@pytest.fixture
def make_record():
    """A made-up record: fields of the case and of the record by name. A `block` in words is the record's, a number the case's."""

    def make(status="ok", digest="e" * 12, seconds=(0.003, 0.001, 0.002), environment=None, **fields):
        of_case = [
            k
            for k in fields
            if k in Case.__dataclass_fields__ and (k != "block" or not isinstance(fields[k], str))
        ]
        case = Case(
            **{"workload": "linear", "sizes": {"p": 5, "o": 3}, "points": 7}
            | {k: fields.pop(k) for k in of_case}
        )
        samples = list(seconds) if status == "ok" else []
        around = {
            "digest": digest, "platform": "cpu", "device_kind": "A processor", "cores": list(range(case.devices)),
            "hosts": ["host"], "versions": {"jax": "0.10.2"}, "xla_flags": "", "commit": None, "dirty": None, "source": "5" * 12,
            "workload_digest": None, "bound": True, "load": 0.1,
        }  # fmt: skip
        return Record(
            case,
            status,
            around | (environment or {}),
            **{"seconds": samples, "seconds_min": samples, "error": 1e-7} | fields,
        )

    return make


@pytest.fixture
def write_workload(tmp_path):
    """A user's own workload in the test's folder: the body of `function`, in terms of the point `x`, three numbers."""

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
RUNNING = "worker" in os.path.basename(sys.argv[0])  # as against being asked about before anything starts
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
    """A user's own study; the words that run it come back."""

    def write(text, name="mine"):
        folder = tmp_path / "my_conf" / "study"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.yaml").write_text(textwrap.dedent(text))
        return ["run", "--config-dir", "my_conf", f"study={name}", *QUICK]

    return write


def pytest_configure():
    """What a shell runs in the background ignores Ctrl-C, and so would every command that is started here."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark what `thin` leaves to a tier and what `sample` adds to the default run; the longest files come first."""
    items.sort(key=lambda item: item.path.parent.name != "workers")
    seen = Counter()
    for item in items:
        function = item.nodeid.partition("[")[0]
        index = seen[function]
        seen[function] += 1
        if thin := item.get_closest_marker("thin"):
            step, tier = thin.args
            if index % step:
                item.add_marker(tier)
        if (sample := item.get_closest_marker("sample")) and index % sample.args[0] == 0:
            item.add_marker("default")


def pytest_collection_finish():
    """Exempt what has been imported from garbage collection; every failed case collects the garbage of its process."""
    gc.freeze()


def pytest_runtest_setup(item):
    """Skip a test whose tier cannot run on this machine; fail it if the tier is required."""
    for tier in tiers.TIERS:
        if item.get_closest_marker(tier) and (reason := tiers.missing(tier)):
            tiers.skip_or_fail(tier, reason)
