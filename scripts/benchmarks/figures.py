"""Draws the figures of README.md and docs/ from the records in docs/data; --measure measures these first.

docs/data/drawn.json holds a digest of the drawing code and of the records of each figure for a test.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from scaling.analysis import findings
from scaling.report.figures import files, make_figures

TOP = Path(__file__).resolve().parents[2]
DATA = TOP / "docs" / "data"
DRAWN = DATA / "drawn.json"
FIGURES = {  # file in docs/ -> study, and the name of its figure
    "rbf": ("rbf", "size"),
    "linear": ("linear", "size"),
    "residual": ("residual", "size"),
    "poisson": ("poisson", "size"),
    "plan": ("plan", "plan-v5p"),
    "report": ("speedup", "devices"),
}
EXAMPLES = {  # file in docs/ -> modules and arguments that measure its data, and that make its tables and figure
    "laplacian": (["examples.measure_laplacian"], ["examples.measure_laplacian", "--draw"]),
    "curvature": (["examples.curvature.measure"], ["examples.curvature.measure", "table"]),
    "brusselator": (
        ["examples.brusselator_stages.measure"],
        ["examples.brusselator_stages.measure", "table"],
    ),
    "memory": (["examples.memory.measure"], ["examples.memory.page"]),
    "gradbench": (["examples.gradbench.measure"], ["examples.gradbench.table"]),
}


def digest(study: str) -> str:
    """Return a digest of the drawing code and of the records of a study."""
    code = sorted((TOP / "scaling" / "report" / "figures").glob("*.py"))
    paths = [
        *code,
        TOP / "scaling" / "analysis" / "curves.py",
        *sorted((DATA / study).glob("*.json*")),
    ]
    return hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in paths)).hexdigest()


def measure(study: str) -> None:
    """Measure a study into docs/data, in place of what is there."""
    verb = ["plan", "hardware=v5p"] if study == "plan" else ["run"]
    shutil.rmtree(DATA / study, ignore_errors=True)
    words = [*verb, f"study={study}", f"results={DATA / study}"]
    subprocess.run([Path(sys.executable).parent / "scaling", *words], cwd=TOP, check=True)
    shutil.rmtree(DATA / study / "report", ignore_errors=True)
    (DATA / study / ".examined.json").unlink(missing_ok=True)


def draw(name: str) -> None:
    """Draw a figure into docs/."""
    study, figure = FIGURES[name]
    found = findings.read(DATA / study)
    with tempfile.TemporaryDirectory() as folder:
        drawn = [each for each in make_figures(found) if each.name == figure]
        (path,) = files.write_figures(drawn, found, Path(folder), ["png"])
        shutil.copy(path, TOP / "docs" / f"{name}.png")


def make_example(name: str, is_measured: bool) -> None:
    """Make the tables and the figure of a page about examples, from data that are measured first if asked for."""
    for module in EXAMPLES[name][0 if is_measured else 1 :]:
        subprocess.run([sys.executable, "-m", *module], cwd=TOP, check=True)


def main() -> None:
    """Measure where that is asked for, and draw what there are records for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true", help="measure the records first")
    parser.add_argument(
        "names", nargs="*", help=f"figures, all by default: {', '.join([*FIGURES, *EXAMPLES])}"
    )
    given = parser.parse_args()
    digests = json.loads(DRAWN.read_text()) if DRAWN.exists() else {}
    for name in given.names or [*FIGURES, *EXAMPLES]:
        if name in EXAMPLES:
            make_example(name, given.measure)
            continue
        study = FIGURES[name][0]
        if given.measure:
            measure(study)
        if not (DATA / study).is_dir():
            print(f"{name}: no records in docs/data/{study}; scripts/figures --measure makes some")
            continue
        draw(name)
        digests[name] = digest(study)
        print(f"docs/{name}.png")
    DRAWN.write_text(json.dumps(digests, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
