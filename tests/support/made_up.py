"""Made-up studies: records that follow Amdahl's law with noise, of several workloads, modes, sizes, device counts and processes.

Nothing is measured: times, counts and bytes come from formulas and a seeded generator, so the same arguments give the same records.
The studies contain what a report must handle: failures, skips, machine peaks, dispatch floors, crossovers, and HTML in texts.
`choices` varies what can be chosen besides the mode: memory settings, meshes, overlap, and colored seeds.
`python -m tests.support.made_up FOLDER [COUNT]` writes such a folder.
"""

import math
import sys
from dataclasses import replace

import numpy as np

from scaling.core.case import Case, to_dict
from scaling.core.record import Record, to_line
from scaling.results.store import write_json

NASTY = '</script><script>alert("x")</script> <img src=http://nowhere.invalid/x onerror=alert(1)> a|b\nsecond line & $5 \\more'
DEVICES = (1, 2, 4, 8, 16, 32, 64)
# workload -> target, input, name of the varying size, its values, other sizes
FAMILIES = {
    "rbf": ("grad_map", "x", "m", (256, 1024, 4096, 16384, 65536), {}),
    "linear": ("jacobian", "W", "p", (8, 32, 128, 512, 2048), {"o": 4}),
    "residual": ("jacobian", "d", "pairs", (500, 5_000, 50_000, 500_000, 5_000_000), {}),
    "poisson": ("gradient", "lam", "terms", (1000, 10_000, 100_000, 1_000_000, 10_000_000), {}),
}
SPARSE = {"stencil": ("jacobian", "u", "side", (16, 64, 128), {})}
# mode -> seconds at the smallest size on one device, exponent of the time in the size, serial fraction
MODES = {
    "jacfwd": (4e-4, 1.3, 0.01),
    "jacrev": (4e-3, 0.8, 0.03),
    "linearize": (1.5e-3, 1.25, 0.12),
    "vmap_grad": (8e-3, 0.75, 0.3),
}
_BYTES_PER_SECOND, _FLOPS_PER_SECOND = 1e12, 5e12  # of the made-up machine


