"""Implement `scaling advise`: parse FILE.py:NAME and --points, and run JAX in child processes."""

import itertools
import json
import keyword
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf
from rich.console import Console

from scaling.cli.commands import Parser
from scaling.cli.output import prepare_streams, print_lines
from scaling.core import environment
from scaling.core.case import DTYPES, VIEWS, Case, Refusal, check_names, unknown_name
from scaling.core.formatting import format_bytes, format_count, format_duration
from scaling.core.workload import import_named
from scaling.launcher import cores
from scaling.launcher.child_process import last_informative_line, rejects_variable
from scaling.launcher.machine import local_machine
from scaling.report.terminal import print_table
from scaling.report.text import make_table
from scaling.study.configuration import compose
from scaling.study.grid import expand_study
from scaling.worker import die_with_parent

HELP = """\
Find the fastest way to differentiate a function: AD mode, chunk, block, coloring, devices.

  scaling advise spring.py:force --points x=100000,17 --shared stiffness=16
  scaling advise spring.py:energy --points x=10,300 --shared stiffness=299 target=hessian budget=60
  scaling advise workload=linear sizes.p=512 sizes.o=5 points=1000 'devices=[1,2]'
  scaling advise spring.py:force --points x=100000,17 --shared stiffness=16 hardware=h100 'devices=[1,8]'

FILE.py:NAME is a function of one point, in JAX. --points NAME=N,SHAPE is an input with N points, --shared
NAME=SHAPE one that all points share (NAME=scalar is a number). Repeat them for more inputs. Write a dtype
after a colon: i=1000:int32. --shared p.w=5,3 --shared p.b=5 is a dict p with the keys w and b. Without a
function, the arguments are fields of one case, as for `scaling run`.

  wrt=NAMES      the inputs to differentiate with respect to, joined by + (default: the first of --points)
  target=T       jacobian (default; the gradient, if the function returns a number), hessian, hvp (the
                 Hessian times a direction), or gauss_newton (J^T J times a direction, J the Jacobian)
  budget=S       seconds to measure; with 0, only compile (default: 30)
  devices=N      the number of devices (cores on a CPU), or a list of numbers (default: 1)
  hardware=NAME  a machine that you do not have (conf/hardware); only compile

Every derivative is checked before its time is kept. Ctrl-C prints the advice so far.
Exit status: 0, or 2 for bad input."""
_SHAPE = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*)=(scalar|\d{1,15}(?:,\d{1,15})*)(?::(\w+))?")
_DTYPES = (*DTYPES, "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "bool")
_FIELDS_OF_FUNCTION = ("wrt", "target", "devices", "hardware")
_FIELDS_OF_WORKLOAD = (*VIEWS["problem"], "formulation", "memory_limit", "devices", "hardware")
_IN_PROCESS = "--in-process"  # first argument of a child process; JSON of its own options follows
_DURATION = "duration"  # the name of the file to which this process writes the time of the best method
_Shapes = dict[str, tuple[tuple[int, ...], str]]  # input name -> (shape, dtype)


class _Request(NamedTuple):
    """The parsed arguments of the command."""

    name: str  # the name of a workload, or the location of a function, such as "spring.py:force"
    case: Case | None  # the case that describes a workload, or None for a function
    points: _Shapes  # the inputs of a function
    shared: _Shapes
    options: dict[str, Any]  # arguments of `advisor.advise_case` or `advisor.advise`
    is_bound: bool  # whether a process uses one CPU core per device


def execute(words: list[str], console: Console) -> int:
    """Print the fastest way to differentiate a function or workload, and return the exit status."""
    if not words or {"-h", "--help"} & set(words):
        console.print(HELP, markup=False)
        return 0
    if words[0] == _IN_PROCESS:
        request = _parse_request(words[2:], json.loads(words[1]))
        try:
            Path(tempfile.gettempdir(), _DURATION).write_text(_advise(request, console))
        except (SystemExit, KeyboardInterrupt) as error:  # Ctrl-C is a stop for the parent
            fix = "remove it, or write it under if __name__ == '__main__'"
            raise Refusal(f"{request.name} raised {type(error).__name__}({error}); {fix}") from None
        return 0
    _advise_on_devices(words, _parse_request(words), console)
    return 0


def _advise_on_devices(words: list[str], request: _Request, console: Console) -> None:
    """Print advice for each number of devices. Child processes run JAX.

    If this machine's CPU is used, each number of devices has its own child process. Otherwise, one child
    process handles all numbers. Raise `Refusal` if a number of devices is invalid, or if there is no advice
    at all. Raise `KeyboardInterrupt` if a signal comes before there is any advice.
    """
    _check_devices(request)
    options, devices = request.options, request.options["devices"]
    machine = options["hardware"] or f"this machine ({local_machine().platform})"
    # On a CPU, each number of devices gets a separate process that is bound to one core per device.
    groups = [[count] for count in dict.fromkeys(devices)] if request.is_bound else [devices]
    durations, refusals, is_stopped = dict[int, str](), dict[int, Refusal](), False
    for group in groups:
        process_options = {"devices": group, "budget": options["budget"] / len(groups)}
        is_measured = options["budget"] and not options["hardware"]
        procedure = (
            f"measured for up to {process_options['budget']:g} s" if is_measured else "by compiling alone"
        )
        print_lines(console, [f"{request.name} on {machine}, devices={group}: {procedure}"])
        try:
            command = [_IN_PROCESS, json.dumps(process_options), *words]
            durations[group[0]], is_stopped = _run_in_process(command, request)
        except Refusal as refusal:
            refusals[group[0]] = refusal
        except KeyboardInterrupt:
            if not durations:
                raise
            is_stopped = True
        if is_stopped:
            break
    if not durations:
        raise next(iter(refusals.values()))
    print_lines(console, [f"devices={count} is left out: {text}" for count, text in refusals.items()])
    if len(durations) > 1:
        times = [f"{format_count(count, 'device')} {text}" for count, text in durations.items()]
        print_lines(console, [f"Best time on each number of devices: {'; '.join(times)}."])


def _check_devices(request: _Request) -> None:
    """Raise `Refusal` if the numbers of devices are invalid, or if the file of the function is missing."""
    devices, core_count = request.options["devices"], len(cores.usable_cores())
    if not devices or any(type(count) is not int for count in devices):
        raise Refusal(f"devices={devices}: give a number of devices, or several, such as [1,2]")
    if request.is_bound and not all(1 <= count <= core_count for count in devices):
        fix = f"give numbers from 1 to {core_count}"
        raise Refusal(f"devices={devices}: this machine has {format_count(core_count, 'core')}; {fix}")
    if request.case is None:
        _split_location(request.name)  # refuse a missing file before JAX starts


def _parse_request(words: Sequence[str], process_options: Mapping[str, Any] | None = None) -> _Request:
    """Parse the command-line arguments. Raise `Refusal` if an argument is invalid.

    In a child process, `process_options` contains the `devices` and the `budget` (seconds) of this process,
    which replace the values on the command line. Otherwise, it is None.
    """
    parser = Parser(prog="scaling advise", add_help=False, allow_abbrev=False)
    parser.add_argument("words", nargs="*")
    for option in ("--points", "--shared"):
        parser.add_argument(option, action="append", default=[])
    parsed = parser.parse_intermixed_args(words)
    points, shared = (_parse_shapes(name, getattr(parsed, name)) for name in ("points", "shared"))
    functions = [word for word in parsed.words if "=" not in word]
    budgets = [word.removeprefix("budget=") for word in parsed.words if word.startswith("budget=")]
    fields = [word for word in parsed.words if "=" in word and not word.startswith("budget=")]
    names = [word.partition("=")[0] for word in fields]
    is_workload = "workload" in names
    if (functions or points or shared) if is_workload else (len(functions) != 1 or not points):
        example = "scaling advise spring.py:force --points x=100000,17"
        raise Refusal(f"give one function with --points ({example}), or workload=NAME and its fields")
    budget = " ".join(budgets or ["30"])
    if not re.fullmatch(r"\d{0,9}\.?\d{1,9}", budget):
        raise Refusal(f"budget must be a number of seconds, such as 30 or 0.5, not {budget!r}")
    allowed = _FIELDS_OF_WORKLOAD if is_workload else _FIELDS_OF_FUNCTION
    # A dotted name has an effect only if it is a size, such as sizes.p.
    if unused := [name for name in names if re.sub(r"^sizes\..*", "sizes", name) not in allowed]:
        raise Refusal(f"{unused[0]}= has no effect on advice: use {', '.join(allowed)}, budget")
    config, _ = compose(["study=function", *fields])
    hardware = (config.get("hardware") or {}).get("name")
    hardware = None if hardware == "cpu" else hardware
    is_bound = hardware is None and local_machine().platform == "cpu"
    devices = [1] if config["devices"] is None else config["devices"]
    devices = devices if isinstance(devices, list) else [devices]
    options: dict[str, Any] = {"budget": float(budget), "devices": devices, "hardware": hardware}
    options |= process_options or {}
    if is_workload:
        case = _read_case(config)
        return _Request(case.workload, case, {}, {}, options, is_bound)
    options |= {"wrt": config["wrt"], "target": "jacobian" if config["target"] is None else config["target"]}
    return _Request(functions[0], None, points, shared, options, is_bound)


def _read_case(config: dict[str, Any]) -> Case:
    """Return the case that a configuration describes. Raise `Refusal` if it describes several cases."""
    case_fields = {name: config[name] for name in _FIELDS_OF_WORKLOAD[:-2] if config[name] is not None}
    cells = expand_study({}, {"points": 1024} | case_fields | {"devices": 1})
    if len(cells) > 1:
        raise Refusal(
            f"advice is for one problem, and these fields describe {len(cells)}: only devices takes a list"
        )
    return cells[0].case


def _parse_shapes(option: str, texts: Sequence[str]) -> _Shapes:
    """Return {input name: (shape, dtype)} from the values of an option, such as "x=100,17".

    `option` is "points" or "shared". Raise `Refusal` if a value is invalid, or if an input is given twice.
    """
    inputs: _Shapes = {}
    for text in texts:
        match = _SHAPE.fullmatch(text)
        if match is None:
            example = "x=100000,17" if option == "points" else "stiffness=16 or rate=scalar"
            raise Refusal(f"--{option} takes NAME=SHAPE, such as {example}, not {text!r}")
        name, shape, dtype = match.groups()
        check_names("dtype", [dtype] if dtype else [], _DTYPES)
        inputs[name] = () if shape == "scalar" else tuple(map(int, shape.split(","))), dtype or "float32"
    names = [text.partition("=")[0] for text in texts]
    for name, other in itertools.permutations(names, 2):
        if f"{name}.".startswith(f"{other}."):  # the same name, or an entry of the other input
            raise Refusal(f"--{option} {other}= and {name}= exclude each other: give each input once")
    return inputs


def _run_in_process(words: list[str], request: _Request) -> tuple[str, bool]:
    """Run `scaling advise` in a child process. Return the best time, and whether a signal stopped it.

    The time is text, such as "1.06 ms per call, measured". `words` are the arguments of the child process.
    Raise `Refusal` if the process refuses the function or dies. Raise `KeyboardInterrupt` if a signal stops
    it before there is advice.
    """
    variables = {"TF_CPP_MIN_LOG_LEVEL": "2"}
    if request.case:  # otherwise, use the user's own settings, as the printed code will
        variables |= environment.variables("cpu" if request.is_bound else "gpu")
    if request.is_bound or request.options["hardware"]:
        variables["JAX_PLATFORMS"] = "cpu"
    is_stopped = False
    sys.stdout.flush()
    with tempfile.TemporaryDirectory() as folder:  # for all temporary files, as a signal may interrupt XLA
        variables["TMPDIR"] = folder
        code = "from scaling.cli.advise import main; main()"
        with Path(folder, "errors").open("w") as errors:
            process = subprocess.Popen(  # in a new session, which gets no signals of the terminal
                [sys.executable, "-P", "-c", code, str(os.getpid()), *words], stdin=subprocess.DEVNULL,
                stderr=errors, env=os.environ | variables, start_new_session=True,
            )  # fmt: skip
        while process.returncode is None:
            try:
                process.wait()
            except KeyboardInterrupt:
                is_stopped = True
                process.send_signal(signal.SIGINT)  # it prints its advice so far
        error_text = Path(folder, "errors").read_text(errors="replace")
        if process.returncode == 0:
            sys.stderr.write(error_text)
            return Path(folder, _DURATION).read_text(), is_stopped
    if is_stopped:
        raise KeyboardInterrupt
    refusals = [line for line in error_text.splitlines() if line.startswith("scaling: ")]
    if process.returncode == 2 and refusals:
        raise Refusal(refusals[-1].removeprefix("scaling: "))
    raise _explain_death(error_text)


def _explain_death(error_text: str) -> Refusal:
    reason = last_informative_line(error_text.splitlines())
    text = f"the process that compiles and measures the function died{f': {reason}' if reason else ''}"
    fix = "if it ran out of memory, try fewer points, or hardware=NAME"
    return Refusal(f"{text}; {'correct or unset it' if rejects_variable(reason) else fix}")


def main() -> None:
    """Run `scaling advise` in the child process that imports JAX.

    `sys.argv` contains the ID of the parent process, and the arguments of the command.
    """
    parent, *words = sys.argv[1:]
    del sys.argv[1:]  # a module that parses the arguments of its program finds none
    die_with_parent(int(parent))
    prepare_streams()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the parent sends it for any signal
    from scaling.cli.main import main as run_command

    status = run_command(["advise", *words])
    sys.stdout.flush()
    os._exit(status)  # without waiting for a compilation that a signal interrupted


def _advise(request: _Request, console: Console) -> str:
    """Print advice on a function or workload, and return the time per call of the best method as text."""
    dtypes = [dtype for group in (request.points, request.shared) for _, dtype in group.values()]
    dtypes += [request.case.dtype] if request.case else []
    _start_jax(request.options["devices"][0] if request.is_bound else 0, "float64" in dtypes)
    from scaling.advice import advisor

    with console.status("") as status:
        options = request.options | {"note": status.update}
        if request.case:
            sys.path.insert(0, os.getcwd())  # to import a workload of the user, as in a worker
            advice = advisor.advise_case(request.case, **options)
        else:
            function, line = import_function(request.name)
            points, shared = _make_structs(request.points), _make_structs(request.shared)
            advice = advisor.advise(function, points, shared, import_line=line, **options)
    summary = str(advice)  # raises a `Refusal` if no method can be advised
    print_table(make_table("", "The methods, best first", "", map(_format_candidate, advice.rows)), console)
    print_lines(console, ["", *summary.splitlines()])
    return advice.duration


def _make_structs(shapes: _Shapes) -> Any:
    """Return a pytree of `jax.ShapeDtypeStruct` for inputs with the given shapes and dtypes.

    An input with a dotted name such as p.w is the entry w of a dict p.
    """
    import jax

    nested = OmegaConf.create()
    for name, shape_and_dtype in shapes.items():
        OmegaConf.update(nested, name, list(shape_and_dtype))
    make_struct = lambda shape_and_dtype: jax.ShapeDtypeStruct(*shape_and_dtype)  # noqa: E731
    return jax.tree.map(make_struct, OmegaConf.to_container(nested), is_leaf=lambda n: isinstance(n, list))


def _start_jax(devices: int, uses_float64: bool) -> None:
    """Start JAX. If `devices` is not 0, first bind this process to one CPU core per device."""
    usable = cores.usable_cores()  # before the process is bound
    try:
        if devices:  # before JAX is imported
            os.sched_setaffinity(0, usable[:devices])
        import jax

        from scaling.advice import candidates

        jax.config.update("jax_enable_x64", uses_float64)
        jax.config.update("jax_num_cpu_devices", devices or jax.config.values["jax_num_cpu_devices"])
        jax.devices()  # start the backend
        if devices:
            candidates.start_compile_threads(usable)
    except Exception as error:
        reason = f"JAX cannot start: {type(error).__name__}: {error}"
        raise Refusal(f"{reason}; check the environment variables JAX_* and `ulimit -a`") from None


def _format_candidate(row: dict[str, Any]) -> dict[str, Any]:
    predicted, measured, memory = row["predicted_seconds"], row["measured_seconds"], row["memory_bytes"]
    return {
        "method": row["method"], "devices": row["devices"],
        "predicted": predicted and format_duration(predicted),
        "measured": measured and format_duration(measured),
        "memory": memory and format_bytes(memory), "left out": row["left_out"],
    }  # fmt: skip


def _split_location(text: str) -> tuple[str, str]:
    """Split "FILE.py:NAME" at the colon. Raise `Refusal` if there is no such file, or a name is invalid."""
    where, _, name = text.rpartition(":")
    module_name = Path(where).stem
    # The code to paste imports the module by a statement, which takes no keyword.
    names_module = module_name.isidentifier() and not keyword.iskeyword(module_name)
    if not (name.isidentifier() and where.endswith(".py") and os.path.isfile(where) and names_module):
        fix = "write FILE.py:NAME, such as spring.py:force"
        raise Refusal(
            f"{text!r} does not name a function in an existing file with the name of a module: {fix}"
        )
    return where, name


def import_function(text: str) -> tuple[Callable[..., Any], str]:
    """Return a function, given as "spring.py:force", and the line of code that imports it.

    Raise `Refusal` if `text` is malformed, or if the function cannot be imported.
    """
    where, name = _split_location(text)
    path, module_name = Path(where).resolve(), Path(where).stem  # the import may change the directory
    sys.path.insert(0, str(path.parent))
    module = import_named("module", module_name, module_name, [where])
    if Path(getattr(module, "__file__", None) or "").resolve() != path:
        raise Refusal(f"{where} has the name of another module, {module_name}: rename it")
    if not callable(getattr(module, name, None)):
        functions = [key for key, value in vars(module).items() if callable(value)]
        raise unknown_name(f"function of {where}", name, functions)
    return getattr(module, name), f"from {module_name} import {name}"
