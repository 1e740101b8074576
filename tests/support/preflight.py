"""Fixtures that call the command, and check the cases of built-in workloads, without a new process."""

import logging
import os
import signal
import subprocess
import sys

import pytest

from scaling.cli import main
from scaling.core.case import user_modules
from scaling.launcher import cores
from scaling.study import preflight
from tests.support.commands import command_environment

CORES = cores.usable_cores()
TWO_CORES = CORES if CORES[1:] else [*CORES, CORES[0] + 1]


@pytest.fixture
def preflight_in_this_process(monkeypatch):
    """Check cases without a user's module in this process, which has imported JAX. The others keep their own process."""
    in_child_process = preflight._check_in_child_processes

    def check_in_this_process(cells, seconds):
        if user_modules(cells[0].case):
            return in_child_process(cells, seconds)
        from scaling.study import preflight_process as process

        return map(process.call_user_code, cells)

    monkeypatch.setattr(preflight, "_check_in_child_processes", check_in_this_process)
    # With one core, studies on two devices would be refused before any other fault is found.
    monkeypatch.setattr(cores, "usable_cores", lambda: TWO_CORES)


@pytest.fixture
def call_main(tmp_path, monkeypatch, capsys, preflight_in_this_process):
    """Call the command's main function in the test's folder, with the environment of the command if one is given.

    This saves half a second of startup, and a second of a preflight process.
    """

    def run_main(arguments, env=None):
        if env is not None:
            variables = command_environment(env)
            for name in os.environ.keys() - variables:
                monkeypatch.delenv(name)
            for name, value in variables.items():
                monkeypatch.setenv(name, value)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["scaling"])
        monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
        monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        # Hydra closes existing logging handlers; closing absl's would close the standard error of pytest.
        monkeypatch.setattr(logging, "shutdown", lambda *_: None)
        monkeypatch.setattr(signal, "signal", lambda *_: None)  # keep the signal handlers of pytest
        status = main.main(arguments)
        return subprocess.CompletedProcess(arguments, status, *capsys.readouterr())

    return run_main
