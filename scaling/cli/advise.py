"""Implement `scaling advise`: parse the arguments, and find the fastest AD method in a new process."""

import importlib
import inspect
import multiprocessing
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from rich.console import Console

from scaling.cli import streams
from scaling.cli.streams import print_lines
from scaling.core import environment
from scaling.core.case import DTYPES, VIEWS, Refusal, check_names, unknown_name
from scaling.core.formatting import count_of, format_bytes, format_duration, innermost_location
from scaling.study.arguments import Parser
from scaling.study.compose import compose
from scaling.study.grid import expand_study
from scaling.workers import cores, event_channel
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
    request = _read_request(words)
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
    how = f"measured for {request['budget']:g} s" if is_measured else "by compiling alone"
    print_lines(console, [f"{request['name']} on {where}, devices={request['devices']}: {how}"])
    # On a CPU, each number of devices gets a separate process that is bound to one core per device.
    groups = [[count] for count in request["devices"]] if is_bound else [request["devices"]]
    share = request["budget"] / len(groups)
    seconds = [_run_in_process(request | {"devices": group, "budget": share}, is_bound) for group in groups]
    if len(groups) > 1:
        times = zip(request["devices"], seconds, strict=True)
        ratios = [f"{count_of(count, 'device')}: {each / min(seconds):.3g}" for count, each in times]
        print_lines(console, [f"Times relative to the least: {', '.join(ratios)}"])


def _read_request(words: Sequence[str]) -> Request:
    """Parse the command-line arguments. Raise `Refusal` if an argument is invalid.

    The result is a dict with the keys "name" (of the function or workload), "case" (None for a function),
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
    request = {
        "inputs": inputs, "budget": float(budget),
        "devices": devices if isinstance(devices, list) else [devices],
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
    return request | {"name": config["workload"], "case": cells[0].case, "mode": config["mode"]}


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


def _run_in_process(request: Request, is_bound: bool) -> float:
    """Run `_advise` in a new process, and return its result. If `is_bound`, use one CPU core per device."""
    variables = environment.variables("cpu" if is_bound else "gpu") | {"TF_CPP_MIN_LOG_LEVEL": "2"}
    if not request["case"]:
        del variables["XLA_FLAGS"]  # check the derivative as the code to paste will run
    os.environ.update(variables)
    if is_bound or request["hardware"]:
        os.environ["JAX_PLATFORMS"] = "cpu"
    # In a session of its own, the process receives signals from this one only, and not before it is ready.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=os.setsid) as pool:
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
        bound_to = cores.usable_cores()[: request["devices"][0]] if is_bound else None
        more = {"cores": bound_to, "parent": os.getpid()}
        future = pool.submit(_advise_or_refuse, request | more)
        while True:
            try:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
                return future.result()
            except KeyboardInterrupt:
                if future.done():
                    raise KeyboardInterrupt("stopped before there was any advice") from None
                for child in multiprocessing.active_children():  # it prints its advice so far
                    os.kill(child.pid or 0, signal.SIGINT)
            except BrokenProcessPool:
                text = "the process that compiles and measures the function died"
                fix = "if it printed no reason, memory may be short: try fewer points, or hardware=NAME"
                raise Refusal(f"{text}; {fix}") from None


def _advise_or_refuse(request: Request) -> float:
    """Call `_advise`, and raise `Refusal` instead of an exception that the parent process cannot unpickle."""
    try:
        event_channel.die_with_parent(request["parent"])
        streams.prepare()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # the parent sends it for any signal
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
        return _advise(request)
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:  # its class may not be known in the parent
        raise Refusal(f"{request['name']} raised {type(error).__name__}: {error}") from None


def _advise(request: Request) -> float:
    """Find and print the best AD method. Return its time per call in seconds, or 0 if the time is unknown."""
    if request["cores"]:  # bind the process before JAX is imported
        os.sched_setaffinity(0, request["cores"])
    console = Console(width=140, highlight=False, emoji=False)
    specs = [spec for group in request["inputs"].values() for spec in group.values()]
    dtypes = {getattr(request["case"], "dtype", None), *(dtype for _, dtype in specs)}
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
        if request["case"]:
            sys.path.insert(0, os.getcwd())  # for a workload of the user, as in a worker
            advice = advisor.advise_case(request["case"], mode=request["mode"], **options)
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
