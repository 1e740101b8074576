"""Implement `scaling advise`: parse FILE.py:NAME and --points, and start the process in which JAX runs."""

import inspect
import keyword
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from scaling.cli.commands import Parser
from scaling.cli.output import make_console, prepare_streams, print_lines
from scaling.core import environment
from scaling.core.case import DTYPES, VIEWS, Case, Refusal, check_names, unknown_name
from scaling.core.formatting import format_bytes, format_count, format_duration
from scaling.core.workload import import_named
from scaling.report.terminal import print_table
from scaling.report.text import make_table
from scaling.study.configuration import compose
from scaling.study.grid import expand_study
from scaling.worker import die_with_parent
from scaling.workers import cores
from scaling.workers.child_process import last_informative_line, rejects_variable
from scaling.workers.machine import local_machine

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
_STOP_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_Shapes = dict[str, tuple[tuple[int, ...], str]]  # input name -> (shape, dtype)
# A case, or the inputs of a function from --points and from --shared.
_Problem = Case | tuple[_Shapes, _Shapes]
_Options = dict[str, Any]  # arguments of `advisor.advise_case` or `advisor.advise`


def execute(words: list[str], console: Console) -> None:
    """Find and print the fastest AD method for a function or workload."""
    if not words or {"-h", "--help"} & set(words):
        console.print(HELP, markup=False)
        return
    try:
        _advise_on_devices(*_parse_words(words), console)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped before there was any advice") from None


def _advise_on_devices(name: str, problem: _Problem, options: _Options, console: Console) -> None:
    """Find and print the fastest AD method. On a CPU, do so for each device count separately.

    Raise `Refusal` if a device count is invalid, or if the search fails for all device counts. Raise
    `KeyboardInterrupt` if a signal stops the search before it finds a method.
    """
    devices, budget, core_count = options["devices"], options["budget"], len(cores.usable_cores())
    is_bound = options["hardware"] is None and local_machine().platform == "cpu"
    for count in devices if is_bound else ():
        if not 0 < count <= core_count:
            valid = f"1 to {core_count}" if core_count > 1 else "1"
            raise Refusal(
                f"devices={count}: this machine has {format_count(core_count, 'core')}; use {valid}"
            )
    if not isinstance(problem, Case):
        _split_location(name)  # refuse a missing file before JAX starts
    # On a CPU, each number of devices gets a separate process that is bound to one core per device.
    device_groups = [[count] for count in devices] if is_bound else [devices]
    replies, is_stopped = dict[int, str | Refusal | None](), False
    for device_group in device_groups:
        options |= {"devices": device_group, "budget": budget / len(device_groups)}
        replies[device_group[0]], is_stopped = _run_in_process(name, problem, options, is_bound)
        if is_stopped:
            break
    refusals = {count: reply for count, reply in replies.items() if isinstance(reply, Refusal)}
    durations = {count: reply for count, reply in replies.items() if isinstance(reply, str)}
    if not durations and is_stopped:
        raise KeyboardInterrupt
    if not durations:
        interrupt = Refusal(f"{name} raised KeyboardInterrupt without a signal; remove that code")
        raise next(iter(refusals.values()), interrupt)
    print_lines(console, [f"devices={count} is left out: {text}" for count, text in refusals.items()])
    if len(durations) > 1:
        print_lines(
            console,
            [f"{format_count(count, 'device')}: {duration}" for count, duration in durations.items()],
        )


