"""Golden data for a redesign: what the package of 2026-11 makes of its studies and of its results folders.

`python tests/golden/redesign/make.py [keys] [reading] [surface]` writes the JSON files here again.
The results folders in `results/` are real and are not made again: their lines stay as written, but for
the names of the host and its kernel. They came from the studies in `conf/study`, with JAX_PLATFORMS=cpu, on
two cores. Each command ends with results=results/FOLDER:

    everything  scaling run study=replicated replicates=2 QUICK
                scaling plan study=planned hardware=v5e 'devices=[1,4]'
                scaling plan study=planned hardware=h100 'devices=[1,8]'
                scaling run study=golden QUICK
                scaling plan study=planned hardware=cpu 'devices=[1,2]'
    versus      scaling run study=versus versus=xla:--xla_cpu_enable_fast_math=false replicates=3 QUICK
    unruly      scaling run study=unruly case_seconds=20 QUICK

QUICK is sampling.seconds=0.05 sampling.least=7 sampling.most=7 sampling.warm_up=0.001. `results/made_up`
holds records of tests/made_up.py, with up to eight devices.

`reading.json` was adapted: a time over processes is their geometric mean, no longer their median, and what is no longer
reported was removed: notes of lint, the tables of growth, laws and plans, two columns and some numbers.

Only `case_keys` imports the package. Everything else runs commands and reads what they print and write:
names, statuses and numbers.
"""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FOLDERS = ("everything", "made_up", "unruly", "versus")
REPORTED = ("everything", "made_up")
VERBS = ("run", "plan", "status", "logs", "cancel", "report", "compare", "lint", "export", "merge", "publish")
_HYDRA = ("run", "plan")  # verbs whose words are overrides
Command = Callable[[list[str], Path], Any]  # words, working directory -> returncode, stdout, stderr

# Words that complete a study that does not stand alone.
_COMPLETED = {"function": ["workload=rbf"], "plan": ["devices=[1,64]"]}
# Display names: their wording may change.
_WORDED = {"curves": ("name",), "laws": ("name",), "records": ("text",), "plans": ("text",)}
_NUMBER = re.compile(r"(?<![\w.,])[-+]?\d(?:[\d,]*\d)?(?:\.\d+)?(?:e[-+]?\d+)?(?![\w])")
_BAD = {  # name -> words; each is refused before anything starts
    "unknown verb": ["rum"],
    "unknown study": ["run", "study=smok"],
    "unknown key": ["run", "study=linear", "pionts=3"],
    "unknown mode": ["run", "study=linear", "mode=jacfwdd"],
    "unknown workload": ["run", "study=function", "workload=no_such_module"],
    "points of the wrong type": ["run", "study=linear", "points=many"],
    "unknown variant to measure in turns": ["run", "study=linear", "versus=other"],
    "a word that is no override": ["run", "smoke"],
    "no such hardware": ["plan", "study=plan", "hardware=v99"],
    "no hardware": ["plan", "study=plan"],
    "hardware for a run": ["run", "study=linear", "hardware=v5p"],
    "no results": ["report", "nowhere"],
    "no results to compare": ["compare", "nowhere", "elsewhere"],
    "unknown option": ["status", "everything", "--everything"],
    "unknown format": ["export", "everything", "--format", "xml"],
    "nothing measured beside": ["compare", "everything"],
    "unknown case": ["logs", "everything", "zzzz"],
    "merge without output": ["merge", "everything"],
}  # fmt: skip


def case_keys() -> dict[str, list[str]]:
    """Return, for every study in conf/study, the key of each case, in order. A key is a digest of the fields of the case."""
    from scaling.core.case import FIELDS
    from scaling.options import machine_peaks
    from scaling.study import case_rules, grid
    from scaling.study.configuration import compose

    found: dict[str, list[str]] = {}

    def add(config: dict[str, Any], name: str) -> None:
        overrides = {field: config[field] for field in (*FIELDS, "scaling", "where")}
        cells = grid.expand_study(config["study"], overrides, config["max_cases"])
        if machine_peaks.enables_peaks(config["study"]):
            peaks = machine_peaks.peak_cases([cell.case for cell in cells], "cpu")
            cells += [grid.GridCell(case) for case in peaks]
        for cell in cells:
            case = case_rules.complete(cell.case)
            if (scaled := cell.scaled(case)) != case:
                case = case_rules.complete(scaled)
            found.setdefault(name, []).append(case.key)

    for name in sorted(path.stem for path in (HERE.parents[2] / "conf" / "study").glob("*.yaml")):
        add(*compose([f"study={name}", *_COMPLETED.get(name, [])]))
    return found


