"""The worker: runs cases on devices and writes a record of each.

`python -m scaling.worker JOB.json` needs jax, numpy and the standard library, and nothing else. It binds itself to cores before
JAX starts, says on standard output what it begins and ends (a JSON line each), and appends records to a file of its own.
"""

import ctypes
import dataclasses
import datetime
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from scaling import environment
from scaling.case import Case, from_dict
from scaling.record import Record
from scaling.sampling import Sampling
from scaling.store import Writer

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")


class _Unfit(Exception):
    """Why a case ends without a time: (status, reason, words)."""

    def __init__(self, status: str, reason: str, text: str) -> None:
        super().__init__(text)
        self.status, self.reason = status, reason


def main(job_path: str) -> int:
    """Run the cases of a job in order; 3 if a record could not be written."""
    job = json.loads(Path(job_path).read_text())
    _die_with_parent(job["parent"])
    out = _keep_to_ourselves()
    os.set_inheritable(job["lock"], False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the launcher, which then ends this process
    bound_to = environment.bind(job["devices"], job["bind"]) if job["platform"] == "cpu" else None
    os.environ["XLA_FLAGS"] = environment.variables(job["platform"])["XLA_FLAGS"]
    devices = _start_jax(job)
    writer = Writer(Path(job["results"]))
    for item in job["items"]:
        case = from_dict(item["case"])
        print(json.dumps({"event": "begin", "key": case.key}), file=out, flush=True)
        where = environment.describe(
            job["platform"], devices[0].device_kind, os.environ, item["workload_digest"],
            bound_to if job["bind"] else None, item["engine"],
        )  # fmt: skip
        blank = Record(case, "failed", where, order=item["order"], order_seed=job["order_seed"], attempt=item["attempt"])
        record = run(blank, devices[: case.devices], job["platform"], Sampling(**job["sampling"]))
        try:
            writer.append(record)
        except OSError as error:
            print(json.dumps({"event": "unwritable", "text": f"{error.strerror}"}), file=out, flush=True)
            return 3
        done = {"event": "end", "key": case.key, "status": record.status, "reason": record.reason, "text": record.text}
        print(json.dumps(done | {"seconds": sorted(record.seconds)[len(record.seconds) // 2 :][:1]}), file=out, flush=True)
    return 0


def _die_with_parent(parent: int) -> None:
    """Ask Linux to kill this process when its launcher is gone: an orphan would disturb the next run's timings."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it went before we asked
        os._exit(0)


def _keep_to_ourselves() -> TextIO:
    """The channel for events, under a descriptor that no child inherits; what else is printed goes to standard error."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return out


def _start_jax(job: dict[str, Any]) -> list[Any]:
    """The devices to run on. Raises when there are fewer than asked for; never settles for others."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    named = os.environ.get("JAX_PLATFORMS")
    if job["platform"] != "cpu" and named and "cpu" not in named.split(","):
        jax.config.update("jax_platforms", f"{named},cpu")  # the check of a user's function runs there
    if job["platform"] == "cpu":
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", job["devices"])
    jax.config.update("jax_enable_x64", job["x64"])
    devices = jax.local_devices(backend=job["platform"])
    if len(devices) < job["devices"]:
        raise SystemExit(f"{job['devices']} {job['platform']} devices were asked for and JAX has {len(devices)}")
    return devices


def run(blank: Record, devices: list[Any], platform: str, sampling: Sampling) -> Record:
    """One case from nothing to a record, whatever happens on the way."""
    began: dict[str, Any] = {"started_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")}
    try:
        _run(blank.case, devices, platform, sampling, began)
        return dataclasses.replace(blank, status="ok", **began)
    except _Unfit as unfit:
        return dataclasses.replace(blank, status=unfit.status, reason=unfit.reason, text=str(unfit), **began)
    except MemoryError as error:
        return dataclasses.replace(blank, reason="out_of_memory", text=_words(error), **began)
    except Exception as error:
        text = _words(error)
        reason = "out_of_memory" if "RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower() else "error"
        return dataclasses.replace(blank, reason=reason, text=text, **began)


def _run(case: Case, devices: list[Any], platform: str, sampling: Sampling, found: dict[str, Any]) -> None:
    """The stages of a case. What is learnt goes into `found` as it is learnt, so that a failure keeps what came before it."""
    from scaling import check, measure, workload

    built = workload.build(case)
    ready = _program if case.engine == "jax" else _peer
    sizes, call, collect, sample = ready(case, built, devices, platform, found)
    found["first_seconds"], result = measure.once(call)
    verdict = check.verdict(case, built, sizes, collect(result), platform)
    del result
    found |= {"error": verdict.error, "tolerance": verdict.tolerance}
    if verdict.reason:
        status = "skipped" if verdict.reason == "no_digits" else "failed"
        raise _Unfit(status, verdict.reason, verdict.text or "")
    samples = sample(sampling)
    found |= {"seconds": samples.seconds, "seconds_min": samples.seconds, "slowest_rank": 0}
    found |= {"calls_per_sample": samples.calls_per_sample, "stop_reason": samples.stop_reason}


def _program(case: Case, built: Any, devices: list[Any], platform: str, found: dict[str, Any]) -> tuple:
    """A case of JAX made ready: (sizes, call, collect, sample)."""
    import jax

    from scaling import inputs, measure, spmd

    program = spmd.program(case, built, devices)
    found["passes"] = program.sizes.passes or None
    arguments = inputs.place(case, built, program)
    stages = measure.stages(program.function, arguments)
    found |= {name: getattr(stages, name) for name in ("trace_seconds", "lower_seconds", "compile_seconds")}
    if stages.compiled is not None:
        found |= _counts(stages.compiled)
        _fits(found, platform, devices[0], case.devices)
        if any(found["collectives"].values()):
            raise _Unfit("failed", "collective", f"the compiled program communicates: {found['collectives']}")

    def call() -> Any:
        return jax.block_until_ready(stages.call(*arguments))

    return program.sizes, call, program.collect, lambda sampling: measure.sample(call, sampling)


def _peer(case: Case, built: Any, devices: list[Any], platform: str, found: dict[str, Any]) -> tuple:
    """A peer's case made ready, likewise."""
    from scaling import derivative, inputs, measure, peer

    sizes = derivative.shape(case, built)
    due = derivative.due(case, built, sizes)
    prepared = peer.module(case.engine).prepare(case, built, sizes, inputs.arrays(case, built), case.devices)
    found |= {"compile_seconds": prepared.compile_seconds, "passes": prepared.passes}
    sample = prepared.sample or (lambda sampling: measure.sample(prepared.call, sampling))
    return sizes, prepared.call, lambda result: peer.collected(case, prepared.collect(result), due), sample


def _counts(compiled: Any) -> dict[str, Any]:
    """What the compiled program says of itself, per device. XLA counts the body of a loop once: with a loop, no counts."""
    text = compiled.as_text()
    cost = _optional(compiled.cost_analysis) or {}
    cost = {} if " while(" in text else cost[0] if isinstance(cost, list) else cost
    memory = _optional(compiled.memory_analysis)
    return {
        "flops": cost.get("flops"),
        "transcendentals": cost.get("transcendentals"),
        "hbm_bytes": cost.get("bytes accessed"),
        "temp_bytes": getattr(memory, "temp_size_in_bytes", None),
        "argument_bytes": getattr(memory, "argument_size_in_bytes", None),
        "output_bytes": getattr(memory, "output_size_in_bytes", None),
        "collectives": {kind: len(re.findall(rf" {kind}(?:-start)?\(", text)) for kind in COLLECTIVES},
    }


def _optional(ask: Callable[[], Any]) -> Any:
    """An analysis that some backends do not have."""
    try:
        return ask()
    except Exception:
        return None


def _fits(found: dict[str, Any], platform: str, device: Any, devices: int) -> None:
    """Skip before the first run what the compiler says cannot fit; on CPU all devices share the host's memory."""
    if found["temp_bytes"] is None or found["output_bytes"] is None:
        return
    if platform == "cpu":
        needs = (found["temp_bytes"] + 2 * found["output_bytes"]) * devices  # the result is copied once, for the check
        has = environment.memory_bytes()
    else:
        needs = found["temp_bytes"] + found["output_bytes"]
        stats = device.memory_stats() or {}
        has = stats["bytes_limit"] - stats["bytes_in_use"] if "bytes_limit" in stats else None
    if has is not None and needs > has:
        raise _Unfit("skipped", "too_large", f"needs {needs / 1e9:.3g} GB, has {has / 1e9:.3g} GB")


def _words(error: BaseException) -> str:
    """An exception in at most 500 characters, without paths."""
    return environment.scrub(" ".join(f"{type(error).__name__}: {error}".split()))[:500]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