def _parse_words(words: Sequence[str]) -> tuple[str, _Problem, _Options]:
    """Parse the command-line arguments, and return (name, problem, options).

    The name is a workload, such as "linear", or a location, such as "spring.py:force". The problem is a case,
    or the shapes of the function's inputs. Raise `Refusal` if an argument is invalid.
    """
    parser = Parser(prog="scaling advise", add_help=False, allow_abbrev=False)
    parser.add_argument("words", nargs="*")
    for option in ("--points", "--shared"):
        parser.add_argument(option, action="append", default=[])
    parsed = parser.parse_intermixed_args(words)
    points, shared = (_parse_shapes(name, getattr(parsed, name)) for name in ("points", "shared"))
    functions = [word for word in parsed.words if "=" not in word]
    fields = _parse_fields([word for word in parsed.words if "=" in word])
    if [len(functions), bool(points), "workload" in fields] not in ([1, True, False], [0, False, True]):
        example = "scaling advise spring.py:force --points x=100000,17"
        raise Refusal(f"give one function with --points ({example}), or workload=NAME and its fields")
    if shared and not functions:
        raise Refusal("--shared has no effect with workload=, whose sizes give the shapes: omit --shared")
    budget = fields.pop("budget", "30")
    if not re.fullmatch(r"\d{0,9}\.?\d{1,9}", budget):
        raise Refusal(f"budget must be a number of seconds, such as 30 or 0.5, not {budget!r}")
    allowed = _FIELDS_OF_FUNCTION if functions else _FIELDS_OF_WORKLOAD
    # A dotted name has an effect only if it is a size, such as sizes.p.
    if unused := [name for name in fields if re.sub(r"^sizes\..*", "sizes", name) not in allowed]:
        raise Refusal(f"{unused[0]}= has no effect on advice: use {', '.join(allowed)}, budget")
    config, _ = compose(["study=function", *(f"{name}={value}" for name, value in fields.items())])
    hardware = config.get("hardware")
    options = {
        "budget": float(budget), "devices": _read_devices(config["devices"]),
        "hardware": hardware["name"] if hardware and hardware["platform"] != "cpu" else None,
    }  # fmt: skip
    if not functions:
        case = _read_case(config)
        return case.workload, case, options
    options |= {"wrt": config["wrt"], "target": "jacobian" if config["target"] is None else config["target"]}
    return functions[0], (points, shared), options


def _parse_fields(words: Sequence[str]) -> dict[str, str]:
    """Return {name: value} for words such as "wrt=x". Raise `Refusal` if two have the same name."""
    fields: dict[str, str] = {}
    for name, value in (word.split("=", 1) for word in words):
        if name in fields:
            raise Refusal(f"{name}= is given twice: give each field once")
        fields[name] = value
    return fields


def _read_devices(value: Any) -> list[int]:
    """Return the device counts in `value`: a number, a list of numbers, or None for a single device."""
    devices = value if isinstance(value, list) else [1 if value is None else value]
    if not devices or any(type(count) is not int for count in devices):
        raise Refusal(f"devices={devices}: give a number of devices, or several, such as [1,2]")
    return list(dict.fromkeys(devices))


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
    """Return {input name: (shape, dtype)} from values of --points or --shared, such as "x=100,17"."""
    inputs: _Shapes = {}
    for text in texts:
        match = _SHAPE.fullmatch(text)
        if match is None:
            example = "x=100000,17" if option == "points" else "stiffness=16 or rate=scalar"
            raise Refusal(f"--{option} takes NAME=SHAPE, such as {example}, not {text!r}")
        name, shape, dtype = match.groups()
        check_names("dtype", [dtype] if dtype else [], _DTYPES)
        if name in inputs:
            raise Refusal(f"--{option} {name}= is given twice: give each input once")
        for other in inputs:
            if f"{other}.".startswith(f"{name}.") or f"{name}.".startswith(f"{other}."):
                raise Refusal(
                    f"--{option} {name}= and {other}= exclude each other: one is an entry of the other"
                )
        sizes = () if shape == "scalar" else tuple(map(int, shape.split(",")))
        if option == "points" and not any(sizes[:1]):
            fix = f"write --points {name}=N,SHAPE, or --shared {text} if all points share it"
            raise Refusal(f"--points {text}: the first size is the number of points, at least 1; {fix}")
        inputs[name] = sizes, dtype or "float32"
    return inputs


def _nest(arrays: dict[str, Any]) -> dict[str, Any]:
    """Convert dotted names to nested dicts: {"p.w": array} becomes {"p": {"w": array}}."""
    nested: dict[str, Any] = {}
    for name, array in arrays.items():
        *parents, key = name.split(".")
        entries = nested
        for parent in parents:
            entries = entries.setdefault(parent, {})
        entries[key] = array
    return nested


