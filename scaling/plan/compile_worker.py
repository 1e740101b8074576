"""The planner: a process that compiles cases for a machine that is not here, and says what was read off the programs.

`python -m scaling.plan.compile_worker` reads a job from standard input, a line of JSON, and then follows orders, one a line:

    {"do": "trace", "key": ..., "case": ...}   build and trace; says "traced" with the digest of what each device does, or "end"
    {"do": "compile", "key": ...}              compile what was traced; says "end" with what was found, as fields of a record
    {"do": "forget", "key": ...}               another compiles the same; says "forgotten"

Places and allocates nothing. Runs in an environment of its own (topology.VARIABLES), so that compilers for other machines disturb
no run here.
"""

import dataclasses
import functools
import hashlib
import json
import math
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

from scaling.core import environment, memory
from scaling.core.case import AUTO, Case, Refusal, from_dict
from scaling.core.formatting import format_bytes
from scaling.workers import event_channel

_USED = re.compile(  # of libtpu's words about a program that does not fit: what it needs, and what there is
    r"(?:Used |temporaries \()([\d.]+)([KMGT]?)\)?(?: of | exceeds available HBM \()([\d.]+)([KMGT]?)"
)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def main() -> int:
    """Compile as told, until nothing more is said."""
    kept = event_channel.open_channel()
    job = json.loads(kept.orders.readline())
    event_channel.die_with_parent(job["parent"])
    memory.raise_oom_score()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the launcher, which then ends this process
    os.environ["XLA_FLAGS"] = environment.variables(job["platform"])["XLA_FLAGS"]
    import jax

    if job["platform"] == "cpu":
        jax.config.update("jax_num_cpu_devices", job["most"])
    jax.config.update("jax_enable_compilation_cache", False)
    kept.say(event="started")
    traced: dict[str, Any] = {}
    for line in kept.orders:
        order = json.loads(line)
        key, what = order["key"], order["do"]
        said: dict[str, Any] = {"event": "forgotten"}
        try:
            if what == "trace":
                traced[key] = _Traced(job, from_dict(order["case"]))
                said = {"event": "traced", "program": traced[key].program}
            elif what == "compile":
                said = {"event": "end"} | traced[key].compiled()
        except Exception as error:
            said = {"event": "end"} | _failed(error)
        if said["event"] != "traced":
            traced.pop(key, None)
        kept.say(**said | {"key": key})
    return 0


def _failed(error: Exception) -> dict[str, Any]:
    """Why a case could not be compiled, as fields of a record."""
    from scaling.core.shape import TooLarge

    if isinstance(error, TooLarge):
        needs = error.needs | {"peak_bytes": memory.bytes_while_running(error.needs)} if error.needs else {}
        return needs | {"status": "skipped", "reason": "too_large", "text": str(error)}
    if isinstance(error, Refusal):
        return {"status": "skipped", "reason": "not_defined", "text": str(error)}
    reason = "out_of_memory" if memory.is_out_of_memory(f"{type(error).__name__} {error}") else "error"
    return {
        "status": "failed",
        "reason": reason,
        "text": environment.scrub(f"{type(error).__name__}: {error}")[:500],
    }


