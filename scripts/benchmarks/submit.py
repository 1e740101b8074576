"""Benchmark of submission: time to submit 5,040 cases over six process shapes, and to query their status.

Requires a Slurm with sixteen cores on nodes of four, such as `slurm/cluster up --nodes 4 --cpus 4`. All jobs
are canceled at the end. The exit status is 1 if the submission takes 30 s or more, or the status 2 s or more.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SUBMIT_SECONDS, STATUS_SECONDS, TIMES = 30.0, 2.0, 5
STUDY = """
devices: [1, 2, 4, 8, 12, 16]
workload: linear
points: [48, 96, 144, 192, 240, 288, 336]
sizes: {p: [8, 16, 32, 48, 64, 96, 128, 192], o: [2, 4, 8]}
mode: [vmap_jacfwd, vmap_jacrev, vmap_grad, linearize, analytic]
"""


def main() -> int:
    """Time the submission and the status of a study, and cancel the study. Return the exit status."""
    Path("results").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir="results", prefix=".bench-submit-", ignore_cleanup_errors=True
    ) as name:
        (Path(name) / "conf" / "study").mkdir(parents=True)
        (Path(name) / "conf" / "study" / "many.yaml").write_text(STUDY)
        words = ["run", "--config-dir", str(Path(name).resolve() / "conf"), "study=many"]
        submit_seconds, output = time_command([*words, "cluster=slurm", f"results={name}/out"])
        print(output.strip())
        try:
            status_times = [time_command(["status", f"{name}/out"])[0] for _ in range(TIMES)]
        finally:
            time_command(["cancel", f"{name}/out"])
    status_seconds = statistics.median(status_times)
    print(
        f"submitted in {submit_seconds:.1f} s; the status answers in {status_seconds:.2f} s (median of {TIMES})"
    )
    return 0 if submit_seconds < SUBMIT_SECONDS and status_seconds < STATUS_SECONDS else 1


def time_command(words: list[str]) -> tuple[float, str]:
    """Run a command of `scaling`. Return (wall time in seconds, standard output)."""
    began = time.monotonic()
    done = subprocess.run(
        [str(Path(sys.executable).parent / "scaling"), *words], check=True, stdout=subprocess.PIPE, text=True
    )
    return time.monotonic() - began, done.stdout


if __name__ == "__main__":
    sys.exit(main())
