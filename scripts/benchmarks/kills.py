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
    """Start the study in a session of its own, and return the launcher process."""
    words = ["run", "--config-dir", str(folder / "conf"), "study=kills"]
    words += [f"results={folder}/results", "sampling.seconds=0.02"]
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


def kill(launcher: subprocess.Popen, target: str) -> None:
    """Send SIGKILL to a target: "worker" (the launcher if there is none), "launcher" or "group"."""
    workers = list_workers(launcher.pid) if target == "worker" else []
    try:
        (os.killpg if target == "group" else os.kill)([*workers, launcher.pid][0], signal.SIGKILL)
    except ProcessLookupError:
        return


def main() -> int:
    """Kill and resume the study repeatedly, print lost and duplicated records, and return the exit status."""
    moments, killed, faults = random.Random(SEED), Counter[str](), []
    with tempfile.TemporaryDirectory() as name:
        folder, kept = Path(name), set()
        (folder / "conf" / "study").mkdir(parents=True)
        (folder / "conf" / "study" / "kills.yaml").write_text(STUDY)
        for _ in range(KILLS):
            process, lines = start(folder), []
            assert process.stdout is not None
            reader = threading.Thread(
                target=lambda out=process.stdout, lines=lines: lines.extend(out), daemon=True
            )
            reader.start()
            time.sleep(moments.uniform(1.0, 6.0))
            target = moments.choice(["worker", "launcher", "group"])
            kill(process, target)
            killed[target] += 1
            if target == "worker":  # the launcher goes on: kill it some time later
                time.sleep(moments.uniform(0.0, 1.0))
                kill(process, "launcher")
            process.wait()
            reader.join()
            finished = {
                record.identity for record in load(folder / "results").records if record.status != "failed"
            }
            reported = sum(1 for line in lines if re.match(r"\[\d+/\d+\] ok", line))
            added = len(finished - kept)
            faults += [f"{len(kept - finished)} lost"] * bool(kept - finished)
            faults += [f"{reported} were called finished, {added} are there"] * (reported > added)
            kept = finished
            if len(kept) > 80:  # nearly done: begin again, so that every kill hits a running study
                for path in (folder / "results").glob("*.jsonl"):
                    path.unlink()
                kept = set()
        before = len(kept)
        last = start(folder)
        output, _ = last.communicate()
        records = load(folder / "results").records
        counts = Counter(record.identity for record in records if record.status != "failed")
        twice = [identity for identity, count in counts.items() if count > 1]
        faults += [f"{len(twice)} twice"] * bool(twice)
        faults += [f"the study does not end well: {output.splitlines()[-1]}"] * (last.returncode != 0)
    kills = ", ".join(f"{count} of the {target}" for target, count in killed.items())
    print(f"{KILLS} kills ({kills}), {before} records at the last")
    print(
        "; ".join(faults)
        or f"nothing lost, nothing twice; {len({r.key for r in records if r.status != 'failed'})} cases in the end"
    )
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
