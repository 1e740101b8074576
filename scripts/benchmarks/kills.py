"""Benchmark of crash safety: a study whose worker, launcher, or process group is killed at 50 random times.

After each kill, all earlier records must still exist, and every case that was reported as finished must have
a record. Finally the study is run to its end, and every case must have exactly one valid record. The exit
status is 1 if a record was lost or duplicated.
"""

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from scaling.results.store import load

KILLS, SEED = 50, 20261121
STUDY = """
devices: 1
api: jit
grids:
  - workload: linear
    points: [4, 8, 16]
    sizes: {p: [4, 8, 16, 32], o: [2, 3]}
    mode: [vmap_jacfwd, vmap_jacrev, vmap_grad, linearize]
  - workload: poisson
    points: [64, 128, 256, 512]
    mode: [jacfwd, jacrev]
    dtype: [float32, float64]
"""


def start(folder: Path) -> subprocess.Popen:
    """Start the study in its own session."""
    words = [
        "run",
        "--config-dir",
        str(folder / "conf"),
        "study=kills",
        f"results={folder}/results",
        "sampling.seconds=0.02",
    ]
    return subprocess.Popen(
        [str(Path(sys.executable).parent / "scaling"), *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip


def list_workers(launcher: int) -> list[int]:
    """Return the process IDs of the live workers of a launcher."""
    done = subprocess.run(
        ["pgrep", "-P", str(launcher), "-f", "scaling.worker"], capture_output=True, text=True, check=False
    )
    return [int(word) for word in done.stdout.split()]


def kill(process: subprocess.Popen, whom: str) -> None:
    """Kill a worker (or the launcher if there is none), the launcher, or the process group."""
    for victim in list_workers(process.pid)[:1] or [process.pid] if whom == "worker" else [process.pid]:
        try:
            (os.killpg if whom == "group" else os.kill)(victim, signal.SIGKILL)
        except ProcessLookupError:
            return


def main() -> int:
    """Kill the study repeatedly, print what was found, and return the exit status."""
    moments, killed, faults = random.Random(SEED), Counter[str](), []
    with tempfile.TemporaryDirectory() as name:
        folder, kept = Path(name), set()
        (folder / "conf" / "study").mkdir(parents=True)
        (folder / "conf" / "study" / "kills.yaml").write_text(STUDY)
        for _ in range(KILLS):
            process, said = start(folder), []
            assert process.stdout is not None
            reader = threading.Thread(
                target=lambda out=process.stdout, said=said: said.extend(out), daemon=True
            )
            reader.start()
            time.sleep(moments.uniform(1.0, 6.0))
            whom = moments.choice(["worker", "launcher", "group"])
            kill(process, whom)
            killed[whom] += 1
            if whom == "worker":  # the launcher lives, and goes on: end it some time later
                time.sleep(moments.uniform(0.0, 1.0))
                kill(process, "launcher")
            process.wait()
            reader.join()
            good = {record.identity for record in load(folder / "results").records if record.good}
            called = sum(1 for line in said if re.match(r"\[\d+/\d+\] ok", line))
            faults += [f"{len(kept - good)} lost"] * bool(kept - good)
            faults += [f"{called} were called finished, {len(good - kept)} are there"] * (
                called > len(good - kept)
            )
            kept = good
            if len(kept) > 80:  # nearly done: begin again, so that every kill hits a study at work
                for path in (folder / "results").glob("*.jsonl"):
                    path.unlink()
                kept = set()
        before = len(kept)
        last = start(folder)
        told, _ = last.communicate()
        records = load(folder / "results").records
        twice = [of for of, count in Counter(r.identity for r in records if r.good).items() if count > 1]
        faults += [f"{len(twice)} twice"] * bool(twice)
        faults += [f"the study does not end well: {told.splitlines()[-1]}"] * (last.returncode != 0)
    print(
        f"{KILLS} kills ({', '.join(f'{count} of the {whom}' for whom, count in killed.items())}), {before} records at the last"
    )
    print(
        "; ".join(faults)
        or f"nothing lost, nothing twice; {len({r.key for r in records if r.good})} cases in the end"
    )
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