class _Traced:
    """A case that was built and traced for its devices."""

    def __init__(self, job: Mapping[str, Any], case: Case) -> None:
        import jax

        from scaling.core import compile_case, run_case, workload
        from scaling.plan import topology

        jax.config.update("jax_enable_x64", case.dtype == "float64")
        self.job, self.case = job, case
        place = job["places"][str(case.devices)]
        self.devices = topology.devices(
            job["platform"], case.devices, job["target"], tuple(place), job["per_host"]
        )
        self.built = workload.build(case)
        self.sizes = compile_case.settle_shape(case, self.built, self._missing_memory)
        coloring = self.sizes.coloring
        self.found: dict[str, Any] = run_case.coloring_fields(coloring) if coloring else {}
        # What fits is found by compiling, so that nothing is known of it before.
        self.program = None if case.chunk == AUTO else self._program()

    def _program(self) -> str | None:
        """The digest of what each device does, as traced; of a pmap, which cannot be traced, of its twin of shard_map.

        None where there is no program, because it is too large to be traced.
        """
        from scaling.core import compile_case, shape, timing

        nothing = functools.partial(timing.Stages, compiled=None)
        one = compile_case.compile_blocks(
            self.case, self.built, self.sizes, self.devices, lambda program: nothing(program.function)
        )
        padding = shape.padding_share(self.case, self.sizes)
        if one.overflow:
            return None
        try:
            jaxpr = compile_case.trace_program(one, self.devices)
        except OverflowError:
            return None
        return _digest(self.case, jaxpr, one.steps, padding)

    def _missing_memory(self, one: Any) -> str | None:
        """Return what a program needs and what a device has, in words, where it needs more."""
        made = one.stages.compiled
        if isinstance(made, _Exhausted) and one.needs == memory.program_bytes(made):
            return _told(made.words)
        taken, limit = one.bytes_while_running, self.case.memory_limit or self.job["memory"]
        return (
            f"needs {format_bytes(taken)}, a device has {format_bytes(limit)}"
            if taken and limit and taken > limit
            else None
        )

    def compiled(self) -> dict[str, Any]:
        """What the compiled program takes, does and sends."""
        from scaling.core import compile_case, shape, timing
        from scaling.options.program import hlo_cost, program_stats

        def stages(program: Any, options: dict[str, Any] | None = None) -> timing.Stages:
            try:
                return timing.compile_stages(program.function, list(program.arguments.values()), options)
            except Exception as error:
                if options is None and _NO_TILES in str(error):
                    return stages(program, _BY_LIBRARY)
                if not _USED.search(str(error)) and not memory.is_out_of_memory(str(error)):
                    raise
                return timing.Stages(program.function, _exhausted(program, self.case.devices, str(error)))

        capacity = {"capacity_bytes": int(self.job["memory"])} if self.job["memory"] else {}
        try:
            settings = compile_case.CompileSettings(stages, self._missing_memory)
            one = compile_case.compile_case(self.case, self.built, self.devices, settings, self.sizes)
        except shape.TooLarge as error:
            return self.found | capacity | _failed(error)
        read = hlo_cost.read(one.stages.compiled.as_text())
        self.found |= vars(program_stats.program_work(one, self.devices, read)) | {**one.needs} | capacity
        self.found |= {
            "passes": shape.count_passes(one.case, self.built, self.sizes) or None,
            "padding": shape.padding_share(self.case, self.sizes),
        }
        self.found |= {
            name: getattr(one.stages, name) for name in ("trace_seconds", "lower_seconds", "compile_seconds")
        }
        self.found |= {"blocks": one.blocks, "peak_bytes": one.bytes_while_running}
        self.found |= {"compulsory_bytes": one.compulsory_bytes}
        self.found |= _optimised(read, one.steps) | {
            "messages": [hlo_cost.as_work(message) for message in read.messages]
        }
        if words := program_stats.unexpected_collectives(self.case, read.collectives):
            return self.found | {"status": "failed", "reason": "collective", "text": words}
        return self.found | {"status": "planned"}


@dataclasses.dataclass(frozen=True)
class _Exhausted:
    """A program that a compiler refused for its memory: its bytes on a device, as `memory.program_bytes` has them, and its words.

    What goes in and comes out is known all the same: whether a smaller block would help is asked of these.
    """

    words: str
    argument_size_in_bytes: int
    output_size_in_bytes: int
    temp_size_in_bytes: int | None  # the rest of what the compiler said; None where it named no figure

    def memory_analysis(self) -> "_Exhausted":
        """As a compiled program has it."""
        return self


def _exhausted(program: Any, devices: int, words: str) -> _Exhausted:
    """A program that was refused in these words. Every device has its own part of the result."""
    import jax

    def size(one: Any, shape: tuple[int, ...]) -> int:
        return math.prod(shape) * one.dtype.itemsize

    given, used = list(program.arguments.values()), _used(words)
    inside = sum(size(one, one.sharding.shard_shape(one.shape)) for one in given)
    out = (
        sum(size(one, one.shape) for one in jax.tree.leaves(jax.eval_shape(program.function, *given)))
        // devices
    )
    return _Exhausted(words, inside, out, None if used is None else max(0, used - inside - out))


