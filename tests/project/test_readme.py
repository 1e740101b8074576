"""Tests of the README: its example files are written and its commands run exactly as shown."""

import re

import pytest

from tests.support.paths import TOP

README = (TOP / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    line.split("   ")[0].strip()
    for kind, text in BLOCKS
    if kind == "bash"
    for line in text.splitlines()
    if line.startswith("scaling ")
]
SMALL = ["sampling.seconds=0.02", "sampling.most=7", "sampling.warm_up=0.001"]  # fewer samples
FEW = ["replicates=1", "where='mode == \"jacrev\"'"]  # one pair of processes in a comparison, one mode
NO_PEAKS = ["study.ceilings=false"]  # does not measure the peaks of the machine
QUICK_ADVICE = ["budget=2"]  # seconds of measurement
PLANNED = ['where=\'workload == "linear" and mode == "jacrev" and devices == 8960\'']  # one case of the plan
SMALLER = {"points=1000": "points=60", "memory_limit=500MB": "memory_limit=4MB"}  # of a run
SMALLEST = {  # some cases of a study
    "study=speedup": ['where=\'workload == "poisson" and mode != "jacrev"\'', "points=65536"],
    "workload=spring": ["points=1024"],
}
SUBMITTED = ["where='workload == \"linear\" and points > 8'"]  # some cases of the study for Slurm


@pytest.fixture(scope="session")
def readme_folder(tmp_path_factory):
    """Write the files of the README into a folder under their names."""
    folder = tmp_path_factory.mktemp("reader")
    for kind, text in BLOCKS:
        if kind in ("yaml", "python"):
            path = folder / text.splitlines()[0].removeprefix("# ")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return folder


def test_the_readme_shows_a_study_a_function_and_commands():
    assert {kind for kind, _ in BLOCKS} == {"bash", "yaml", "python"}
    assert len(COMMANDS) >= 6


def test_example_files_of_the_readme_are_short():
    assert all(text.count("\n") <= 14 for kind, text in BLOCKS if kind in ("yaml", "python"))


def tier_of(command):
    """Return the tier that a command of the README belongs to."""
    if "cluster=slurm" in command or "results/jobs" in command:  # the second reads the results of the first
        return "slurm"
    return "plan" if "hardware=v5p" in command or "hardware=h100" in command else "process"


@pytest.mark.parametrize(
    "command", [pytest.param(line, marks=getattr(pytest.mark, tier_of(line))) for line in COMMANDS]
)
def test_a_command_of_the_readme_succeeds(command, readme_folder, scaling_command):
    arguments = [argument.strip("'") for argument in command.split()[1:]]
    if arguments[0] == "plan":
        arguments += PLANNED
    is_run = arguments[0] == "run" and not {"dry_run=true", "--help"} & {*arguments}
    if is_run:
        arguments = [SMALLER.get(argument, argument) for argument in arguments]
        arguments += SMALL + (FEW if any(argument.startswith("versus=") for argument in arguments) else [])
        arguments += NO_PEAKS if "study=linear" in arguments else []
        arguments += [word for name in SMALLEST.keys() & {*arguments} for word in SMALLEST[name]]
        arguments += ["wait=true", *SUBMITTED] if tier_of(command) == "slurm" else []
    arguments += QUICK_ADVICE if arguments[0] == "advise" and "hardware=h100" not in arguments else []
    done = scaling_command(arguments, cwd=readme_folder)
    expected = (0, 1) if arguments[0] == "compare" else (0,)  # a difference may appear by chance
    assert done.returncode in expected, done.stdout + done.stderr
    assert done.stdout.strip()
    if is_run:
        assert "0 failed" in done.stdout
        assert re.search(r"report: (\S+index\.html)", done.stdout)