def _run_in_process(
    name: str, problem: _Problem, options: _Options, is_bound: bool
) -> tuple[str | Refusal | None, bool]:
    """Call `_advise` in a new process, and return (reply, whether a signal stopped the process).

    The reply is the time per call of the best method as text, or a `Refusal`, which has the last line of
    the standard error if the process dies. It is None if a signal stopped the process before it found a
    method. If `is_bound` is true, the process uses one CPU core per device.
    """
    variables = {"TF_CPP_MIN_LOG_LEVEL": "2"}
    if isinstance(problem, Case):  # otherwise, use the user's own settings, as the printed code will
        variables |= environment.variables("cpu" if is_bound else "gpu")
    if is_bound or options["hardware"]:
        variables["JAX_PLATFORMS"] = "cpu"
    is_stopped = False
    with tempfile.TemporaryDirectory() as folder:  # for all temporary files, as a signal may interrupt XLA
        variables["TMPDIR"] = folder
        Path(folder, "request").write_bytes(pickle.dumps((name, problem, options, is_bound, os.getpid())))
        # A new session gets no signals of the terminal. The process unblocks signals when it is ready.
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
        command = [sys.executable, "-P", "-c", "from scaling.cli.advise import main; main()", folder]
        with Path(folder, "errors").open("w") as errors:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stderr=errors, env=os.environ | variables,
                start_new_session=True,
            )  # fmt: skip
        while process.returncode is None:
            try:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
                process.wait()
            except KeyboardInterrupt:
                is_stopped = True
                process.send_signal(signal.SIGINT)  # it prints its advice so far
        error_text = Path(folder, "errors").read_text(errors="replace")
        if (reply_file := Path(folder, "reply")).exists():
            sys.stderr.write(error_text)
            return pickle.loads(reply_file.read_bytes()), is_stopped
    return (None if is_stopped else _explain_death(error_text)), is_stopped


def _explain_death(error_text: str) -> Refusal:
    reason = last_informative_line(error_text.splitlines())
    text = f"the process that compiles and measures the function died{f': {reason}' if reason else ''}"
    fix = "if it ran out of memory, try fewer points, or hardware=NAME"
    return Refusal(f"{text}; {'correct or unset it' if rejects_variable(reason) else fix}")


def main() -> None:
    """Read the file `request` in the folder `sys.argv[1]`, print the advice, and write the file `reply`."""
    folder = Path(sys.argv.pop())  # a module that parses the arguments of its program finds none
    name, problem, options, is_bound, parent = pickle.loads((folder / "request").read_bytes())
    die_with_parent(parent)
    prepare_streams()
    output = sys.stdout  # a function or its module may replace `sys.stdout` or call `sys.stdout.close()`
    output.close = output.flush  # type: ignore[method-assign]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the parent sends it for any signal
    sys.unraisablehook = _resend_lost_interrupt
    reply: str | Refusal | None = None  # None if there is no advice yet
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
        reply = _advise(name, problem, options, is_bound)
    except Refusal as refusal:
        # JAX is started before the function is imported, and refuses a module that changes this setting.
        sets_devices = "jax_num_cpu_devices config" in str(refusal)
        fix = "; remove that code, and set devices=N instead" if sets_devices else ""
        reply = Refusal(f"{refusal}{fix}")
    except KeyboardInterrupt:
        pass
    except Exception:
        raise
    except BaseException as error:  # raised by the function, such as SystemExit
        fix = "remove it, or write it under if __name__ == '__main__'"
        reply = Refusal(f"{name} raised {type(error).__name__}({error}); {fix}")
    (folder / "reply").write_bytes(pickle.dumps(reply))
    output.flush()
    os._exit(0)  # without waiting for a compilation that a signal interrupted


def _resend_lost_interrupt(lost: Any) -> None:
    """Send SIGINT again if Python discarded a `KeyboardInterrupt`, for example during garbage collection.

    This function replaces `sys.unraisablehook`. `lost` is the argument that Python passes to it.
    """
    if isinstance(lost.exc_value, KeyboardInterrupt):
        threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(lost)


