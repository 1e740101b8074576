"""Implement `scaling advise`: parse the arguments, and find the fastest AD method in a new process."""

import importlib
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from scaling.cli import streams
from scaling.cli.streams import print_lines
from scaling.core import environment
from scaling.core.case import DTYPES, VIEWS, Refusal, check_names, from_dict, non_default_fields, unknown_name
from scaling.core.formatting import count_of, format_bytes, format_duration, innermost_location
from scaling.study.arguments import Parser
from scaling.study.compose import compose
from scaling.study.grid import expand_study
from scaling.worker import die_with_parent
from scaling.workers import cores
from scaling.workers.machine import find_platform

HELP = """\
Find the fastest way to differentiate a function: AD mode, chunk, block, coloring, devices.

  scaling advise spring.py:force --points x=100000,17 --shared stiffness=16
  scaling advise spring.py:energy --points x=10,300 --shared stiffness=299 target=hessian budget=60
  scaling advise workload=linear sizes.p=512 sizes.o=5 points=1000 'devices=[1,2]'
  scaling advise spring.py:force --points x=100000,17 --shared stiffness=16 hardware=h100 'devices=[1,8]'

FILE.py:NAME is a function of one point, in JAX. --points NAME=N,SHAPE is an input with N points, --shared
NAME=SHAPE one that all points share (NAME=scalar is a number). Repeat them for further inputs. A dtype
follows a colon: i=1000:int32. Without a function, the words are fields of one case, as for `scaling run`.

  wrt=NAMES      the inputs to differentiate by, joined by + (default: the first of --points)
  target=T       jacobian (default; the gradient, if the function returns a number), hessian, hvp (the
                 Hessian times a direction), or gauss_newton (J^T J times a direction, J the Jacobian)
  budget=S       seconds to measure; 0 advises by compiling alone (default: 30)
  devices=N      devices, on a CPU cores: a number or a list (default: 1)
  hardware=NAME  a machine that you do not have (conf/hardware), by compiling alone

Every derivative is checked before its time is kept. Ctrl-C prints the advice so far.
Exit status: 0, or 2 for bad input."""
_SHAPE = re.compile(r"([A-Za-z_]\w*)=(scalar|\d{1,15}(?:,\d{1,15})*)(?::(\w+))?")
_DTYPES = (*DTYPES, "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "bool")
_FIELDS_OF_FUNCTION = ("wrt", "target", "devices", "hardware")
_FIELDS_OF_WORKLOAD = (*VIEWS["problem"], "formulation", "memory_limit", "mode", "devices", "hardware")
_COLUMNS = ["method", "devices", "predicted_seconds", "measured_seconds", "memory_bytes", "left_out"]
# Last word of a column name -> function that formats its cells.
_FORMATS: dict[str, Callable[[Any], str]] = {"seconds": format_duration, "bytes": format_bytes}
_STOP_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
Request = dict[str, Any]  # the function or case to advise on, its inputs, devices, hardware, time budget


def execute(words: list[str], console: Console) -> None:
    """Find and print the fastest AD method for a function or workload."""
    if not words or {"-h", "--help"} & set(words):
        console.print(HELP, markup=False)
        return
    try:
        _advise_on_devices(_read_request(words), console)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped before there was any advice") from None


def _advise_on_devices(request: Request, console: Console) -> None:
    """Find and print the fastest AD method for each number of devices, in a process for each on a CPU.

    Raise `Refusal` or `KeyboardInterrupt` if there is no advice for any number of devices.
    """
    platform = None if request["hardware"] else find_platform()
    is_bound, usable = platform == "cpu", len(cores.usable_cores())
    for count in request["devices"] if is_bound else ():
        if type(count) is not int or not 0 < count <= usable:
            has = count_of(usable, "core")
            raise Refusal(f"devices={count}: this machine has {has}; use 1 to {usable}")
    if not request["case"]:
        _split_location(request["name"])  # refuse a missing file before JAX starts
    where = f"this machine ({platform})" if platform else request["hardware"]["name"]
    is_measured = request["budget"] and not request["hardware"]
    how = f"measured for up to {request['budget']:g} s" if is_measured else "by compiling alone"
    print_lines(console, [f"{request['name']} on {where}, devices={request['devices']}: {how}"])
    # On a CPU, each number of devices gets a separate process that is bound to one core per device.
    groups = [[count] for count in request["devices"]] if is_bound else [request["devices"]]
    share = request["budget"] / len(groups)
    seconds, refusals, is_stopped = dict[int, float](), dict[int, str](), False
    for group in groups:
        reply, is_stopped = _run_in_process(request | {"devices": group, "budget": share}, is_bound)
        if "refusal" in reply:
            refusals[group[0]] = reply["refusal"]
        elif reply:
            seconds[group[0]] = reply["seconds"]
        if is_stopped:
            break
    if not seconds:
        raise KeyboardInterrupt if is_stopped else Refusal(next(iter(refusals.values())))
    print_lines(console, [f"devices={count} is left out: {text}" for count, text in refusals.items()])
    if len(seconds) > 1:
        least = min(seconds.values())
        ratios = [f"{count_of(count, 'device')}: {each / least:.3g}" for count, each in seconds.items()]
        print_lines(console, [f"Times relative to the least: {', '.join(ratios)}"])


def _read_request(words: Sequence[str]) -> Request:
    """Parse the command-line arguments. Raise `Refusal` if an argument is invalid.

    The result has the keys "name" (of the function or workload), "case" (its fields, or None for a function),
    "inputs" (from --points and --shared), "devices" (list of device counts), "hardware" (configuration, or
    None for this machine), "budget" (seconds), for a function "wrt" and "target", and for a workload "mode".
    """
    parser = Parser(prog="scaling advise", add_help=False, allow_abbrev=False)
    parser.add_argument("words", nargs="*")
    for option in ("--points", "--shared"):
        parser.add_argument(option, action="append", default=[])
    options = parser.parse_intermixed_args(words)
    inputs = {option: _parse_shapes(option, getattr(options, option)) for option in ("points", "shared")}
    functions, fields = [word for word in options.words if "=" not in word], dict[str, str]()
    for name, value in (word.split("=", 1) for word in options.words if "=" in word):
        if name in fields:
            raise Refusal(f"{name}= is given twice: give each field once")
        fields[name] = value
    subjects = [len(functions), bool(inputs["points"]), "workload" in fields]
    if subjects not in ([1, True, False], [0, False, True]):
        example = "scaling advise spring.py:force --points x=100000,17, or workload=NAME and its fields"
        raise Refusal(f"advice is on one function with --points, or on one workload: {example}")
    if inputs["shared"] and not functions:
        raise Refusal("--shared has no effect with workload=, whose sizes give the shapes: omit --shared")
    if not re.fullmatch(r"\d{1,9}(\.\d*)?", budget := fields.pop("budget", "30")):
        raise Refusal(f"budget must be a number of seconds, zero or more, not {budget!r}")
    allowed = _FIELDS_OF_FUNCTION if functions else _FIELDS_OF_WORKLOAD
    if unused := [name for name in fields if name.partition(".")[0] not in allowed]:
        raise Refusal(f"{unused[0]}= has no effect on advice: use {', '.join(allowed)}, budget")
    ((config, _),) = compose(["study=function", *(f"{name}={value}" for name, value in fields.items())])
    devices, hardware = 1 if config["devices"] is None else config["devices"], config.get("hardware")
    if devices == []:
        raise Refusal("devices=[] is an empty list: give a number of devices, or several, such as [1,2]")
    devices = devices if isinstance(devices, list) else [devices]
    request = {
        "inputs": inputs, "budget": float(budget),
        "devices": [count for k, count in enumerate(devices) if count not in devices[:k]],
        "hardware": hardware if hardware and hardware["platform"] != "cpu" else None,
    }  # fmt: skip
    if functions:
        target = config["target"] or "jacobian"
        return request | {"name": functions[0], "case": None, "wrt": config["wrt"], "target": target}
    given = {name: config[name] for name in _FIELDS_OF_WORKLOAD[:-2] if config[name] is not None}
    cells = expand_study({}, {"points": 1024} | given | {"devices": 1})
    if len(cells) > 1:
        problem = f"advice is for one problem, and these fields describe {len(cells)}"
        raise Refusal(f"{problem}: only devices takes a list")
    fields = non_default_fields(cells[0].case)
    return request | {"name": config["workload"], "case": fields, "mode": config["mode"]}


def _parse_shapes(option: str, texts: Sequence[str]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Parse values of --points or --shared, such as "x=100,17", into a dict from name to (shape, dtype)."""
    inputs: dict[str, tuple[tuple[int, ...], str]] = {}
    for text in texts:
        match = _SHAPE.fullmatch(text)
        if match is None:
            example = "x=100000,17" if option == "points" else "stiffness=16 or rate=scalar"
            raise Refusal(f"--{option} takes NAME=SHAPE, such as {example}, not {text!r}")
        name, shape, dtype = match.groups()
        check_names("dtype", [dtype] if dtype else [], _DTYPES)
        if name in inputs:
            raise Refusal(f"--{option} {name}= is given twice: give each input once")
        sizes = () if shape == "scalar" else tuple(map(int, shape.split(",")))
        inputs[name] = sizes, dtype or "float32"
    return inputs


def _run_in_process(request: Request, is_bound: bool) -> tuple[dict[str, Any], bool]:
    """Run `main` in a new process. Return its reply, empty without advice, and whether a signal stopped it.

    If `is_bound`, the process uses one CPU core per device. It reads the request and writes the reply to a
    temporary file.
    """
    variables = environment.variables("cpu" if is_bound else "gpu") | {"TF_CPP_MIN_LOG_LEVEL": "2"}
    if not request["case"]:
        del variables["XLA_FLAGS"]  # check the derivative as the code to paste will run
    if is_bound or request["hardware"]:
        variables["JAX_PLATFORMS"] = "cpu"
    bound_to, is_stopped = cores.usable_cores()[: request["devices"][0]] if is_bound else None, False
    with tempfile.TemporaryFile("w+") as file:
        json.dump(request | {"cores": bound_to, "parent": os.getpid()}, file)
        file.seek(0)
        # In a session of its own, the process receives only signals from this one, once it is ready.
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
        command = [sys.executable, "-P", "-m", "scaling.cli.advise"]
        process = subprocess.Popen(command, stdin=file, env=os.environ | variables, start_new_session=True)
        while process.returncode is None:
            try:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
                process.wait()
            except KeyboardInterrupt:
                is_stopped = True
                process.send_signal(signal.SIGINT)  # it prints its advice so far
        file.seek(0)
        _, _, reply = file.read().partition("\n")
    if not reply and not is_stopped:
        text = "the process that compiles and measures the function died"
        fix = "if it printed no reason, memory may be short: try fewer points, or hardware=NAME"
        return {"refusal": f"{text}; {fix}"}, False
    return json.loads(reply or "{}"), is_stopped


def main() -> None:
    """Advise on the request in the file on standard input, and append the reply, for `_run_in_process`."""
    request = json.load(sys.stdin)
    die_with_parent(request["parent"])
    streams.prepare()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the parent sends it for any signal
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
        reply: dict[str, Any] = {"seconds": _advise(request)}
    except Refusal as refusal:
        reply = {"refusal": str(refusal)}
    except KeyboardInterrupt:  # there is no advice yet
        reply = {}
    except Exception:
        raise
    except BaseException as error:  # of the function, such as SystemExit
        reply = {"refusal": f"{request['name']} raised {type(error).__name__}: {error}"}
    os.write(0, f"\n{json.dumps(reply)}".encode())


def _advise(request: Request) -> float:
    """Find and print the best AD method. Return its time per call in seconds, or 0 if the time is unknown."""
    if request["cores"]:  # bind the process before JAX is imported
        os.sched_setaffinity(0, request["cores"])
    console = Console(width=140, highlight=False, emoji=False)
    specs = [spec for group in request["inputs"].values() for spec in group.values()]
    case = from_dict(request["case"]) if request["case"] else None
    dtypes = {case and case.dtype, *(dtype for _, dtype in specs)}
    try:
        import jax

        from scaling.advice import advisor
        from scaling.plan import hardware

        jax.config.update("jax_enable_x64", "float64" in dtypes)
        if request["cores"]:
            jax.config.update("jax_num_cpu_devices", len(request["cores"]))
        jax.devices()
    except Exception as error:
        reason = f"JAX cannot start: {type(error).__name__}: {error}"
        raise Refusal(f"{reason}; look at the variables JAX_* and the limits of your shell") from None
    with console.status("") as status:
        options = {name: request[name] for name in ("budget", "devices", "cores")}
        options["note"] = status.update if console.is_terminal else lambda text: None
        options["hardware"] = hardware.from_config(request["hardware"]) if request["hardware"] else None
        if case:
            sys.path.insert(0, os.getcwd())  # for a workload of the user, as in a worker
            advice = advisor.advise_case(case, mode=request["mode"], **options)
        else:
            function, options["import_line"] = import_function(request["name"])
            points, shared = (
                {name: jax.ShapeDtypeStruct(*spec) for name, spec in group.items()}
                for group in request["inputs"].values()
            )
            options |= {"wrt": request["wrt"], "target": request["target"]}
            advice = advisor.advise(function, points, shared, **options)
    text, table = str(advice), advice.table[_COLUMNS].astype(object)
    for name in _COLUMNS:
        show = _FORMATS.get(name.rpartition("_")[2], str)
        table[name] = [show(value) if value == value and value is not None else "" for value in table[name]]
    rows = table.to_string(index=False, max_colwidth=60).splitlines()
    print_lines(console, [*rows, "", *text.splitlines()])
    return advice.seconds(advice.best) or 0.0


def _split_location(text: str) -> tuple[str, str]:
    """Split "FILE.py:NAME" or "MODULE:NAME". Raise `Refusal` if the text is malformed or the file missing."""
    where, _, name = text.rpartition(":")
    if not where or not name.isidentifier() or (where.endswith(".py") and not Path(where).is_file()):
        fix = "write FILE.py:NAME, such as spring.py:force"
        raise Refusal(f"{text!r} is not a function of a file here: {fix}")
    if where.endswith(".py") and not Path(where).stem.isidentifier():
        raise Refusal(f"{where} cannot be imported by its name: rename it, such as spring.py")
    return where, name


def import_function(text: str) -> tuple[Callable[..., Any], str]:
    """Import a function, such as "spring.py:force". Return the function and its Python import statement.

    Raise `Refusal` if the text is malformed, or if the function cannot be imported.
    """
    where, name = _split_location(text)
    path, is_file = Path(where), where.endswith(".py")
    module_name = path.stem if is_file else where
    sys.path.insert(0, str(path.resolve().parent if is_file else Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        location = innermost_location(error)
        suffix = f" ({location})" if location else ""
        raise Refusal(f"{where} cannot be imported: {type(error).__name__}: {error}{suffix}") from None
    if is_file and Path(getattr(module, "__file__", None) or "").resolve() != path.resolve():
        raise Refusal(f"{where} has the name of another module, {module_name}: rename it")
    if not callable(getattr(module, name, None)):
        functions = inspect.getmembers(module, inspect.isfunction)
        own = [key for key, value in functions if value.__module__ == module_name]
        raise unknown_name(f"function of {where}", name, own or ["none"])
    return getattr(module, name), f"from {module_name} import {name}"


if __name__ == "__main__":
    main()