# Of some products XLA's own kernels for GPUs find no tiles; on a GPU it tries, and takes cuBLAS, which here has to be asked for.
_NO_TILES = "Couldn't find output tile sizes"
_BY_LIBRARY = {"xla_gpu_enable_triton_gemm": False}
_MESH = re.compile(r"AbstractMesh\((?:[^()]|\([^()]*\))*\)")
_TOGETHER = re.compile(
    r"\b(axis_index|psum|all_gather|all_to_all|ppermute|reduce_scatter|pmax|pmin|pbroadcast)\b"
)


def _digest(case: Case, jaxpr: Any, steps: int = 1, padding: float | None = None) -> str:
    """Equal for two cases whose devices are given the same to do: then one compilation says all of both.

    What sends, or asks where it is, depends on how many devices there are. With storage=host a program is one of `steps`: two
    cases may have it in common and not how often it runs.
    """
    from scaling.core import layout

    inner = _on_device(getattr(jaxpr, "jaxpr", jaxpr))
    text = _MESH.sub("mesh", str(inner))
    if case.axes[1] == 1:  # then its place among the seeds is always the first
        text = text.replace(f"axis_index[axis_name={layout.SEEDS}]", "first")
    alone = not _TOGETHER.search(text)
    constants = [
        hashlib.sha256(memoryview(const).tobytes()).hexdigest()
        for const in map(_plain, getattr(jaxpr, "consts", ()))
    ]
    place = None if alone else (case.devices, case.axes)
    told = json.dumps(
        [
            text,
            constants,
            case.api,
            case.dtype,
            case.precision,
            case.storage,
            case.memory_limit,
            place,
            steps,
            padding,
        ]
    )
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def _plain(const: Any) -> Any:
    import numpy as np

    return np.ascontiguousarray(const)


def _on_device(jaxpr: Any) -> Any:
    """The jaxpr inside shard_map, less what nobody uses; of a plain program all of it."""
    from jax.extend.core import jaxprs_in_params
    from jax.interpreters.partial_eval import dce_jaxpr

    for equation in jaxpr.eqns:
        inner = list(jaxprs_in_params(equation.params))
        if equation.primitive.name == "shard_map":
            return dce_jaxpr(inner[0], [True] * len(inner[0].outvars))[0]
        if len(jaxpr.eqns) == 1 and len(inner) == 1:
            return _on_device(inner[0])
    return dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0]


def _optimised(read: Any, steps: int) -> dict[str, Any]:
    """The work of the optimised program, its kernels that are alike told once, with how often they run."""
    from scaling.options.program.hlo_cost import as_work

    counts: Counter = Counter()
    for kernel in read.kernels:
        counts[dataclasses.replace(kernel, times=1.0)] += kernel.times * steps
    kernels = [as_work(dataclasses.replace(kernel, times=times)) for kernel, times in counts.items()]
    flops = sum(
        (k.products + k.arithmetic + k.divisions + k.reductions) * times for k, times in counts.items()
    )
    return {
        "kernels": kernels,
        "program_flops": flops,
        "program_transcendentals": sum(k.transcendentals * n for k, n in counts.items()),
    }


def _used(words: str) -> int | None:
    found = _USED.search(words)
    return int(float(found[1]) * _UNITS[found[2]]) if found else None


def _told(words: str) -> str:
    """What a compiler says of a program that does not fit, in our words where it is understood."""
    found = _USED.search(words)
    if found is None:
        return environment.scrub(" ".join(words.split()))[:300]
    used, has = (float(found[place]) * _UNITS[found[place + 1]] for place in (1, 3))
    return f"needs {format_bytes(used)}, a device has {format_bytes(has)}"


if __name__ == "__main__":
    sys.exit(main())
