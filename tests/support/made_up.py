"""Made-up studies: records that follow Amdahl's law with noise, of several workloads, modes, sizes, devices and processes.

Nothing was measured: times, counts and bytes come from formulas and a seeded generator, so that the same words give the same
records. What a report has to cope with is in it: failures, skips, ceilings, floors, a mode that overtakes another, HTML in texts.
`choices` has what there is to choose beside the mode: settings of memory, meshes, overlapping, coloured seeds.
`python -m tests.support.made_up FOLDER [COUNT]` writes a folder to look at.
"""

import math
import sys
from dataclasses import replace

import numpy as np

from scaling.core.case import Case, to_dict
from scaling.core.record import Record, to_line
from scaling.core.store import write_json

NASTY = '</script><script>alert("x")</script> <img src=http://nowhere.invalid/x onerror=alert(1)> a|b\nsecond line & $5 \\more'
DEVICES = (1, 2, 4, 8, 16, 32, 64)
# workload -> target, input, the size that grows, its values, the others
FAMILIES = {
    "rbf": ("grad_map", "x", "m", (256, 1024, 4096, 16384, 65536), {}),
    "linear": ("jacobian", "W", "p", (8, 32, 128, 512, 2048), {"o": 4}),
    "residual": ("jacobian", "d", "pairs", (500, 5_000, 50_000, 500_000, 5_000_000), {}),
    "poisson": ("gradient", "lam", "terms", (1000, 10_000, 100_000, 1_000_000, 10_000_000), {}),
}
SPARSE = {"stencil": ("jacobian", "u", "side", (16, 64, 128), {})}
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
    target, wrt, name, values, others = (FAMILIES | SPARSE)[workload]
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
    rows = [
        ("copy", 2**16, 2**13, 8 / _COPY * 2**29),
        ("matmul", 4096, 4, 8 * 4096**3 / _PRODUCT),
        ("call", 1, 1, 1.2e-5),
    ]
    rows += [] if devices == 1 else [("all_reduce", 2**26, 1, 2e-3), ("collective", 1, 1, 6e-5)]
    for target, k, points, seconds in rows:
        sizes = {"k": k, "terms": 1}
        case = Case(
            "ceiling", target, sizes=sizes, points=points * devices, mode="value", api=api, devices=devices
        )
        yield Record(
            case, "ok", environment(case), seconds=samples(draw, seconds), started_at="2026-01-01T00:00:00Z"
        )


def failure(
    case, reason="out_of_memory", text="it asked for 90 GB where there are 80", status="failed", **fields
):
    return Record(
        case, status, environment(case), reason=reason, text=text, started_at="2026-01-04T00:00:00Z", **fields
    )


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


def timed(draw, case, seconds, replicate=0, **fields):
    """The record of a case that took so long."""
    times = samples(draw, seconds, noise=0.01)
    made = {
        "seconds": times, "seconds_min": times, "turns": [8, 7], "block": f"{case.workload} {case.devices}",
        "stop_reason": "width", "started_at": f"2026-01-0{1 + replicate}T00:00:00Z", "trace_seconds": 0.05, "lower_seconds": 0.1,
        "compile_seconds": 0.5, "first_seconds": 2 * seconds, "calls_per_sample": 1, "floor_seconds": 1.2e-5, "error": 3e-7,
        "tolerance": 1e-5,
        "argument_bytes": 8_000_000, "output_bytes": 64_000_000, "temp_bytes": 0, "collective_bytes": 0,
    }  # fmt: skip
    return Record(case, "ok", environment(case), replicate=replicate, **made | fields)


CHUNKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LIMIT = 512 * 10**6


