"""Tests of `scaling report efficiency=...`: the parallel efficiency that a device count must keep."""

import pytest

from scaling.analysis import findings
from scaling.cli import report
from tests.support import made_up
from tests.support.records import record


@pytest.fixture
def folder(tmp_path):
    times = {1: 8.0, 2: 4.4, 4: 3.0}  # efficiencies 1, 0.91, 0.67
    records = [record(devices, seconds) for devices, seconds in times.items()]
    return made_up.write(tmp_path / "made", records, scaling=["strong"])


@pytest.mark.parametrize(
    ("arguments", "limit"), [([], 4), (["efficiency=0.9"], 2), (["efficiency=0.95"], 1)], ids=str
)
def test_report_states_up_to_which_device_count_the_efficiency_holds(
    scaling_command, folder, arguments, limit
):
    scaling_command(["report", str(folder)])  # writes a report with the default efficiency first
    done = scaling_command(["report", str(folder), *arguments])
    required, devices = arguments[0][11:] if arguments else 0.5, f"on up to {limit} device"
    expected = f"Efficiency of at least {required}: {devices}"
    assert done.returncode == 0 and expected in " ".join(done.stdout.split()), done.stdout + done.stderr
    page = (folder / "report" / "index.html").read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert f"Efficiency of at least {required}:</strong> {devices}" in page


def test_report_and_analysis_have_the_same_default():
    assert report._EFFICIENCY == findings.EFFICIENCY


@pytest.mark.parametrize(
    "argument", ["efficiency=0", "efficiency=2", "efficiency=half", "efficient=0.5", "0.5"]
)
def test_an_invalid_efficiency_is_rejected_in_one_line(scaling_command, folder, argument):
    done = scaling_command(["report", str(folder), argument])
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "efficiency=0.5" in done.stderr