def copy_results(target: Path) -> None:
    """Copy the results folders into a folder."""
    for name in FOLDERS:
        shutil.copytree(HERE / "results" / name, target / name)


def numbers(text: str) -> list[str]:
    """Return the numbers in a text, without thousands separators, in order."""
    return [each.replace(",", "").lstrip("+") for each in _NUMBER.findall(text)]


def read_folder(name: str, command: Command, cwd: Path) -> dict[str, Any]:
    """Return what the commands say of a results folder in `cwd`: statuses, counts, tables and numbers."""
    status, lint = command(["status", name], cwd), command(["lint", name], cwd)
    export = command(["export", name, "--format", "csv,extrap"], cwd)
    remarks = re.findall(r"^(error|warning|note) +(.+?) \((\d+)\): ", lint.stdout, re.MULTILINE)
    exits = {"status": status.returncode, "lint": lint.returncode, "export": export.returncode}
    exports = cwd / name / "export"
    return {
        "exit": exits,
        "counts": _counts(status.stdout),
        "lint": [[severity, int(count), rule] for severity, rule, count in remarks],
        "exports": {path.stem: _csv(path) for path in sorted(exports.glob("*.csv"))},
        "extrap": {path.name: numbers(path.read_text()) for path in sorted(exports.glob("extrap/*.txt"))},
    }


def read_report(name: str, command: Command, cwd: Path) -> dict[str, Any]:
    """Return the exit status of a report, its counts, and the numbers of its answers and tables."""
    done = command(["report", name], cwd)
    last = done.stdout.strip().splitlines()[-1].partition(";")[0]
    return {
        "exit": done.returncode,
        "last_line": numbers(last),
        **_markdown(cwd / name / "report" / "table.md"),
    }


def compare_folder(command: Command, cwd: Path) -> dict[str, Any]:
    """Return what `scaling compare` says of the two variants: the exit status, the verdicts, the numbers."""
    done = command(["compare", "versus", "--markdown", "-"], cwd)
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")][2:]
    return {
        "exit": done.returncode,
        "rows": [[row[0], *(numbers(cell) for cell in row[1:6])] for row in rows],
    }


def reading(command: Command, cwd: Path) -> dict[str, Any]:
    """Return what is read from every results folder."""
    copy_results(cwd)
    return {
        "folders": {name: read_folder(name, command, cwd) for name in FOLDERS},
        "reports": {name: read_report(name, command, cwd) for name in REPORTED},
        "compare": compare_folder(command, cwd),
    }


def prints_more_than_one_line(done):
    """Return whether a refusal prints more than its line; on a busy machine lines of progress precede it."""
    progress = [line for line in done.stdout.splitlines() if line.startswith("examining: ")]
    return len(progress) < done.stdout.count("\n") or done.stderr.count("\n") != 1


def surface(command: Command, cwd: Path) -> dict[str, Any]:
    """Return the public surface: verbs, options, fields, exit statuses of bad input, fields of a record."""
    copy_results(cwd)
    overview = command(["--help"], cwd).stdout
    helps = {verb: command([verb, "--help"], cwd) for verb in VERBS}
    records = [json.loads(line) for path in (cwd / "everything").glob("*.jsonl") for line in path.open()]
    refused = {name: command(words, cwd) for name, words in _BAD.items()}
    fields = helps["run"].stdout.partition("Every field")[2]
    return {
        "verbs": [verb for verb in re.findall(r"^  scaling (\w+)", overview, re.MULTILINE) if verb != "VERB"],
        "help_exit": {verb: done.returncode for verb, done in helps.items()},
        "options": {verb: options(done.stdout) for verb, done in helps.items() if verb not in _HYDRA},
        "fields": re.findall(r"^  ([a-z_.]+): ", fields, re.MULTILINE),
        "refused": {name: {"words": _BAD[name], "exit": done.returncode} for name, done in refused.items()},
        "unclear": [name for name, done in refused.items() if prints_more_than_one_line(done)],
        "record": sorted({name for record in records for name in record}),
        "case": sorted({name for record in records for name in record["case"]}),
        "environment": sorted(set.intersection(*(set(record["environment"]) for record in records))),
    }