def environment(case, digest="made up", **facts):
    """Return the environment of a fictitious machine with one accelerator per device."""
    return {
        "digest": digest, "platform": "gpu", "device_kind": "An accelerator", "cores": None, "hosts": ["node1", "node2"],
        "versions": {"jax": "0.10.2", "numpy": "2.3.5"}, "xla_flags": "", "commit": "c" * 40, "dirty": False, "source": "5" * 12,
        "workload_digest": None, "bound": True, "load": 0.1, "job": "17", "processes": max(1, case.devices // 4),
    } | facts  # fmt: skip


def samples(rng, seconds, count=15, noise=0.02):
    """Return the samples of one process: a random level of the process times random noise of each call."""
    return [float(s) for s in seconds * rng.lognormal(0, noise) * (1 + rng.gamma(1.0, noise, count))]


def amdahl(devices, serial):
    """Return the ratio of the time on `devices` devices to the time on one, by Amdahl's law."""
    return serial + (1 - serial) / devices


def case_of(workload, mode="jacfwd", size=0, devices=1, weak=False, **fields):
    """Return a case of a workload; `size` is an index, and `weak` makes the points proportional to the devices."""
    target, wrt, name, values, other_sizes = (FAMILIES | SPARSE)[workload]
    points = 64 * devices if weak else 64
    base = {"api": "shard_map", "target": target, "wrt": wrt, "sizes": {name: values[size], **other_sizes}}
    return Case(workload, mode=mode, points=points, devices=devices, **base | fields)


def record(rng, case, replicate=0, digest="made up", **fields):
    """Return the record of a successful case; the formula of its mode gives the time."""
    _, _, name, values, _ = FAMILIES[case.workload]
    base_seconds, exponent, serial = MODES[case.mode]
    growth, work = (case.sizes[name] / values[0]) ** exponent, case.points / 64
    one_device = base_seconds * growth * work * (0.9 if case.api == "jit" else 1.0)
    flops = work * growth * base_seconds / case.devices * 0.3 * _FLOPS_PER_SECOND  # per device
    bytes_moved = flops / (4 * (case.sizes[name] / values[0]) ** 0.3 * base_seconds * 1e3)  # per device
    seconds = samples(rng, one_device * amdahl(case.devices, serial) + 2e-5)
    compile_seconds = 0.4 + 0.5 * rng.random() + 0.02 * math.log2(case.devices + 1)
    results = {
        "seconds": seconds, "seconds_min": [s * (1 - 0.02 * (case.devices > 4)) for s in seconds], "turns": [8, 7],
        "block": f"{case.workload} {case.devices}", "replicate": replicate, "order": replicate, "stop_reason": "precise",
        "started_at": f"2026-01-0{1 + replicate}T00:00:00Z", "trace_seconds": 0.05, "lower_seconds": 0.1,
        "compile_seconds": compile_seconds, "first_seconds": 2 * seconds[0], "calls_per_sample": 1, "floor_seconds": 1.2e-5,
        "error": 3e-7, "tolerance": 1e-5, "passes": 4, "flops": flops, "hbm_bytes": 3 * bytes_moved,
        "argument_bytes": int(bytes_moved / 3), "output_bytes": int(bytes_moved / 1.5), "transcendentals": 0.0,
        "temp_bytes": int(bytes_moved * (2.5 if case.mode == "jacfwd" else 0.4)), "collective_bytes": 0,
    }  # fmt: skip
    results["peak_bytes"] = results["temp_bytes"] + results["argument_bytes"] + results["output_bytes"]
    return Record(case, "ok", environment(case, digest), **results | fields)


def machine(rng, devices):
    """Yield the records of the machine peaks and of the dispatch and collective latencies on `devices` devices."""
    api = "jit" if devices == 1 else "shard_map"
    rows = [
        ("copy", 2**16, 2**13, 8 / _BYTES_PER_SECOND * 2**29),
        ("matmul", 4096, 4, 8 * 4096**3 / _FLOPS_PER_SECOND),
        ("call", 1, 1, 1.2e-5),
    ]
    rows += [] if devices == 1 else [("all_reduce", 2**26, 1, 2e-3), ("collective", 1, 1, 6e-5)]
    for target, k, points, seconds in rows:
        sizes = {"k": k, "terms": 1}
        case = Case(
            "ceiling", target, sizes=sizes, points=points * devices, mode="value", api=api, devices=devices
        )
        yield Record(
            case, "ok", environment(case), seconds=samples(rng, seconds), started_at="2026-01-01T00:00:00Z"
        )


def failure(
    case, reason="out_of_memory", text="it asked for 90 GB where there are 80", status="failed", **fields
):
    return Record(
        case, status, environment(case), reason=reason, text=text, started_at="2026-01-04T00:00:00Z", **fields
    )


def study(count=2000, seed=0):
    """Return `count` records: machine peaks, failures, skips, and each family, mode, size and device count with replicates."""
    rng, records = np.random.default_rng(seed), []
    for devices in DEVICES:
        records += machine(rng, devices)
    cases = [case_of(w, m, s, d) for d in DEVICES for s in range(5) for w in FAMILIES for m in MODES]
    jit = [case_of(w, m, s, 1, api="jit") for s in range(5) for w in FAMILIES for m in MODES]
    weak = [case_of("rbf", m, 1, d, weak=True) for d in DEVICES[1:] for m in MODES]
    failing = {case_of("rbf", "jacrev", 4, d) for d in DEVICES[:3]} | {case_of("poisson", "vmap_grad", 4, 64)}
    records += [failure(case) for case in sorted(failing, key=lambda case: case.key)]
    records += [failure(case_of("linear", "fwd_over_rev", s, d), "not_defined", "a Jacobian is no Hessian", "skipped")
             for s in range(5) for d in DEVICES]  # fmt: skip
    records += [failure(case_of("residual", "rev_over_rev", 0, 2), "error", NASTY)]
    rest = [case for case in [*jit, *weak, *cases] if case not in failing]
    for replicate in range(math.ceil(count / len(rest))):
        records += [record(rng, case, replicate) for case in rest[: max(0, count - len(records))]]
    return records


def timed(rng, case, seconds, replicate=0, **fields):
    """Return the record of a successful case with noisy samples around `seconds`."""
    times = samples(rng, seconds, noise=0.01)
    values = {
        "seconds": times, "seconds_min": times, "turns": [8, 7], "block": f"{case.workload} {case.devices}",
        "stop_reason": "width", "started_at": f"2026-01-0{1 + replicate}T00:00:00Z", "trace_seconds": 0.05, "lower_seconds": 0.1,
        "compile_seconds": 0.5, "first_seconds": 2 * seconds, "calls_per_sample": 1, "floor_seconds": 1.2e-5, "error": 3e-7,
        "tolerance": 1e-5,
        "argument_bytes": 8_000_000, "output_bytes": 64_000_000, "temp_bytes": 0, "collective_bytes": 0,
    }  # fmt: skip
    return Record(case, "ok", environment(case), replicate=replicate, **values | fields)


CHUNKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LIMIT = 512 * 10**6


def settings(rng, devices=1, replicate=0, mode="jacfwd"):
    """Yield a case with each memory setting: each halving of the chunk halves the memory and costs some time."""
    case = case_of("linear", mode, 2, devices)
    for chunk in (None, *CHUNKS):
        count = (chunk or 512) * (2 if mode == "jacrev" else 1)
        seconds = 0.08 / devices * (1 + 3.0 / count + 0.0004 * count)
        yield timed(
            rng, replace(case, chunk=chunk), seconds, replicate, temp_bytes=4_000_000 * count // devices
        )
    probes = [
        {"block": None, "chunk": c, "storage": "device", "bytes": 4_000_000 * c} for c in (512, 256, 128)
    ]
    blocks = {"block": 32, "chunk": None, "storage": "device", "limit_bytes": LIMIT, "probes": probes}
    auto = replace(case, chunk="auto", memory_limit=LIMIT)
    yield timed(rng, auto, 0.089 / devices, replicate, blocks=blocks, temp_bytes=400_000_000 // devices)
    for block, seconds in ((4, 0.13), (16, 0.1)):
        yield timed(
            rng,
            replace(case, block=block),
            seconds / devices,
            replicate,
            temp_bytes=32_000_000 * block // devices,
        )
    host = replace(case, block=16, storage="host")
    yield timed(
        rng, host, 0.3 / devices, replicate, temp_bytes=2_000_000 * 16 // devices, output_bytes=4_000_000
    )
    yield failure(replace(case, block=64), "too_large", "it needs 90 GB where there are 80", "skipped")


def meshes(rng, devices, replicate=0, mode="jacfwd"):
    """Yield a case on each mesh of the devices; meshes near a square are fastest, and 16 columns require padding."""
    for rows in (count for count in range(1, devices + 1) if devices % count == 0):
        columns = devices // rows
        case = case_of("linear", mode, 2, devices, split="both", mesh=f"{rows}x{columns}")
        waste = 0.125 if columns == 16 else 0.0
        seconds = (
            0.4 * MODES[mode][0] * 1e3 / devices * (1 + 0.05 * abs(math.log2(rows / columns))) / (1 - waste)
        )
        yield timed(rng, case, seconds, replicate, padding=waste)


def gradients(rng, devices, replicate=0):
    """Yield the gradient of a loss over data with the all-reduce at the end and overlapped."""
    for overlap in (False, True):
        case = case_of(
            "poisson",
            "grad_of_sum",
            3,
            devices,
            split="data",
            reduce="points",
            overlap=overlap,
            batch="whole",
        )
        sent_bytes = 2**26 * (devices > 1)
        seconds = 0.2 / devices + (2e-3 if overlap else 9e-3) * (devices > 1)
        kinds = {"all-reduce": 6 if overlap else 1} if sent_bytes else {}
        yield timed(rng, case, seconds, replicate, collective_bytes=sent_bytes, collectives=kinds)


def sparse(rng, size=0, replicate=0):
    """Yield a sparse derivative with all seeds, colored seeds, seeds of both kinds, and as a hand-written derivative."""
    case = case_of("stencil", "jacfwd", size)
    (side,) = case.sizes.values()
    sparsity = {"detect_seconds": 2e-5 * side**2, "color_seconds": 2e-6 * side**2, "nonzeros": 5 * side**2}
    colored = replace(case, seeds="colored")
    yield timed(rng, case, 2e-9 * side**4, replicate, temp_bytes=8 * side**4)
    yield timed(rng, colored, 3e-8 * side**2, replicate, **sparsity, colors={"columns": 9, "rows": 0})
    yield timed(
        rng,
        replace(colored, mode="mixed"),
        4e-8 * side**2,
        replicate,
        **sparsity,
        colors={"columns": 3, "rows": 4},
    )
    yield timed(rng, replace(colored, mode="analytic"), 1.2e-8 * side**2, replicate, nonzeros=5 * side**2)


def choices(seed=0, replicates=3):
    """Return records of all choices besides the mode, each with `replicates` processes."""
    rng, records = np.random.default_rng(seed), []
    for replicate in range(replicates):
        for devices in (1, 4):
            records += [*settings(rng, devices, replicate), *settings(rng, devices, replicate, "jacrev")]
        for devices in DEVICES[:5]:
            records += [*meshes(rng, devices, replicate), *meshes(rng, devices, replicate, "jacrev")]
            records += gradients(rng, devices, replicate)
        for size in range(3):
            records += sparse(rng, size, replicate)
    return records


def write(folder, records, name="made up", scaling=("strong", "weak")):
    """Write a results folder with one file of records and the study file, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "records.jsonl").write_text("".join(to_line(row) + "\n" for row in records))
    cases = {row.key: {"key": row.key, "case": to_dict(row.case)} for row in records}
    write_json(
        folder / "study.json", {"study": name, "scaling": list(scaling), "cases": list(cases.values())}
    )
    return folder


if __name__ == "__main__":
    from pathlib import Path

    write(Path(sys.argv[1]), [*study(int(sys.argv[2]) if sys.argv[2:] else 2000), *choices()])