def _advise(name: str, problem: _Problem, options: _Options, is_bound: bool) -> str:
    """Find and print the fastest AD method. Return its time per call as text.

    `_parse_words` and `_run_in_process` explain the arguments.
    """
    _start_jax(options["devices"][0] if is_bound else 0, _uses_float64(problem))
    import jax

    from scaling.advice import advisor

    machine = options["hardware"] or f"this machine ({jax.default_backend()})"
    is_measured = options["budget"] and not options["hardware"]
    procedure = f"measured for up to {options['budget']:g} s" if is_measured else "by compiling alone"
    first_lines = [f"{name} on {machine}, devices={options['devices']}: {procedure}"]
    console = make_console()
    with console.status("") as status:

        def note(text: str) -> None:
            print_lines(console, first_lines)  # now that no argument was refused
            first_lines.clear()
            status.update(text)

        options["note"] = note
        if isinstance(problem, Case):
            sys.path.insert(0, os.getcwd())  # to import a workload of the user, as in a worker
            advice = advisor.advise_case(problem, **options)
        else:
            function, line = import_function(name)
            points, shared = (
                _nest({key: jax.ShapeDtypeStruct(*spec) for key, spec in group.items()}) for group in problem
            )
            advice = advisor.advise(function, points, shared, import_line=line, **options)
    if advice.cases:  # otherwise `str` raises a `Refusal` that has the reason
        print_table(make_table("", "The methods, best first", "", map(_format_row, advice.rows)), console)
    print_lines(console, ["", *str(advice).splitlines()])
    return advice.duration


def _uses_float64(problem: _Problem) -> bool:
    if isinstance(problem, Case):
        return problem.dtype == "float64"
    return any(dtype == "float64" for group in problem for _, dtype in group.values())


def _start_jax(devices: int, uses_float64: bool) -> None:
    """Start JAX. If `devices` is not 0, first bind this process to one CPU core per device."""
    usable = cores.usable_cores()  # before the process is bound
    try:
        if devices:  # before JAX is imported
            os.sched_setaffinity(0, usable[:devices])
        import jax

        from scaling.advice import candidates

        jax.config.update("jax_enable_x64", uses_float64)
        if devices:
            jax.config.update("jax_num_cpu_devices", devices)
        jax.devices()  # start the backend
        if devices:
            candidates.start_compile_threads(usable)
    except Exception as error:
        reason = f"JAX cannot start: {type(error).__name__}: {error}"
        raise Refusal(f"{reason}; check the environment variables JAX_* and `ulimit -a`") from None


def _format_row(row: dict[str, Any]) -> dict[str, Any]:
    predicted, measured, memory = row["predicted_seconds"], row["measured_seconds"], row["memory_bytes"]
    return {
        "method": row["method"], "devices": row["devices"],
        "predicted": predicted and format_duration(predicted),
        "measured": measured and format_duration(measured),
        "memory": memory and format_bytes(memory), "left out": row["left_out"],
    }  # fmt: skip


def _split_location(text: str) -> tuple[str, str]:
    """Split "FILE.py:NAME" at the colon. Raise `Refusal` if the text or file is invalid."""
    where, _, name = text.rpartition(":")
    if not (name.isidentifier() and where.endswith(".py") and os.path.isfile(where)):
        fix = "write FILE.py:NAME, such as spring.py:force"
        raise Refusal(f"{text!r} does not name a function in an existing file: {fix}")
    module_name = Path(where).stem
    # The code to paste imports the module by a statement, which takes no keyword.
    if not module_name.isidentifier() or keyword.iskeyword(module_name):
        reason = "its name is not a module name; rename it, such as spring.py"
        raise Refusal(f"{where} cannot be imported: {reason}")
    return where, name


def import_function(text: str) -> tuple[Callable[..., Any], str]:
    """Return the function named by `text`, such as "spring.py:force", and a statement that imports it.

    Raise `Refusal` if the text is malformed, or if the function cannot be imported.
    """
    where, name = _split_location(text)
    path, module_name = Path(where).resolve(), Path(where).stem  # the import may change the directory
    sys.path.insert(0, str(path.parent))
    module = import_named("module", module_name, module_name, [where])
    if Path(getattr(module, "__file__", None) or "").resolve() != path:
        raise Refusal(f"{where} has the name of another module, {module_name}: rename it")
    if not callable(getattr(module, name, None)):
        functions = inspect.getmembers(module, lambda value: callable(value) and not inspect.isclass(value))
        defined_names = [key for key, value in functions if value.__module__ == module_name]
        raise unknown_name(f"function of {where}", name, defined_names)
    return getattr(module, name), f"from {module_name} import {name}"