def options(text: str) -> list[str]:
    """Return the options in a help text of argparse."""
    usage = " ".join(text.partition("\n\n")[0].split())
    return re.findall(r"--[a-z-]+", usage)


def _counts(text: str) -> dict[str, dict[str, int]]:
    """Return the table of `scaling status`: workload -> state -> number of cases."""
    lines = [line for line in text.splitlines() if line[:1] in ("│", "┃")]
    head, *rows = [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in lines]
    return {row[0]: dict(zip(head[1:], map(int, row[1:]), strict=True)) for row in rows if row[0]}


def _markdown(path: Path) -> dict[str, Any]:
    """Return the numbers of the answers and of the rows of each table of a report."""
    answers, tables = list[list[str]](), dict[str, list[list[str]]]()
    title = ""
    for block in path.read_text().split("\n\n"):
        if block.startswith("#"):
            title = block.lstrip("# ")
        elif block.startswith("| "):
            tables[title] = [numbers(line) for line in block.splitlines()[2:]]
        else:
            answers.append(numbers(block))
    return {"answers": answers, "tables": tables}


def _csv(path: Path) -> dict[str, Any]:
    """Return the columns and the rows of an exported table; of samples, their number and sum."""
    worded = _WORDED.get(path.stem, ())
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    columns = list(rows[0]) if rows else path.read_text().strip().split(",")
    if path.stem == "samples":
        sums: dict[str, list[float]] = {}
        for row in rows:
            of = f"{row['key']} {row['replicate']} {row['environment']}"
            sums.setdefault(of, []).append(float(row["seconds"]))
        return {
            "columns": columns,
            "rows": [{"of": of, "count": len(each), "sum": sum(each)} for of, each in sums.items()],
        }
    kept = [{name: value for name, value in row.items() if value and name not in worded} for row in rows]
    return {"columns": columns, "rows": [_without_facts(row) for row in kept]}


def _without_facts(row: dict[str, str]) -> dict[str, str]:
    """Return a row without the environment in words, which is the same in every row."""
    return {name: value for name, value in row.items() if not name.startswith("environment.")}


def _in_a_process(words: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run `scaling WORDS` in a process of its own."""
    program = str(Path(sys.executable).parent / "scaling")
    around = os.environ | {"JAX_PLATFORMS": "cpu", "COLUMNS": "200"}
    return subprocess.run([program, *words], cwd=cwd, env=around, capture_output=True, text=True, check=False)


def write(name: str, value: Any) -> None:
    """Write golden data, an item a line."""
    lines = [f"{json.dumps(key)}: {_nested(part)}" for key, part in value.items()]
    (HERE / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _nested(part: Any, depth: int = 1) -> str:
    """Return JSON whose long mappings, and lists of lists or mappings, take a line for each item."""
    line = json.dumps(part)
    if len(line) < 400 or not isinstance(part, dict | list):
        return line
    if isinstance(part, list):
        return "[\n" + ",\n".join(map(json.dumps, part)) + "\n]" if isinstance(part[0], dict | list) else line
    inside = (f"{' ' * depth}{json.dumps(key)}: {_nested(value, depth + 1)}" for key, value in part.items())
    return "{\n" + ",\n".join(inside) + f"\n{' ' * (depth - 1)}}}"


def main(names: list[str]) -> None:
    """Write the golden data that is named, or all of it."""
    made: dict[str, Callable[[Path], Any]] = {
        "keys": lambda cwd: case_keys(),
        "reading": lambda cwd: reading(_in_a_process, cwd),
        "surface": lambda cwd: surface(_in_a_process, cwd),
    }
    for name in names or made:
        with tempfile.TemporaryDirectory() as folder:
            write(name, made[name](Path(folder)))


if __name__ == "__main__":
    main(sys.argv[1:])
