"""The efficiency that another device should keep, as a word of `scaling report`."""

import pytest

from tests.support import made_up
from tests.support.records import record


@pytest.fixture
def folder(tmp_path):
    times = {1: 8.0, 2: 4.4, 4: 3.0}  # efficiencies 1, 0.91, 0.67
    records = [record(devices, seconds) for devices, seconds in times.items()]
    return made_up.write(tmp_path / "made", records, scaling=["strong"])


@pytest.mark.parametrize(
    ("words", "most"), [([], 4), (["efficiency=0.9"], 2), (["efficiency=0.95"], 1)], ids=str
)
def test_the_answer_and_the_page_say_up_to_how_many_devices_it_stays(scaling_command, folder, words, most):
    scaling_command(["report", str(folder)])  # a report of another efficiency is there already
    done = scaling_command(["report", str(folder), *words])
    told = f"stays at {words[0][11:] if words else 0.5} or above up to {most} device"
    assert done.returncode == 0 and told in " ".join(done.stdout.split()), done.stdout + done.stderr
    assert told in (folder / "report" / "index.html").read_text()


@pytest.mark.parametrize("word", ["efficiency=0", "efficiency=2", "efficiency=half", "efficient=0.5", "0.5"])
def test_another_word_is_refused_in_one_line(scaling_command, folder, word):
    done = scaling_command(["report", str(folder), word])
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "efficiency=0.5" in done.stderr
