"""Draw the figures of README.md and docs/ from the records in docs/data; --measure measures them first.

docs/data/drawn.json holds a digest of the drawing code and of the records of each figure for a test.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

from scaling.analysis import findings
from scaling.report.figures import charts, files

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
    "sources": ([], ["examples.sources.table"]),  # docs/sources.md names the commands that measure its data
}


def digest(study: str) -> str:
    """Return a SHA-256 digest of the drawing code and of the records of a study in docs/data."""
    code = sorted((TOP / "scaling" / "report" / "figures").glob("*.py"))
    paths = [
        *code,
        TOP / "scaling" / "analysis" / "curves.py",
        TOP / "scaling" / "analysis" / "sweeps.py",
        *sorted((DATA / study).glob("*.json*")),
    ]
    return hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in paths)).hexdigest()


def measure(study: str) -> None:
    """Run a study, or plan it if it is `plan`, and replace its records in docs/data."""
    verb = ["plan", "hardware=v5p"] if study == "plan" else ["run"]
    shutil.rmtree(DATA / study, ignore_errors=True)
    words = [*verb, f"study={study}", f"results={DATA / study}"]
    subprocess.run([Path(sys.executable).parent / "scaling", *words], cwd=TOP, check=True)
    shutil.rmtree(DATA / study / "report", ignore_errors=True)
    (DATA / study / ".examined.json").unlink(missing_ok=True)


def draw(name: str) -> None:
    """Draw the figure docs/NAME.png from the records of its study."""
    study, figure_name = FIGURES[name]
    study_findings = findings.read(DATA / study)
    figures = [figure for figure in charts.make_figures(study_findings) if figure.name == figure_name]
    (image,) = files.encode_figures(figures, study_findings, "png").values()
    (TOP / "docs" / f"{name}.png").write_bytes(image)


def make_example(name: str, is_measured: bool) -> None:
    """Write the tables and the figure of the page docs/NAME.md about examples, from its data in docs/data.

    If `is_measured` is true, the data are measured first.
    """
    for module in filter(None, EXAMPLES[name][0 if is_measured else 1 :]):
        subprocess.run([sys.executable, "-m", *module], cwd=TOP, check=True)


def main() -> None:
    """Draw the figures of the command line, or all. With --measure, measure their records first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true", help="measure the records first")
    parser.add_argument(
        "names", nargs="*", help=f"figures, all by default: {', '.join([*FIGURES, *EXAMPLES])}"
    )
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in {*FIGURES, *EXAMPLES}]:
        parser.error(f"unknown figure {unknown[0]!r}: choose from {', '.join([*FIGURES, *EXAMPLES])}")
    digests = json.loads(DRAWN.read_text()) if DRAWN.exists() else {}
    for name in arguments.names or [*FIGURES, *EXAMPLES]:
        if name in EXAMPLES:
            make_example(name, arguments.measure)
            continue
        study = FIGURES[name][0]
        if arguments.measure:
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