def settings(draw, devices=1, replicate=0, mode="jacfwd"):
    """One program under every setting of its memory: each halving of the chunk halves what is kept and costs a little time."""
    of = case_of("linear", mode, 2, devices)
    for chunk in (None, *CHUNKS):
        count = (chunk or 512) * (2 if mode == "jacrev" else 1)
        seconds = 0.08 / devices * (1 + 3.0 / count + 0.0004 * count)
        yield timed(
            draw, replace(of, chunk=chunk), seconds, replicate, temp_bytes=4_000_000 * count // devices
        )
    probes = [
        {"block": None, "chunk": c, "storage": "device", "bytes": 4_000_000 * c} for c in (512, 256, 128)
    ]
    blocks = {"block": 32, "chunk": None, "storage": "device", "limit_bytes": LIMIT, "probes": probes}
    auto = replace(of, chunk="auto", memory_limit=LIMIT)
    yield timed(draw, auto, 0.089 / devices, replicate, blocks=blocks, temp_bytes=400_000_000 // devices)
    for block, seconds in ((4, 0.13), (16, 0.1)):
        yield timed(
            draw,
            replace(of, block=block),
            seconds / devices,
            replicate,
            temp_bytes=32_000_000 * block // devices,
        )
    host = replace(of, block=16, storage="host")
    yield timed(
        draw, host, 0.3 / devices, replicate, temp_bytes=2_000_000 * 16 // devices, output_bytes=4_000_000
    )
    yield failure(replace(of, block=64), "too_large", "it needs 90 GB where there are 80", "skipped")


def meshes(draw, devices, replicate=0, mode="jacfwd"):
    """Every mesh of so many devices; those that cut both are the best, and what does not divide evenly is padded."""
    for rows in (count for count in range(1, devices + 1) if devices % count == 0):
        columns = devices // rows
        case = case_of("linear", mode, 2, devices, split="both", mesh=f"{rows}x{columns}")
        waste = 0.125 if columns == 16 else 0.0
        seconds = (
            0.4 * MODES[mode][0] * 1e3 / devices * (1 + 0.05 * abs(math.log2(rows / columns))) / (1 - waste)
        )
        yield timed(draw, case, seconds, replicate, padding=waste)


def gradients(draw, devices, replicate=0):
    """The gradient of a loss over data, sent at the end and as it is made."""
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
        sent = 2**26 * (devices > 1)
        seconds = 0.2 / devices + (2e-3 if overlap else 9e-3) * (devices > 1)
        kinds = {"all-reduce": 6 if overlap else 1} if sent else {}
        yield timed(draw, case, seconds, replicate, collective_bytes=sent, collectives=kinds)


def sparse(draw, size=0, replicate=0):
    """A sparse derivative with all seeds, with few, with some of both kinds, and written by hand."""
    of = case_of("stencil", "jacfwd", size)
    (side,) = of.sizes.values()
    found = {"detect_seconds": 2e-5 * side**2, "color_seconds": 2e-6 * side**2, "nonzeros": 5 * side**2}
    few = replace(of, seeds="colored")
    yield timed(draw, of, 2e-9 * side**4, replicate, temp_bytes=8 * side**4)
    yield timed(draw, few, 3e-8 * side**2, replicate, **found, colors={"columns": 9, "rows": 0})
    yield timed(
        draw, replace(few, mode="mixed"), 4e-8 * side**2, replicate, **found, colors={"columns": 3, "rows": 4}
    )
    yield timed(draw, replace(few, mode="analytic"), 1.2e-8 * side**2, replicate, nonzeros=5 * side**2)


def choices(seed=0, replicates=3):
    """What there is to choose beside the mode, each family in so many processes."""
    draw, made = np.random.default_rng(seed), []
    for replicate in range(replicates):
        for devices in (1, 4):
            made += [*settings(draw, devices, replicate), *settings(draw, devices, replicate, "jacrev")]
        for devices in DEVICES[:5]:
            made += [*meshes(draw, devices, replicate), *meshes(draw, devices, replicate, "jacrev")]
            made += gradients(draw, devices, replicate)
        for size in range(3):
            made += sparse(draw, size, replicate)
    return made


def write(folder, records, name="made up", scaling=("strong", "weak")):
    """A results folder of these records: one file, and the study's own."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "records.jsonl").write_text("".join(to_line(one) + "\n" for one in records))
    cases = {one.key: {"key": one.key, "case": to_dict(one.case)} for one in records}
    write_json(
        folder / "study.json", {"study": name, "scaling": list(scaling), "cases": list(cases.values())}
    )
    return folder


if __name__ == "__main__":
    from pathlib import Path

    write(Path(sys.argv[1]), [*study(int(sys.argv[2]) if sys.argv[2:] else 2000), *choices()])
