"""Made-up studies: records that follow Amdahl's law with noise, of several workloads, modes, sizes, devices and processes.

Nothing was measured: times, counts and bytes come from formulas and a seeded generator, so that the same words give the same
records. What a report has to cope with is in it: failures, skips, ceilings, floors, a mode that overtakes another, HTML in texts.
`python -m tests.made_up FOLDER [COUNT]` writes a folder to look at.
"""

import math
import sys

import numpy as np

from scaling.case import Case, to_dict
from scaling.record import Record, to_line
from scaling.store import write_json

NASTY = '</script><script>alert("x")</script> <img src=http://nowhere.invalid/x onerror=alert(1)> a|b\nsecond line & $5 \\more'
DEVICES = (1, 2, 4, 8, 16, 32, 64)
# workload -> target, input, the size that grows, its values, the others
FAMILIES = {
    "rbf": ("grad_map", "x", "m", (256, 1024, 4096, 16384, 65536), {}),
    "linear": ("jacobian", "W", "p", (8, 32, 128, 512, 2048), {"o": 4}),
    "residual": ("jacobian", "d", "pairs", (500, 5_000, 50_000, 500_000, 5_000_000), {}),
    "poisson": ("gradient", "lam", "terms", (1000, 10_000, 100_000, 1_000_000, 10_000_000), {}),
}
# mode -> seconds at the smallest size on one device, exponent of time in the size, serial fraction
MODES = {
    "jacfwd": (4e-4, 1.3, 0.01),
    "jacrev": (4e-3, 0.8, 0.03),
    "linearize": (1.5e-3, 1.25, 0.12),
    "vmap_grad": (8e-3, 0.75, 0.3),
}
_COPY, _PRODUCT = 1e12, 5e12  # bytes and operations a second of the made-up machine


def environment(case, digest="made up", **facts):
    """Of a machine that there is not, with an accelerator of its own for each device."""
    return {
        "digest": digest, "platform": "gpu", "device_kind": "An accelerator", "cores": None, "hosts": ["node1", "node2"],
        "versions": {"jax": "0.10.2", "numpy": "2.3.5"}, "xla_flags": "", "commit": "c" * 40, "dirty": False, "source": "5" * 12,
        "workload_digest": None, "bound": True, "load": 0.1, "job": "17", "processes": max(1, case.devices // 4),
    } | facts  # fmt: skip


def samples(draw, seconds, count=15, noise=0.02):
    """The samples of one process: it has a level of its own, and each call a little more."""
    return [float(s) for s in seconds * draw.lognormal(0, noise) * (1 + draw.gamma(1.0, noise, count))]


def amdahl(devices, serial):
    """Time on so many devices over that on one."""
    return serial + (1 - serial) / devices


def case_of(workload, mode="jacfwd", size=0, devices=1, weak=False, **fields):
    """A case of one of the families: the index of its size; `weak` gives it as many points for each device."""
    target, wrt, name, values, others = FAMILIES[workload]
    points = 64 * devices if weak else 64
    kind = {"api": "shard_map", "target": target, "wrt": wrt, "sizes": {name: values[size], **others}}
    return Case(workload, mode=mode, points=points, devices=devices, **kind | fields)


def record(draw, case, replicate=0, digest="made up", **fields):
    """The record of a case that went well, after the formula of its mode."""
    _, _, name, values, _ = FAMILIES[case.workload]
    at_least, exponent, serial = MODES[case.mode]
    growth, work = (case.sizes[name] / values[0]) ** exponent, case.points / 64
    alone = at_least * growth * work * (0.9 if case.api == "jit" else 1.0)
    done = work * growth * at_least / case.devices * 0.3 * _PRODUCT  # operations of one device
    moved = done / (4 * (case.sizes[name] / values[0]) ** 0.3 * at_least * 1e3)  # bytes
    seconds = samples(draw, alone * amdahl(case.devices, serial) + 2e-5)
    compiling = 0.4 + 0.5 * draw.random() + 0.02 * math.log2(case.devices + 1)
    made = {
        "seconds": seconds, "seconds_min": [s * (1 - 0.02 * (case.devices > 4)) for s in seconds], "turns": [8, 7],
        "block": f"{case.workload} {case.devices}", "replicate": replicate, "order": replicate, "stop_reason": "precise",
        "started_at": f"2026-01-0{1 + replicate}T00:00:00Z", "trace_seconds": 0.05, "lower_seconds": 0.1,
        "compile_seconds": compiling, "first_seconds": 2 * seconds[0], "calls_per_sample": 1, "floor_seconds": 1.2e-5,
        "error": 3e-7, "tolerance": 1e-5, "passes": 4, "flops": done, "hbm_bytes": 3 * moved,
        "argument_bytes": int(moved / 3), "output_bytes": int(moved / 1.5), "transcendentals": 0.0,
        "temp_bytes": int(moved * (2.5 if case.mode == "jacfwd" else 0.4)), "collective_bytes": 0,
    }  # fmt: skip
    made["peak_bytes"] = made["temp_bytes"] + made["argument_bytes"] + made["output_bytes"]
    return Record(case, "ok", environment(case, digest), **made | fields)


def machine(draw, devices):
    """Ceilings and floors on so many devices."""
    api = "jit" if devices == 1 else "shard_map"
    rows = [("copy", 2**16, 2**13, 8 / _COPY * 2**29), ("matmul", 4096, 4, 8 * 4096**3 / _PRODUCT), ("call", 1, 1, 1.2e-5)]
    rows += [] if devices == 1 else [("all_reduce", 2**26, 1, 2e-3), ("collective", 1, 1, 6e-5)]
    for target, k, points, seconds in rows:
        sizes = {"k": k, "terms": 1}
        case = Case("ceiling", target, sizes=sizes, points=points * devices, mode="value", api=api, devices=devices)
        yield Record(case, "ok", environment(case), seconds=samples(draw, seconds), started_at="2026-01-01T00:00:00Z")


def failure(case, reason="out_of_memory", text="it asked for 90 GB where there are 80", status="failed", **fields):
    return Record(case, status, environment(case), reason=reason, text=text, started_at="2026-01-04T00:00:00Z", **fields)


def study(count=2000, seed=0):
    """So many records: every family, mode, size and device count, then further processes of them until there are enough."""
    draw, made = np.random.default_rng(seed), []
    for devices in DEVICES:
        made += machine(draw, devices)
    cases = [case_of(w, m, s, d) for d in DEVICES for s in range(5) for w in FAMILIES for m in MODES]
    plain = [case_of(w, m, s, 1, api="jit") for s in range(5) for w in FAMILIES for m in MODES]
    weak = [case_of("rbf", m, 1, d, weak=True) for d in DEVICES[1:] for m in MODES]
    bad = {case_of("rbf", "jacrev", 4, d) for d in DEVICES[:3]} | {case_of("poisson", "vmap_grad", 4, 64)}
    made += [failure(case) for case in sorted(bad, key=lambda case: case.key)]
    made += [failure(case_of("linear", "fwd_over_rev", s, d), "not_defined", "a Jacobian is no Hessian", "skipped")
             for s in range(5) for d in DEVICES]  # fmt: skip
    made += [failure(case_of("residual", "rev_over_rev", 0, 2), "error", NASTY)]
    rest = [case for case in [*plain, *weak, *cases] if case not in bad]
    for replicate in range(math.ceil(count / len(rest))):
        made += [record(draw, case, replicate) for case in rest[: max(0, count - len(made))]]
    return made


def write(folder, records, name="made up", scaling=("strong", "weak")):
    """A results folder of these records: one file, and the study's own."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "records.jsonl").write_text("".join(to_line(one) + "\n" for one in records))
    cases = {one.key: {"key": one.key, "case": to_dict(one.case)} for one in records}
    write_json(folder / "study.json", {"study": name, "scaling": list(scaling), "cases": list(cases.values())})
    return folder


if __name__ == "__main__":
    from pathlib import Path

    write(Path(sys.argv[1]), study(int(sys.argv[2]) if sys.argv[2:] else 2000))
