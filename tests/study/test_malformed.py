"""Tests of malformed inputs: each ends with one line and exit status 2, and starts nothing.

The inputs are in tables, one per kind of input. All tests call `cli.main` in this process. A timer stops a command
that takes longer than `LIMIT`, so that no test asserts a duration.
"""

import contextlib
import faulthandler
import os
import re
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from scaling.cli import run
from scaling.core.case import CHOICES, OPTIONS
from scaling.core.record import to_line
from scaling.launcher import supervise
from scaling.plan import plan_study
from tests.support import machines
from tests.support.commands import RBF

pytestmark = pytest.mark.thin(25, "thorough")

LIMIT = 15  # seconds
set_handler = signal.signal  # `call_main` replaces signal.signal until the end of a test
MINE = ("run", "--config-dir", "my_conf", "study=mine")
CONCRETE = ("run", "study=function", "workload=linear", "devices=1", "where=True")
BOTH = (*CONCRETE, "api=shard_map", "split=both")


@dataclass(frozen=True)
class Input:
    """A malformed input: the arguments of the command, a pattern of the error, and files to write before."""

    arguments: tuple[str, ...]
    pattern: str
    files: dict[str, str | bytes] = field(default_factory=dict)


def user_study(content, pattern, arguments=MINE, **files):
    """Return an input with a user's study file of this content."""
    return Input(tuple(arguments), pattern, {"my_conf/study/mine.yaml": content, **files})


def user_module(content, pattern):
    """Return an input with a user's workload module of this content."""
    return Input(("run", "study=function", "workload=mine"), pattern, {"mine.py": content})


TABLES: dict[str, dict[str, Input]] = {}

# ---- Values of the fields of a case.

INVALID_COUNTS = {
    "zero": "0",
    "a negative number": "-1",
    "a fraction": "1.5",
    "nan": "nan",
    "a word": "eight",
    "true": "true",
    "a mapping": "{a: 1}",
    "a list in a list": "[[1,2]]",
    "a numeral in quotes": "'8'",
    "a huge number": "9" * 40,
}  # fmt: skip
INVALID_POINTS = {
    "a float": "1e3", "infinity": "inf", "an empty text": "''", "a numeral of another script": "'٣'",
    "a number with a unit": "8kg", "too many digits for Python": "9" * 5000,
}  # fmt: skip
COUNTS = ("points", "devices", "chunk", "block", "memory_limit", "sizes.m")
TABLES["counts"] = (
    {
        f"{name} is {description}": Input((*RBF, f"{name}={text}"), f"{name} must be (a positive integer|bytes).*, not ")
        for i, name in enumerate(COUNTS)
        for j, (description, text) in enumerate(INVALID_COUNTS.items())
        if (i == 0 or (i + j) % 3 == 0)  # one kind for all fields is parsed by one function
        and (name, description) not in {("memory_limit", "a numeral in quotes"), ("sizes.m", "a mapping")}
    }
    | {
        f"points are {description}": Input((*RBF, f"points={text}"), "points.*(integer|15 digits)")
        for description, text in INVALID_POINTS.items()
    }
    | {
        "a data seed is negative": Input((*RBF, "data_seed=-1"), "data_seed must be an integer, zero or more, not -1" ),
        "a data seed is a fraction": Input((*RBF, "data_seed=0.5"), "data_seed must be an integer, zero or more, not 0.5" ),
        "a data seed is a word": Input((*RBF, "data_seed=random"), "data_seed must be .*'random'"),
        "points are a list with null": Input((*RBF, "points=[1,null]"), "points must be a positive integer, not null" ),
        "devices are a list with a word": Input((*RBF, "devices=[1,two]"), "devices must be a positive integer, not 'two'" ),
        "sizes are a list": Input((*RBF, "sizes=[1,2]"), "sizes"),
        "sizes are a number": Input((*RBF, "sizes=3"), "sizes"),
        "a memory limit has an unknown unit": Input((*RBF, "memory_limit=2XB"), "memory_limit must be bytes.*2XB" ),
        "a memory limit is zero bytes": Input((*RBF, "memory_limit=0GB"), "memory_limit must be a positive integer, not 0" ),
        "a memory limit is negative": Input((*RBF, "memory_limit=-2GB"), "memory_limit must be bytes.*-2GB"),
        "a memory limit is huge": Input((*RBF, f"memory_limit={'9' * 400}GB"), "memory_limit must be "),
        "a memory limit has digits of another script": Input((*RBF, "memory_limit='٣GB'"), "memory_limit must be bytes" ),
    }
)  # fmt: skip

INVALID_NAMES = {
    "an unknown word": "nosuch", "an empty text": "''", "a number": "3", "a mapping": "{a: 1}", "a list in a list": "[[x]]",
}  # fmt: skip
TABLES["names"] = {
    f"{name} is {description}": Input((*RBF, f"{name}={text}", "where=True"), f"unknown {name} .*choose from {next(iter(values))}")
    for i, (name, values) in enumerate((CHOICES | OPTIONS).items())
    for j, (description, text) in enumerate(INVALID_NAMES.items())
    if j in (0, 1 + i % (len(INVALID_NAMES) - 1))  # an unknown value for each field, and one of the others
} | {
    f"{name} is {description}": Input((*RBF, f"{name}={INVALID_NAMES[description]}", "where=True"), f"{name} must be a name, not ")
    for i, name in enumerate(("workload", "target", "variant", "wrt", "engine", "formulation", "forward"))
    for j, description in enumerate(("an empty text", "a number", "a list in a list", "a mapping"))
    if (i + j) % 4 == 0
} | {
    f"{name} is {text}": Input((*RBF, f"{name}={text}"), f"{name} must be true or false, not ")
    for name, texts in {"jit": ("1", "[[true]]", "{a: 1}", "'true'"), "overlap": ("maybe",)}.items()
    for text in texts
} | {
    f"a mesh of {text}": Input((*BOTH, f"mesh={text}"), "mesh.*such as 2x4|mesh=.*choose from 1x1")
    for text in (
        *("2", "2x", "x2", "2x4x8", "0x2", "-1x2", "2*4", "twoxfour", "[[1]]", "1.5x2", "7x9", "'²x1'"),
        "9" * 5000 + "x1",
    )
} | {
    "a mode that is true": Input((*RBF, "mode=true"), "unknown mode true"),
    "a mode in another script": Input((*RBF, "mode='ячейка'"), "unknown mode 'ячейка'"),
    "a list of modes with an unknown one": Input((*RBF, "mode=[jacfwd,nosuch]"), "unknown mode 'nosuch'"),
    "a scaling that is a list in a list": Input((*RBF, "scaling=[[weak]]"), "unknown scaling"),
    "an unknown target": Input((*CONCRETE, "target=jacobean"), "unknown target of linear 'jacobean'.*did you mean 'jacobian'"),
    "an unknown variant": Input((*CONCRETE, "variant=odd"), "unknown variant of linear 'odd'"),
    "an unknown formulation": Input((*CONCRETE, "formulation=odd"), "unknown formulation of linear 'odd'"),
    "an unknown engine": Input((*CONCRETE, "engine=torchh"), "unknown engine 'torchh'.*did you mean 'torch'"),
    "a removed engine": Input((*CONCRETE, "engine=julia/Zygote"), "unknown engine 'julia/Zygote'.*torch"),
    "an unknown input": Input((*CONCRETE, "wrt=Q"), r"floating-point input to differentiate linear.* \(wrt, joined by \+\) 'Q'.*W"),
    "an input named twice": Input((*CONCRETE, "wrt=W+W"), r"wrt='W\+W' names an input twice"),
    "a plus sign without inputs": Input((*CONCRETE, "wrt=+"), "unknown floating-point input to differentiate"),
    "an unknown size": Input((*CONCRETE, "sizes.q=4"), "unknown size of linear 'q'.*p, o"),
    "a dtype that the workload does not support": Input((*CONCRETE, "dtype=int8"), "unknown dtype 'int8'"),
    "batch with a mode that implies it": Input((*CONCRETE, "mode=vmap_jacfwd", "batch=whole"), "already sets batch"),
}  # fmt: skip

# ---- Fields that have no effect.

FUNCTION = ("run", "study=function", "devices=1", "where=True")
AUTOGRAD = "linear mode=jacrev engine=autograd"
TABLES["fields without effect"] = {
    f"{others} {field}": Input((*FUNCTION, *f"workload={others}".split(), field), f"{field} has no effect{pattern}")
    for others, field, pattern in [
        ("linear mode=jacfwd api=jit", "mesh=1x1", ".*split=both"),
        ("linear mode=jacfwd api=jit", "mesh=7x9", ".*split=both"),
        ("linear mode=jacfwd api=jit", "forward=W", ".*mode=mixed"),
        ("linear mode=jacfwd api=jit", "forward=nope", ".*mode=mixed"),
        ("linear mode=jacfwd api=jit", "overlap=true", ".*split=data"),
        ("linear mode=jacrev api=shard_map split=data", "overlap=true", ".*devices"),
        ("linear mode=jacfwd api=jit", "split=seeds", " with api=jit"),
        ("linear mode=analytic", "chunk=4", " with mode=analytic"),
        ("linear mode=grad_of_sum", "chunk=4", " with mode=grad_of_sum"),
        ("linear mode=value", "chunk=auto", " with mode=value"),
        ("linear mode=analytic", "block=4", " with mode=analytic"),
        ("linear mode=jacfwd api=jit batch=whole", "block=4", " with batch=whole"),
        ("linear mode=jacfwd api=jit chunk=auto", "block=4", " with chunk=auto"),
        ("linear mode=analytic", "batch=whole", " with mode=analytic"),
        ("linear mode=value", "seeds=colored", " with mode=value"),
        ("linear mode=analytic", "storage=host", " with mode=ana"),
        ("linear mode=jacfwd api=jit", "remat=dots_saveable", " with mode=jacfwd"),
        ("linear mode=fwd_over_fwd target=hvp", "remat=dots_saveable", ""),
        ("linear mode=fwd_over_rev", "reduce=gram", ".*hessian"),
        ("linear mode=value", "reduce=gram", " with mode=value"),
        ("linear mode=jacrev api=shard_map split=data", "reduce=gram", " with split=data"),
        ("rbf mode=analytic", "formulation=rowwise", " with mode=analytic"),
        ("linear mode=value", "wrt=W", " with mode=value"),
        ("rbf target=kernel", "mode=jacrev", " with target=kernel"),
        ("rbf target=grad sizes.m=8", "points=7", " with target=grad"),
        (AUTOGRAD, "remat=dots_saveable", " with engine=autograd"),
        (AUTOGRAD, "precision=high", " with engine=autograd"),
        (AUTOGRAD, "api=pmap", " with engine=autograd"),
        (AUTOGRAD, "memory_limit=1000000000", " with engine=autograd"),
    ]
} | {
    "a swept value that no case of a study uses": user_study(
        "{workload: linear, mode: analytic, split: points, chunk: [null, 4]}",
        "chunk=4 has no effect with mode=analytic",
    ),
    "a value of one grid that another grid could use": user_study(
        "{workload: linear, mode: jacrev, grids: [{chunk: 4}, {mode: analytic, chunk: 4}]}",
        "chunk=4 has no effect.*analytic",
    ),
    "a shared value that no grid uses": user_study(
        "{workload: linear, mesh: 1x1, grids: [{split: points}, {split: seeds}]}",
        "mesh=1x1 has no effect.*split=both",
    ),
    "a value of a part that it does not use": user_study(
        "{parts: {one: {workload: linear, mode: analytic, chunk: 4}}}",
        "chunk=4 has no effect with mode=analytic",
    ),
}  # fmt: skip

# ---- where

TABLES["where"] = {
    f"where is {description}": user_study(f"{{workload: linear, where: {text}}}", "where")
    for description, text in {
        "a list": "[devices == 1]", "an empty list": "[]", "a number": "3", "a float": "0.5", "a mapping": "{devices: 1}",
        "an empty mapping": "{}", "an empty text": "''", "a list of lists": "[[1]]", "a date": "2024-01-01",
    }.items()
} | {
    f"where {description}": user_study("{workload: linear, where: '" + text.replace("'", "''") + "'}", f"where.*{pattern}")
    for description, (text, pattern) in {
        "calls": ("open(1) == 1", "Call is not allowed"),
        "reads an attribute": ("api.x == 1", "Attribute is not allowed"),
        "is incomplete": ("devices ==", "cannot be read"),
        "contains an unknown name": ("devcies == 1", " 'devcies'.*did you mean 'devices'"),
        "divides by zero": ("points // 0 == 1", "zero"),
        "compares text with a number": ("api < 3", "unknown api 3: choose from jit, shard_map, pmap"),
        "orders text and a number": ("workload < 3", "workload must be a name, not 3"),
        "contains a power": ("9 ** 9 ** 9 > 1", "Pow is not allowed"),
        "is nested too deeply": ("(" * 150 + "1" + ")" * 150 + " < devices and " * 3 + "not " * 150 + "devices", "."),
        "contains 2,000 negations": ("not " * 2000 + "devices", "."),
        "contains a number of 5,000 digits": ("9" * 5000 + " > 1", "cannot be read"),
        "is a lambda": ("(lambda: 1)()", "is not a condition"),
        "is a statement": ("import os", "cannot be read"),
        "continues after a backslash": ("devices == 1\\0", "cannot be read"),
        "contains an alias of a mode": ("mode != 'vmap_jacfwd'", "is written mode == 'jacfwd' and batch == 'vmap'"),
        "compares a mode with no mode": ("mode in ['jacfwd', 'jacfw']", "unknown mode 'jacfw': choose from.*'jacfwd'"),
        "compares a number with a text": ("memory_limit != '2GB'", "memory_limit must be a positive integer, not '2GB'"),
        "compares a null that the workload fills in": ("target == 'jacobian'", "target is null, the default of linear: name it"),
        "is two conditions with a comma": ("devices == 1, devices == 2", "is not a condition; compare it"),
        "compares only the first of two texts": ("api == 'jit' or 'pmap'", "'pmap' is not a condition; compare it"),
        "compares only the first of two numbers": ("devices == 3 or 2", "2 is not a condition; compare it"),
        "is a field": ("devices", ": devices is not a condition; compare it"),
        "is a sum of fields": ("points + 1", "points \\+ 1 is not a condition; compare it"),
        "is a number": ("4", "4 is not a condition; compare it"),
        "is a negative number": ("-1", "-1 is not a condition; compare it"),
        "joins two texts": ("api == ('jit' or 'pmap')", "'jit' is not a condition; compare it"),
        "negates a text": ("not mode", ": mode is not a condition; compare it"),
        "joins a field and a condition": ("mode and jit", ": mode is not a condition; compare it"),
        "is a sum of numbers": ("devices == 3 or (1 + 1)", "1 \\+ 1 is not a condition; compare it"),
        "is in another script": ("устройства == 1", " 'устройства': choose from"),
    }.items()
} | {
    "where on the command line is a list": Input((*RBF, "where=[devices==1]"), "where|quote"),
    "where on the command line is a number": Input((*RBF, "where=7"), "where must be"),
    "where on the command line is a mapping": Input((*RBF, "where={devices: 1}"), "where must be"),
}  # fmt: skip

# ---- Study files.

BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(9)
)
MAPS = "a: &a {x: 1}\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} {{p: *{chr(97 + i)}, q: *{chr(97 + i)}, r: *{chr(97 + i)}}}\n"
    for i in range(20)
)
TABLES["study files"] = {
    f"a study that is {description}": user_study(content, pattern)
    for description, (content, pattern) in {
        "an integer": ("3", "study/mine.yaml: Invalid loaded object type: int; correct this file"),
        "a word": ("word", "unknown study key 'word'"),
        "a list of grids": ("- {workload: linear}\n", "mine.*mapping"),
        "null": ("null", "mine|workload"),
        "only comments": ("# nothing\n", "workload"),
        "two documents": ("workload: linear\n---\nworkload: rbf\n", "mine.yaml.*document"),
        "binary": (bytes(range(256)), "^scaling: my_conf/study/mine.yaml: 'utf-8' codec can't decode byte"),
        "NUL bytes": (b"workload: lin\0ear\n", "study/mine.yaml: unacceptable character #x0000: .*not allowed; correct"),
        "not UTF-8": ("workload: linear # é".encode("latin-1"), "study/mine.yaml: 'utf-8' codec can't decode byte"),
        "UTF-16": ("workload: linear\n".encode("utf-16"), "study/mine.yaml: 'utf-8' codec can't decode byte"),
        "indented by tabs": ("grids:\n\t- workload: linear\n", "mine.yaml.*tab|mine.yaml.*\\\\t|mine.yaml"),
        "an unterminated text": ("workload: 'linear\n", "mine.yaml"),
        "a recursive anchor in a list": ("workload: linear\npoints: &a [*a]\n", "study/mine.yaml: .*refers to itself, or has too"),
        "a recursive anchor in a mapping": ("workload: linear\nsizes: &a {p: *a}\n", "study/mine.yaml: .*refers to itself"),
        "a recursive anchor at the root": ("&a\nworkload: linear\ngrids: [*a]\n", "study/mine.yaml: .*refers to itself, or has too"),
        "an anchor bomb": ("workload: linear\n" + BOMB, "mine.yaml.*alias"),
        "an anchor bomb of mappings": ("workload: linear\n" + MAPS, "mine.yaml.*alias"),
        "an anchor bomb in a field": (BOMB + "workload: linear\npoints: *j\n", "mine.yaml.*alias"),
        "an unknown alias": ("workload: *nowhere\n", "mine.yaml.*nowhere"),
        "nested 100 deep": ("workload: linear\npoints: " + "[" * 100 + "]" * 100, "points must be a positive integer"),
        "nested 100,000 deep": ("workload: linear\npoints: " + "[" * 100_000 + "]" * 100_000, "refers to itself, or has too"),
        "mappings 10,000 deep": ("{a: " * 10_000 + "1" + "}" * 10_000, "has too many levels"),
        "a gigantic list": (f"workload: linear\npoints: [{', '.join(map(str, range(1, 50_000)))}]", "mine.yaml"),
        "a duplicate key": ("workload: linear\npoints: 6\npoints: 8\n", "mine.yaml, line 3: .*duplicate key points; correct this"),
        "a duplicate key in a grid": ("grids: [{workload: linear, points: 6, points: 8}]", "mine.yaml.*duplicate key.*points"),
        "an object of Python": ("workload: !!python/object/apply:os.system ['touch owned']", "mine.yaml.*python/object"),
        "a name of Python": ("workload: !!python/name:os.system", "mine.yaml.*python/name"),
        "a value unlike its tag": ("workload: linear\njit: !!bool maybe", "study/mine.yaml: .*maybe"),
        "an unknown tag": ("workload: !mine linear", "mine.yaml.*!mine"),
        "a merge of a list": ("workload: linear\n<<: [1]\n", "mine.yaml"),
        "a merge key of a word": ("workload: linear\n<<: points\n", "mine.yaml"),
        "keys that are numbers": ("workload: linear\n3: 4\n", "unknown study key '?3"),
        "a key that is a list": ("workload: linear\n? [1, 2]\n: 3\n", "mine.yaml"),
        "an empty key": ("{workload: linear, '': 3}", "unknown study key '': choose from"),
        "a key that is null": ("workload: linear\nnull: 3\n", "study/mine.yaml: a key is null or ~; correct this file"),
        "grids in a grid": ("{workload: rbf, grids: [{grids: []}]}", r"unknown study key 'grids': .*where \(in .*grid 1\)"),
        "an option of a run": ("{workload: rbf, sampling: {seconds: 1}}", "unknown study key 'sampling': choose from workload"),
        "a study of its own": ("{study: {workload: rbf}}", "unknown study key 'study': choose from workload"),
        "a list of sizes that a grid replaces": (
            "{workload: linear, sizes: [1], grids: [{sizes: {p: 4}}]}", r"sizes must be a mapping.*\[1\] \(in study/mine.yaml\)"
        ),
        "a where that the grids replace": (
            "{workload: rbf, where: devices = 1, grids: [{where: devices == 1}]}", "where='devices = 1' cannot be read",
        ),
        "a where without quotes": ("{workload: rbf, where: mode == jacfwd}", "write a text in quotes, 'jacfwd'"),
        "a list of no grid": ("{workload: rbf, grids: []}", r"grids must be a list .*, not \[\]: .*in study/mine.yaml"),
        "an empty list of values": (
            "{workload: rbf, grids: [{}, {mode: []}]}", r"no cases with mode=\[\].*\(in study/mine.yaml, grid 2\)",
        ),
        "an invalid value in a grid": ("{workload: rbf, grids: [{}, {points: 0}]}", r"not 0 \(in study/mine.yaml, grid 2\)"),
        "an invalid value beside grids": ("{workload: rbf, points: 0, grids: [{}, {}]}", r"not 0 \(in study/mine.yaml\)"),
        "an unknown size in a grid of a part": (
            "{workload: linear, parts: {one: {grids: [{sizes: {p: 4}}, {sizes: {q: 4}}]}}}",
            r"unknown size of linear 'q'.*\(in part one of study/mine.yaml, grid 2\)",
        ),
        "a part that is a word": ("{parts: {one: rbf}}", "parts must be a mapping"),
        "parts off": ("{parts: off}", "parts must be a mapping of studies by name, not 'off'"),
        "parts of parts of parts": ("{parts: {one: {parts: {two: {points: 0, workload: rbf}}}}}", "points must be a positive"),
        "a title that is a list": ("{workload: linear, title: [1]}", "title must be"),
        "a file of another package": ("# @package _global_\nworkload: linear\n", "study=mine is not a mapping: write a mapping"),
        "a study that is a number": ("# @package _global_\nstudy: 3\n", "study=mine is not a mapping: write a mapping"),
        "an unknown default": ("defaults: [nowhere]\nworkload: linear\n", "nowhere"),
        "an unknown default with a space": ("defaults: [optional no]\n", "'study/mine': .*load 'study/optional no'.; correct"),
        "a default that is a number": ("defaults: [1]\nworkload: linear\n", "study=mine: "),
        "a default of another folder": ("defaults: [../cluster/slurm]\nworkload: linear\n", "unknown study key '': choose from"),
        "a default of itself": ("defaults: [mine]\nworkload: linear\n", "refers to itself, or has too many levels"),
        "defaults that are a word": ("defaults: rbf\nworkload: linear\n", "defaults|mine"),
        "an unknown interpolation": ("workload: linear\npoints: ${nowhere}\n", "nowhere"),
        "an interpolation of itself": ("workload: linear\npoints: ${study.points}\n", "Recursive"),
        "an incomplete interpolation": ("workload: linear\npoints: ${points\n", "study/mine.yaml: .*points; correct this file"),
        "an unknown resolver": ("workload: linear\npoints: ${sum:1,2}\n", "sum"),
        "a missing value": ("workload: linear\npoints: ???\n", "points"),
        "a date for points": ("{workload: linear, points: 2024-01-01}", "points|mine"),
        "a binary value": ("{workload: !!binary aGVsbG8=}", "workload|mine"),
        "a set": ("workload: linear\npoints: !!set {1, 2}\n", "points|mine"),
        "a number with a leading zero": ("{workload: linear, points: 010}", "points must be a positive integer, not '010'"),
        "an invalid octal number": ("{workload: linear, points: 0o1x}", "points must be a positive integer, not '0o1x'"),
        "yes for a jit": ("{workload: linear, jit: 'yes'}", "jit must be true or false, not 'yes'"),
        "no for a jit": ("{workload: linear, jit: no}", "jit must be true or false, not 'no'"),
        "off for a mode": ("{workload: linear, mode: off}", "unknown mode 'off': choose from"),
        "null for a dtype": ("{workload: linear, dtype: null}", "unknown dtype null: choose from float32"),
        "null in a list of counts": ("{workload: linear, points: [1, ~]}", "points must be a positive integer, not null"),
        "true for a size": ("{workload: linear, sizes: {p: true}}", "sizes.p must be a positive integer, not true"),
        "a size that is a mapping": ("{workload: linear, sizes: {p: {q: 1}}}", "sizes.p must be a positive integer"),
        "sizes with a key that is a number": ("{workload: linear, sizes: {3: 1}}", "unknown size of linear '?3"),
        "a size by another name": ("{workload: linear, sizes: {points: 8}}", "unknown size of linear 'points'"),
    }.items()
} | {
    f"an anchor bomb in {description}": Input(
        (*MINE[:-1], f"study={name}"),
        "alias",
        {"my_conf/study/mine.yaml": content, "my_conf/parts/bomb.yaml": "workload: linear\n" + BOMB},
    )
    for description, name, content in [
        ("a default", "mine", "defaults: [/parts/bomb@parts.bomb]\n"),
        ("a default of another group", "mine", "defaults: [{/parts@parts.bomb: bomb}]\n"),
        ("a list of defaults", "mine", "defaults: [{/parts: [bomb]}]\n"),
        ("a default whose key is escaped", "mine", '"def\\x61ults": [/parts/bomb@parts.bomb]\n'),
        ("a file named with its ending", "mine.yaml", "workload: linear\n" + BOMB),
        ("a file whose name is in quotes", "'mine'", "workload: linear\n" + BOMB),
    ]
} | {
    "a tracking file without a name": Input(
        (*MINE, "tracking=mine"),
        "tracking=mine has no key `name`: add `defaults: .wandb.` at its top",
        {"my_conf/study/mine.yaml": "workload: linear", "my_conf/tracking/mine.yaml": "project: 3"},
    ),
    "a plan of a study that is a number": user_study(
        "# @package _global_\nstudy: 3\n", "study=mine is not a mapping", ("plan", *MINE[1:], "hardware=v5p")
    ),
    "a tracking file that is a list": Input(
        (*MINE, "tracking=mine"),
        "tracking=mine is not a mapping: .*such as tracking=none",
        {"my_conf/study/mine.yaml": "workload: linear", "my_conf/tracking/mine.yaml": "[1]"},
    ),
    "a cluster that is a number": user_study(
        "workload: linear\n", "cluster=five is not a mapping: .*such as cluster=none", (*MINE, "cluster=five"),
        **{"my_conf/cluster/five.yaml": "# @package _global_\ncluster: 5\n"},
    ),
    "a list of sizes in a grid that the command line completes": user_study(
        "{workload: linear, grids: [{sizes: [1]}]}", r"sizes must be a mapping.*\[1\] \(in study/mine.yaml, grid 1\)",
        (*MINE, "sizes.p=8"),
    ),
    "a study that is a folder": Input(MINE, "mine", {"my_conf/study/mine.yaml/inside": ""}),
    "a study in a folder of another name": Input(MINE, "unknown study 'mine'", {"my_conf/studies/mine.yaml": "workload: linear"}),
    "a study with another ending": Input(MINE, "unknown study 'mine'", {"my_conf/study/mine.yml": "workload: linear"}),
}  # fmt: skip

# ---- Arguments of the command line.

TABLES["words"] = {
    " ".join(arguments) or "nothing": Input(tuple(arguments), pattern)
    for arguments, pattern in [
        (("run", "workload=rbff"), "unknown workload 'rbff': choose from arrowhead, linear, .*did you mean 'rbf'"),
        ((*RBF, "mode=jacfw"), "unknown mode 'jacfw'.*jacrev.*did you mean 'jacfwd'"),
        ((*RBF, "devises=[1]"), "unknown key 'devises'.*did you mean 'devices'"),
        ((*RBF, "sampling.secs=1"), "unknown key 'sampling.secs': `scaling run --help` and"),
        ((*RBF, "sampling={secs: 1}"), "unknown key 'sampling.secs'"),
        ((*RBF, "hardware.chips=1"), "unknown key 'hardware.chips'"),
        ((*RBF, "study.points=3"), "unknown key 'study.points'"),
        ((*RBF, "study.pints=3"), "unknown key 'study.pints'"),
        ((*RBF, "sizes={d: 1}", "sizes={}", "dry_run=true"), "sizes is given twice"),
        ((*RBF, "devices=all"), "^scaling: devices=all is for `scaling plan`: write numbers here, such as 'devices=.1,2.'$"),
        ((*RBF, "sizes.m=range(1,3)"), r"sizes.m must be a positive integer, not 'range\(1,3\)'"),
        ((*RBF, "wrt='x,m'", "mode=jacfwd"), r"\(wrt, joined by \+\) 'x,m'"),
        (("run", "workload=poisson"), r"in study/smoke.yaml, grid 1; study=function runs it alone\)"),
        ((*RBF, "hydra.run.dir=out"), "unknown key 'hydra': choose from"),
        ((*RBF, "+study=smoke"), "study is given twice: write it once$"),
        ((*RBF, "tracking.project=a"), "tracking.project has no effect with tracking=none: .*tracking=wandb"),
        ((*RBF, "+tracking.colour=red", "dry_run=true"), "unknown key of tracking=none 'colour'"),
        ((*RBF, "tracking.name=null", "tracking.project=a"), "tracking=none has no key `name`: add `defaults: .wandb.` at its top"),
        ((*RBF, "tracking.name=mine", "dry_run=true"), "unknown tracking.name 'mine': choose from none, wandb"),
        ((*RBF, "cluster.name=[slurm]", "dry_run=true"), r"unknown cluster.name \['slurm'\]: choose from"),
        (("run", "study=../rbf"), "study=../rbf: name one study by the name of its file, such as study=smoke"),
        ((*RBF, "devices=[1,64]", "points=6400", "api=pmap"), r"devices=64 exceed the .*use devices=\[1\]; oversubscribe=true"),
        ((*RBF, "where=False"), "the study has no cases"),
        (("run", "study=smoke", "points=[6,12]", "dry_run=true", "max_cases=2"), "max_cases=2"),
        ((*RBF, "max_cases=0"), "max_cases must be"),
        ((*RBF, "mode=jacfwd,jacrev"), r"to run each of several values, write 'mode=\[jacfwd,jacrev\]'"),
        (("run", "study=null"), "study"),
        (("run", "study=[rbf,linear]"), "study"),
        (("run", "study=smoke,rbf"), "study=smoke,rbf: name one study by the name of its file, such as study=smoke"),
        ((*RBF, "--dry-run"), "'--dry-run': choose from .*--config-dir; did you mean 'dry_run'"),
        ((*RBF, "--dry_run"), "did you mean 'dry_run'"),
        ((*RBF, "--dryrun"), "did you mean 'dry_run'"),
        ((*RBF, "--devices", "2"), "'--devices'.*did you mean 'devices'"),
        ((*RBF, "--devices=2"), "'--devices'.*did you mean 'devices'"),
        ((*RBF, "--results=here"), "did you mean 'results'"),
        ((*RBF, "--study", "rbf"), "did you mean 'study'"),
        ((*RBF, "--oversubscribe"), "did you mean 'oversubscribe'"),
        ((*RBF, "--where", "devices==1"), "did you mean 'where'"),
        ((*RBF, "--nothing-like-it"), "unknown key '--nothing-like-it'.*--help"),
        ((*RBF, "-x"), "unknown key '-x'"),
        ((*RBF, "-mode=jacfwd"), "unknown key '-mode'.*did you mean 'mode'"),
        ((*RBF, "-cluster=slurm"), "did you mean 'cluster'"),
        ((*RBF, "--"), "--"),
        ((*RBF, "--multi"), "unknown key '--multi'"),
        ((*RBF, "--config-dir"), "--config-dir"),
        ((*RBF, "--config-dir="), "--config-dir"),
        ((*RBF, "--config-dir", "nowhere"), "nowhere"),
        ((*RBF, "--cfg", "everything"), "--cfg.*everything"),
        ((*RBF, "--cfg"), "--cfg"),
        (("plan", "--cfg", "everything"), "scaling plan: argument --cfg.*`scaling plan --help`"),
        ((*RBF, "--info"), "unknown key '--info'"),
        ((*RBF, "rbf"), "rbf"),
        ((*RBF, "devices", "2"), "devices"),
        ((*RBF, ""), "''|empty"),
        ((*RBF, "="), "unknown key ''"),
        ((*RBF, "=3"), "unknown key ''"),
        ((*RBF, "devices={1"), "devices.*quote"),
        ((*RBF, "engine=a(b)"), r"a\(b\)"),
        ((*RBF, "engine=a=b"), "a=b"),
        ((*RBF, "engine=ergebnisse/größe"), "größe"),
        ((*RBF, "engine=结果"), "结果"),
        ((*RBF, "workload=[größe,rbf]"), "größe"),
        (("run", "study=rbf.yaml.yaml"), "name one study by the name of its file, such as study=smoke"),
        (("run", "study=../study/rbf"), "name one study by the name of its file, such as study=smoke"),
        (("run", "study='../study/rbf'"), "name one study by the name of its file"),
        (("run", f"study={Path(__file__).parents[2]}/conf/study/rbf"), "unknown study.*did you mean 'rbf'"),
        ((*RBF, "results='torn"), "torn.*quote"),
        ((*RBF, "where=devices = 1"), "where='devices = 1' cannot be read: .*; compare with =="),
        ((*RBF, "where=points // 0 == 1"), "where='points // 0 == 1' cannot be evaluated"),
        ((*RBF, "study=linear"), "study is given twice: write it once$"),
        ((*RBF, "mode=jacfwd", "mode=jacrev"), "mode is given twice: write it once$"),
        ((*RBF, "results=a", "results=b"), "results is given twice: write it once$"),
        ((*RBF, "points=${oc.env:NOWHERE_AT_ALL}"), "cannot compose .*.*'NOWHERE_AT_ALL' not found"),
        ((*RBF, "points=${oc.nope:3}"), "cannot compose .*.* type oc.nope"),
        ((*RBF, "points=${oc.select:}"), "cannot compose .*TypeError "),
        ((*RBF, "points=${nothing}"), "cannot compose .*.*'nothing' not found"),
        ((*RBF, "sizes=[]"), "Cannot merge DictConfig with ListConfig full_key: sizes; correct the argument"),
        ((*RBF, "sampling=[]"), "Cannot merge DictConfig with ListConfig full_key: sampling; correct the argument"),
        (("run", "study=c2/study/mine.yaml"), "unknown study.*DIR/study/mine.yaml, with --config-dir DIR"),
        ((*RBF, "p=3"), "unknown key 'p': a size is written sizes.p=VALUE; `scaling run --help` lists the keys"),
        ((*RBF, "pionts=3"), "unknown key 'pionts': choose from .*did you mean 'points'"),
        ((*RBF, "sizes={m: 1, m: 2}"), "sizes.m is given twice: write it once$"),
        ((*RBF, "sizes={m: 1}", "sizes.m=2"), "sizes.m is given twice: write it once$"),
        ((*RBF, "sampling={least:1}", "sampling.least=2"), "sampling.least is given twice: write it once$"),
        ((*RBF, "--cfg", "job", "--cfg=job"), "--cfg is given twice: write it once$"),
        ((*RBF, "--config-dir", ".", "--config-dir", "."), "--config-dir is given twice: write it once$"),
        ((*RBF, "points=#8"), "cannot read points=#8: quote"),
        ((*RBF, "points=&a"), "cannot read points=&a: quote"),
        ((*RBF, "workload=spring:force"), "'spring:force' is not the import path of a module: write workload=spring"),
        ((*RBF, "workload="), "workload must be a name, not '': write workload=rbf"),
        ((*RBF, "workload=my module"), "my module"),
        ((*RBF, "workload=a(b)"), r"a\(b\)"),
        ((*RBF, "tracking.project=a=b"), "project|quote"),
        ((*RBF, "+devises=1"), "unknown key 'devises'.*did you mean 'devices'"),
        ((*RBF, "++devises=1"), "unknown key 'devises'.*did you mean 'devices'"),
        ((*RBF, "~devices"), "unknown key '~devices'.*did you mean 'devices'"),
        ((*RBF, "~devices=2"), "unknown key '~devices'.*did you mean 'devices'"),
        ((*RBF, "~sampling.seconds"), "unknown key '~sampling'"),
        ((*RBF, "~tracking.name"), "unknown key '~tracking'"),
        ((*RBF, "~sampling"), "sampling"),
        ((*RBF, "~results"), "results"),
        ((*RBF, "~study"), "study"),
        ((*RBF, "~cluster"), "cluster"),
        ((*RBF, "~tracking"), "tracking"),
        ((*RBF, "+sampling.secs=1"), "secs"),
        ((*RBF, "sampling.seconds.x=1"), "unknown key 'sampling.seconds.x'"),
        ((*RBF, "devices.x=1"), "devices"),
        ((*RBF, "hydra/launcher=nowhere"), "unknown key 'hydra/launcher'"),
        ((*RBF, "~hydra.sweeper"), "unknown key '~hydra'"),
        ((*RBF, "hydra.verbose=true"), "unknown key 'hydra'"),
        (("run", "study="), "study"),
        (("run", "study=../../etc/passwd"), "study|passwd"),
        (("run", "study=/etc/passwd"), "study|passwd"),
        (("run", "study=3"), "unknown study '3': choose from accelerator"),
        (("run", "study=[1]"), r"study=\[1\]: name one study by the name of its file"),
        (("run", "cluster=[[slurm]]"), r"cluster=\[\[slurm\]\]: name one cluster by the name of its file"),
        (("run", "study=${x}"), r"study=\$\{x\}: name one study by the name of its file"),
        (("run", "study.points=3", "study=3"), "study"),
        (("run", "cluster=slrum"), "unknown cluster 'slrum'.*did you mean 'slurm'"),
        (("run", "tracking=wand"), "unknown tracking 'wand'.*did you mean 'wandb'"),
        (("run", "cluster=[local,slurm]"), "cluster"),
        (("run", "cluster=null"), "cluster"),
        (("run", "tracking=null"), "tracking"),
        (("run", "--multirun", "study=rbf,linear"), "unknown key '--multirun'"),
        (("plan", "-m", "study=plan,rbf", "hardware=v5p"), "unknown key '-m'"),
        (("run", "-hh"), "unknown key '-hh'.*--help"),
        (("Run",), "unknown command 'Run'.*run, plan, advise, status, logs, cancel, report, compare, lint, exp.*did you mean 'run'"),
        (("",), "unknown command ''"),
        (("--verion",), "verion.*--version|verion.*version"),
        (("study=rbf",), "'study=rbf' is not a command.*scaling run study=rbf"),
        (("smoke",), "unknown command 'smoke'"),
        (("run\nreport",), "unknown command"),
        (("--shell-completion",), "unknown command '--shell-completion'"),
        ((*RBF, "hardware=v5p"), "hardware is an option of `scaling plan`"),
        ((*RBF, "--experimental-rerun", "nowhere.pickle"), "nowhere.pickle|--experimental-rerun"),
        ((*RBF, "--config-name", "nowhere"), "nowhere|--config-name"),
        ((*RBF, "--config-path", "nowhere"), "nowhere|--config-path"),
    ]
}  # fmt: skip

# ---- Settings.

TABLES["settings"] = {
    f"{name}={text}": Input((*RBF, f"{name}={text}"), f"{re.escape(name)} must be (true or|.*an integer|a number).*, not ")
    for name, texts in {
        "sampling.least": ("1.5", "many", "null", "[7]", "1e9", "true", "{a: 1}"),
        "sampling.most": ("0", "3", "nan", "'200'", "1000000000000"),
        "sampling.seconds": ("nan", "inf", "soon", "null", "[1]"),
        "sampling.width": ("-0.1", "thin"),
        "sampling.warm_up": ("-1",),
        "sampling.turns": ("2.5",),
        "case_seconds": ("-5", "null", "[1,2]", "1e300"),
        "order_seed": ("-1", "null", "9" * 30),
        "replicates": ("-3", "[1]", "9" * 30),
        "processes": ("0", "1.5"),
        "bind": ("null", "[true]"),
        "oversubscribe": ("1", "perhaps"),
        "dry_run": ("null",),
        "nested": ("perhaps", "null"),
        "wait": ("1", "perhaps"),
    }.items()
    for text in texts
} | {
    "sampling=null": Input((*RBF, "sampling=null"), "sampling"),
    "sampling.compilations=0": Input((*RBF, "sampling.compilations=0"), "compilations"),
    "sampling={seconds: 1}": Input((*RBF, "sampling={second: 1}"), "second"),
    "too many replicates": Input((*RBF, "replicates=10001"), "replicates must be .*at most 10000, not 10001"),
    "too few replicates for nested": Input((*RBF, "nested=true", "replicates=2"), "but replicates=2"),
    "versus nothing": Input((*RBF, "versus="), "versus"),
    "versus a list": Input((*RBF, "versus=[self]"), "versus"),
    "versus a number": Input((*RBF, "versus=3"), "unknown versus='3'"),
    "versus self with a tail": Input((*RBF, "versus=self:x"), "unknown versus='self:x'"),
    "versus an interpreter that is a folder": Input((*RBF, "versus=python:/tmp"), "versus=python:/tmp"),
    "versus unknown flags of XLA": Input((*CONCRETE, "versus=xla:--xla_nonsense=1"), "versus=xla:--xla_nonsense=1"),
    "versus an invalid version": Input((*CONCRETE, "versus=jax:../../x"), "versus=jax:"),
    "versus in a study on a cluster": Input((*RBF, "versus=self", "cluster=local"), "versus=self runs on this machine only"),
    "points that do not divide": Input(
        ("run", "study=smoke", "points=7", "devices=2", "split=points"), "points=7 .* not divide over devices=2: take points=8"
    ),
    "points as a float": Input((*RBF, "points=1e9"), "points must be a positive integer, not 1000000000.0: write 1000000000"),
    "a limit below another": Input((*RBF, "sampling.least=9", "sampling.most=8"), "most must be an integer, 9 or more, not 8"),
    "processes=two": Input((*RBF, "processes=two"), "processes must be device or an integer, 1 or more, not 'two'"),
    "more processes than devices": Input((*RBF, "devices=1", "processes=2"), "exceed the devices of every case, 1 at most"),
    "devices that do not divide evenly over processes": Input(
        (*RBF, "devices=3", "processes=2", "oversubscribe=true"), "devices=3 do not divide evenly over processes=2"
    ),
    "versus unknown": Input((*RBF, "versus=main"), "versus='main'.*self, commit:REV, jax:VERSION, python:PATH, xla:FLAGS"),
    "versus a commit without a revision": Input((*RBF, "versus=commit:"), "unknown versus='commit:'"),
    "versus a commit without a repository": Input((*RBF, "versus=commit:HEAD~3"), "=commit:HEAD~3 needs a git repository"),
    "versus a missing interpreter": Input((*RBF, "versus=python:/no/python"), "versus=python:/no/python is no program"),
    "versus an interpreter without JAX": Input((*RBF, "versus=python:/bin/false"), "=python:/bin/false cannot run a worker"),
}  # fmt: skip

# ---- Results.

FILE = {"a_file": ""}
TABLES["results"] = {
    f"results={text}": Input((*RBF, f"results={text}", *options), pattern, FILE)
    for text, options, pattern in [
        ("a_file", ("dry_run=true",), "results=a_file.*results=PATH"),
        ("/dev/null", (), "results=/dev/null.*results=PATH"),
        ("/dev/null/x", (), "results=/dev/null/x.*results=PATH"),
        ("a:b", ("cluster=local",), "'.*a:b' contains ':'.*results=PATH"),
        ("a_file/below", (), "cannot write to results=a_file/below: Not.*results=PATH"),
        ("/proc/nowhere/x", (), "cannot write to results=/proc/nowhere/x: .*results=PATH"),
        ("", ("dry_run=true",), "results must be a folder"),
        ("[a,b]", ("dry_run=true",), "results must be a folder"),
        ("{a: 1}", ("dry_run=true",), "results must be a folder"),
        ("x" * 300, (), "cannot write to results=x+: File name too long; give another folder"),
        ("nowhere/" + "x" * 300, ("dry_run=true",), "cannot write to results=nowhere/x+: File name too long"),
        ("${oc.env:NOWHERE_AT_ALL}", (), "NOWHERE_AT_ALL"),
        ("a_fifo", (), "results=a_fifo.*results=PATH"),
        ("a_fifo", ("dry_run=true",), "results=a_fifo.*results=PATH"),
        ("a_loop", (), "results=a_loop.*results=PATH"),
    ]
} | {
    "results with a NUL": Input((*RBF, "results='a\0b'"), "results|NUL|null"),
    "results in spaces": Input((*RBF, "results='  '"), "results must be a folder"),
}  # fmt: skip

# ---- Workloads.

HEAD = "from scaling.workload import Workload, uniform\nimport jax.numpy as jnp\n"
GOOD = (
    HEAD
    + "def workload(case):\n    return Workload(function=lambda x: jnp.sin(x), points={'x': uniform(3)})\n"
)
MODULE = """from scaling.workload import Reference, Workload, normal
def workload(case):
    return Workload(lambda x: x"""
IDENTITY = MODULE + ", points={'x': normal(3)}"
DRAWS = "import numpy as np\nfrom scaling.core.workload import InputSpec\n"

TABLES["workloads"] = {
    f"a module that {description}": user_module(content, pattern)
    for description, (content, pattern) in {
        "is not UTF-8": ("x = 'é'".encode("latin-1"), "mine.*(SyntaxError|utf-8)"),
        "contains NUL bytes": (b"x = 1\0", "mine.*(SyntaxError|ValueError|null)"),
        "imports itself": ("from mine import workload", "mine.*ImportError"),
        "has sizes that are not numbers": (GOOD + "SIZES = {'p': 'many'}\n", "sizes.p must be a positive integer, not 'many'"),
        "has sizes in a list": (GOOD + "SIZES = ['p']\n", r"SIZES of mine must be a dict.*not \['p'\]"),
        "has a size without a name": (GOOD + "SIZES = {3: 8}\n", r"SIZES of mine must be a dict.*not \{3: 8\}"),
        "has a size with the name of a field": (
            GOOD + "SIZES = {'n': 8, 'points': 8}\n",
            "size 'points' of mine has the name of a field, which it would hide: rename the size in the module, such as n_points",
        ),
        "has a size with the name of a field of text": (
            GOOD + "SIZES = {'mode': 8}\n", "size 'mode' of mine has the name of a field, .* such as n_mode",
        ),
        "has a variant that is a text": (
            GOOD + "VARIANTS = 'plain'\n", r"VARIANTS of mine must be a tuple or list of names, not 'plain'; write \('plain',\)",
        ),
        "has a formulation that is a text": (GOOD + "FORMULATIONS = {None: 'sum'}\n", r"FORMULATIONS of mine.*write \('sum',\)"),
        "has a dtype that is a text": (GOOD + "DTYPES = 'float32'\n", r"DTYPES of mine.*write \('float32',\)"),
        "has a dtype that is not a name": (GOOD + "DTYPES = (3,)\n", r"DTYPES of mine.*not \(3,\)"),
        "has targets that are not names": (GOOD + "TARGETS = (3,)\n", "mine|target"),
        "draws an input without the generator": (
            GOOD.replace("uniform(3)", "InputSpec((3,), lambda rng, rows: np.random.rand(len(rows), 3))") + DRAWS,
            "the InputSpec of 'x' draws other values each time.*from its generator",
        ),
        "draws an input of another shape": (
            GOOD.replace("uniform(3)", "InputSpec((3,), lambda rng, rows: rng.random((len(rows), 4)))") + DRAWS,
            r"the InputSpec of 'x' draws an array of shape \(1365, 4\), not \(1365, 3\)",
        ),
        "has an unknown dtype": (GOOD + "DTYPES = ('float16',)\n", "unknown dtype in DTYPES of mine 'float16'"),
        "has a value without a name": (GOOD + "VALUE = None\n", "VALUE of mine must be a tuple or list of"),
        "has a syntax error": ("def workload(case:\n", "cannot be imported: SyntaxError"),
        "raises at import": ("raise RuntimeError('first line\\nsecond line')", r"RuntimeError: first line second line \(mine.py:1\)"),
        "raises without a text at import": ("raise RuntimeError", r"RuntimeError \(mine.py:1\)"),
        "raises without a text in workload()": ("def workload(case):\n    assert 0", r"AssertionError \(mine.py:2\)"),
        "raises without a text in its function": (
            f"{MODULE} if 0 else f(x), points={{'x': normal(3)}})\ndef f(x):\n    raise ValueError",
            r"values\): ValueError \(mine.py:5\)",
        ),
        "imports a missing module": (
            "import not_there_at_all", r"cannot be imported: No module named 'not_there_at_all' \(mine.py:1\)",
        ),
        "ends the process at import": ("raise SystemExit(3)", r"mine: SystemExit: 3 \(mine.py:1\)"),
        "ends the process in workload()": ("def workload(case):\n    raise SystemExit(3)", r"mine: SystemExit: 3 \(mine.py:2\)"),
        "interrupts": ("raise KeyboardInterrupt", r"mine: KeyboardInterrupt \(mine.py:1\)"),
        "enables 64 bits": (
            "import jax\njax.config.update('jax_enable_x64', True)\n" + GOOD,
            "mine changed jax_enable_x64 from False to True; remove that code, and set dtype=float64 in the study instead",
        ),
        "has no workload()": ("x = 1", r"no function workload\(case\)"),
        "has a workload that is not a function": ("workload = 3", r"no function workload\(case\)"),
        "returns no Workload": ("def workload(case):\n    return 3", "Workload"),
        "misspells a field of Workload": (
            "from scaling.workload import Workload\ndef workload(case):\n    return Workload(len, point={})",
            r"unexpected keyword argument 'point'; the fields are function, points, shared.* \(mine.py:3\)",
        ),
        "sets a field that Workload does not have": (
            IDENTITY + ", default_reduce='outputs')", r"argument 'default_reduce'; the fields are function,",
        ),
        "names a parameter unlike its input": (
            f"{MODULE}, points={{'y': normal(3)}}, shared={{'p': {{'w': normal(2)}}}})",
            r"unexpected keyword argument 'y'; its parameters must take the inputs by name: y, p( |$)",
        ),
        "has a reference of the wrong shape": (
            IDENTITY + ", reference=lambda inputs: Reference(inputs['x'], inputs['x']))",
            r"reference of 'mine' must return a Reference whose derivative has the shape \(1, 3, 3\) at one point, not \(1, 3\)( |$)",
        ),
        "has a reference with values of the wrong shape": (
            IDENTITY + ", reference=lambda inputs: Reference(inputs['x'][:, :2], inputs['x'][:, None] + [[0], [0], [0]]))",
            r"must return a Reference whose value has the shape \(1, 3\) at one point, not \(1, 2\)( |$)",
        ),
        "has nonzeros without a pattern": (
            IDENTITY + ", nonzeros=lambda inputs: Reference(inputs['x'], inputs['x']))",
            "nonzeros of 'mine' has no effect without pattern",
        ),
        "has nonzeros of the wrong shape": (
            IDENTITY + ", pattern=lambda: ([0, 1, 2], [0, 1, 2]), nonzeros=lambda inputs: Reference(inputs['x'], inputs['x']))",
            r"nonzeros of 'mine' must return a Reference whose derivative has the shape \(1, 1, 3\) at one point, not \(1, 3\)( |$)",
        ),
        "has a pattern that is not sorted": (
            IDENTITY + ", pattern=lambda: ([0, 2, 1], [0, 2, 1]))", "a pattern must be .* sorted by row",
        ),
        "has a reference that raises": (IDENTITY + ", reference=lambda inputs: inputs['y'])", r"mine: KeyError: 'y' \(mine.py:3\)"),
        "takes no case": ("def workload():\n    return 3", "mine.*argument"),
        "raises a KeyError": ("def workload(case):\n    return {}['q']", r"mine: KeyError: 'q' \(mine.py:2\)"),
        "uses a size that it does not declare": (
            "def workload(case):\n    return case.sizes['q']", r"mine: KeyError: 'q' \(mine.py:2\)",
        ),
        "has a size without a default": (
            "SIZES = {'q': None}\ndef workload(case):\n    return 3", "'q' of mine has no default: write sizes.q=8",
        ),
        "has incompatible shapes": (f"{MODULE}[:2] + x, points={{'x': normal(3)}})", "mine.*incompatible shapes"),
        "has no inputs": (f"{MODULE}, points={{}})", "mine"),
        "has an unknown reduce": (IDENTITY + ", reduce='columns')", "reduce"),
        "has no targets": (GOOD + "TARGETS = ()\n", "TARGETS or VALUE of mine is empty: name quantities, or omit it"),
        "has no values": (GOOD + "VALUE = ()\n", "TARGETS or VALUE of mine is empty: name quantities, or omit it"),
        "has single targets in a text": (GOOD + "SINGLE = 'jacobians'\n", r"SINGLE of mine must .* write \('jacobians',\)"),
        "has a number of single targets": (GOOD + "SINGLE = 1\n", "SINGLE of mine must be a tuple or list of names, not 1"),
    }.items()
} | {
    f"a workload with the name {text}": Input(("run", "study=function", f"workload={text}", *options), pattern, {"mine.py": GOOD})
    for text, options, pattern in [
        ("mine.nowhere", (), "mine.nowhere"),
        (".mine", (), "mine"),
        ("a..b", (), r"a\.\.b"),
        ("'mine\0'", (), "mine"),
    ]
} | {
    f"a user module with the name {name}": Input(
        ("run", "study=function", f"workload={name}"), f"is built in, and {name}.py has the same name: rename", {f"{name}.py": GOOD}
    )
    for name in ("linear", "arrowhead")
} | {
    "a user file that hides a module of Python": Input(
        ("run", "study=function", "workload=mine", "devices=1"), "examined: .*; select.py in .* hides a module .*: rename it",
        {"mine.py": GOOD, "select.py": ""},
    ),
    "a user file whose name is not a module name": Input(
        ("run", "study=function", "workload=my-mine"), "'my-mine' is not the import path of a module", {"my-mine.py": GOOD}
    ),
    "a user package with the name linear": Input(
        ("run", "study=function", "workload=linear"),
        "is built in, and linear/__init__.py has the same name: rename",
        {"linear/__init__.py": GOOD},
    ),
}  # fmt: skip

# ---- Clusters and tracking.

TABLES["clusters"] = {
    f"cluster={cluster} {text}": Input(("run", "study=rbf", f"cluster={cluster}", text), pattern)
    for cluster, text, pattern in [
        ("slurm", "cluster.time=nan", "cluster.time must be"),
        ("slurm", "cluster.fill=2", "cluster.fill must be"),
        ("slurm", "cluster.platform=cuda", "cluster.platform must be one of cpu, gpu, tpu, not 'cuda'"),
        ("slurm", "cluster.attempts=x", "cluster.attempts must be a positive integer"),
        ("slurm", "cluster.per_node=1.5", "cluster.per_node must be a positive integer"),
        ("slurm", "cluster.memory=-1", "cluster.memory must be a positive number of GB"),
        ("slurm", "cluster.exclusive=1", "cluster.exclusive must be true or false"),
        ("slurm", "cluster.setup=3", "cluster.setup must be a list of shell lines"),
        ("slurm", "cluster.sbatch=[a]", "cluster.sbatch"),
        ("slurm", "cluster.sbatch={a: {b: 1}}", "cluster.sbatch must be a mapping of options to single values"),
        ("slurm", 'cluster.sbatch={comment: "a\\nexit"}', "cluster.sbatch must be a mapping of options to single values"),
        ("slurm", "cluster.partition=true", "cluster.partition must be a name"),
        ("slurm", "cluster.queue=a", "unknown key of cluster.*queue"),
        ("slurm", "cluster.name=other", "unknown cluster"),
        ("slurm", "cluster.time.x=1", "cluster.time must be a positive number of minutes"),
        ("slurm", "cluster.hosts=[a]", "cluster.hosts has no effect with cluster=slurm"),
        ("local", "cluster.partition=a", "cluster.partition has no effect with cluster=local"),
        ("none", "cluster.time=1", "cluster.time has no effect with cluster=none.*cluster=local or slurm"),
        ("none", "wait=false", "wait=false has no effect with cluster=none, .*leave it out"),
        ("none", "retry=true", "retry=true has no effect with cluster=none, .*leave it out"),
        ("hosts", "cluster.per_node=4", "cluster=hosts.*cluster.hosts"),
        ("hosts", "cluster.hosts=[a]", "cluster=hosts.*cluster.per_node"),
        ("hosts", "cluster.shell=ssh", "cluster.shell must be a list of words"),
    ]
} | {
    f"tracking=wandb {text}": Input((*RBF, "tracking=wandb", text), pattern)
    for text, pattern in [
        ("tracking.project='a/b'", "tracking.project must be a name .*without .*a/b"),
        ("tracking.project='a\tb'", "tracking.project must be a name .*printable"),
        ("tracking.mode=offlin", "unknown tracking.mode 'offlin'.*did you mean 'offline'"),
        ("tracking.dashboard=1", "tracking.dashboard must be true or false"),
        (f"tracking.tags=[{'x' * 65}]", "tracking.tags must be a list of words"),
        ("+tracking.api_key=secret", "keys come from WANDB_API_KEY"),
        ("tracking.colour=red", "unknown key of tracking 'colour': choose from project"),
    ]
}  # fmt: skip

# ---- Plans.

DIVIDED = (
    "study=plan",
    "hardware=v5p",
    "devices=8960",
    "points=7",
)  # the preflight of its cases requires the compiler
TABLES["plans"] = {
    " ".join(arguments): Input(("plan", *arguments), pattern)
    for arguments, pattern in [
        (("study=plan", "hardware=[v5p,h100]"), "one hardware"),
        (("study=plan", "hardware=v5p", "cluster=slurm"), "cluster=slurm has no effect on a plan, .*; remove it"),
        (("study=plan", "hardware=v5p", "tracking=wandb"), "tracking=wandb has no effect on a plan"),
        (("study=plan", "hardware=v5p", "retry=true"), "retry=true has no effect on a plan"),
        (("study=plan", "hardware=v5p", "nested=true"), "nested=true has no effect on a plan"),
        (("study=plan", "hardware=v5p", "bind=false"), "bind=false has no effect on a plan"),
        (("study=plan", "hardware=v5p", "processes=2"), "processes=2 has no effect on a plan"),
        (("study=plan", "hardware=v5p", "processes=device"), "processes=device has no effect on a plan"),
        (("study=plan", "hardware=v5p", "order_seed=1"), "order_seed=1 has no effect on a plan"),
        (("study=plan", "hardware=v5p", "sampling.width=0.1"), "sampling.width=0.1 has no effect on a plan"),
        (("study=plan", "hardware=v5p", "devices=[all,1]"), "devices must be a positive integer, not 'all'"),
        (("study=plan", "hardware=../hardware/v5p"), "name one hardware by the name of its file, such as hardware=v5p"),
        (("study=plan", "hardware=h100", "hardware.target={1: 2}"), "hardware.target must be a mapping"),
        (("study=plan", "hardware=null"), "unknown hardware 'null': choose from a100"),
        (("study=plan", "hardware=v5p", "devices=0"), "devices must be a positive integer"),
        (("study=plan", "hardware=v5p", "devices=some"), "devices must be"),
        (("study=plan", "hardware=v5p", "hardware.memory=-1"), "hardware.memory must be a positive number"),
        (("study=plan",), "specify the hardware to plan for, such as hardware=v5p"),
        (("study=plan", "hardware=v6"), "unknown hardware 'v6'.*h100.*v5p"),
        (("study=plan", "hardware=v5p", "devices=7"), "devices=7 are not available on v5p: use 1, 4, 8"),
        (("study=plan", "hardware=v5p", "devices=258048"), "devices=258048 are not available on v5p: use 1, 4, .*8960"),
        (DIVIDED, "do not divide over devices=8960"),
        (("study=plan", "hardware=v5p", "hardware.hue=1"), "unknown key of hardware 'hue': .*per_host"),
        (("study=plan", "hardware=cpu", "hardware.bandwidth=1e9"), "unknown key of hardware 'bandwidth': .* asking, attained, ceil"),
        (("study=plan", "hardware=v5p", "+hardware.ceilings=results/linear"), "unknown key of hardware 'ceilings'"),
        (("study=plan", "hardware=h100", "hardware.memory=0"), "hardware.memory must be a positive number, not 0"),
        (("study=plan", "hardware=v5p", "hardware.products.float16=3e12"), "hardware.products must be .* number or null for each of"),
        (("study=plan", "hardware.memory=3"), "unknown key 'hardware.memory'"),
        (("study=plan", "hardware=cpu", "hardware.ceilings=nowhere"), "no results in 'nowhere'"),
        (("study=plan", "hardware=cpu", "hardware.ceilings=[a]"), r"ceilings must be the path .*, not \['a'\]"),
        (("study=plan", "hardware=cpu", "results=none"), "ceilings .*which are missing: run `scaling run study=linear"),
        (("study=plan", "hardware=v5p", "results=null"), "results must be a folder"),
        (("study=plan", "hardware=v5p", "mode=jacfw"), "unknown mode 'jacfw'"),
        (("study=plan", "hardware=v5p", "--dry-run"), "--dry-run"),
        (("study=plan", "hardware=v5p", "dry_run=true"), "dry_run"),
        (("hardware",), "hardware"),
        (("study=plan", "hardware=v5p", "where=[1]"), "where"),
    ]
} | {
    "a list for a mapping of another file": Input(
        ("plan", "--config-dir", "my_conf", "study=plan", "hardware=mine"), "Cannot merge DictConfig with ListConfig",
        {"my_conf/hardware/mine.yaml": "defaults: [h100@_here_, _self_]\ntarget: {gpu_device_info: [1]}\n"},
    )
}  # fmt: skip

# ---- Other verbs and their options. `good` is a results folder.

TABLES["verbs"] = {
    " ".join(arguments): Input(tuple(arguments), pattern, FILE)
    for arguments, pattern in [
        *(((verb,), "DIR|A|--output") for verb in ("status", "logs", "compare", "merge")),
        *(((verb, "nowhere", *options), "no results in 'nowhere'")
          for verb, options in [("cancel", ()), ("logs", ("3f",)), ("merge", ("a_file", "--output", "both")), ("lint", ()),
                                ("report", ()), ("status", ()), ("publish", ()), ("export", ()), ("compare", ("nowhere",))]),
        *(((verb, "a_file", *options), "no results in 'a_file'")
          for verb, options in [("report", ()), ("status", ()), ("compare", ("a_file",)), ("merge", ("a_file", "--output", "both"))]),
        *(((verb, "."), r"no results in '\.'") for verb in ("status", "report", "export")),
        *(((verb, "good", "--nothing"), "--nothing|required: (KEY|--output)") for verb in ("status", "logs", "export", "merge")),
        (("status", ""), "no results in ''"),
        (("status", "nul\0byte"), "no results in"),
        (("status", "x" * 5000), "no results in"),
        (("status", "good", "more"), "more"),
        (("status", "good/records.jsonl"), "no results in 'good/records.jsonl'"),
        (("publish", "good", "--entity", "a/b"), "tracking.entity must be a name .* without /.*a/b"),
        (("publish", "good", "--entity", "a\nb"), "tracking.entity must be a name of 1 to 64 printable characters"),
        (("export", "good", "--format", "svg"), "nothing to show as svg"),
        (("report", "good", "efficiency=0"), "efficiency must be above 0 and at most 1"),
        (("status", "good", "--wacth"), "unrecognized arguments: --wacth"),
        (("status", "--watch"), "DIR"),
        (("report", "good", "extra"), "extra"),
        (("report", "good", "--proposal=yes"), "--proposal"),
        (("lint", "good", "--strictt"), "unrecognized arguments: --strictt"),
        (("export", "good", "--format", "xlsx"), "unknown format 'xlsx'.*csv"),
        (("export", "good", "--format", "csv,xlsx"), "unknown format 'xlsx'"),
        (("export", "good", "--format", ""), "format"),
        (("export", "good", "--format", ","), "format"),
        (("export", "good", "--format"), "--format"),
        (("export", "good", "--output", "a_file"), "a_file.*--output PATH"),
        (("export", "good", "--output", "/proc/nowhere"), "/proc/nowhere.*--output PATH"),
        (("export", "good", "--output", ""), "output"),
        (("export", "good", "--output", "a", "--output=b"), "--output is given twice"),
        (("compare", "good", "other", "--margin=0.1", "--margin=0.1"), "--margin is given twice"),
        (("publish", "good", "--project", "ad-scaling", "--project=b"), "--project is given twice"),
        (("merge", "good", "other", "--output", "a_file"), "a_file.*--output PATH"),
        (("merge", "good", "other", "--output", "x" * 300), "cannot write to --output x+: File name too long"),
        (("merge", "good", "other", "--output", "a_loop"), "a_loop.*give another folder"),
        (("merge", "good", "good"), "--output"),
        (("merge", "--output", "new"), "DIR"),
        (("merge", "good", "nowhere", "--output", "new"), "no results in 'nowhere'"),
        (("merge", "good", "good", "--output", ""), "output"),
        (("compare", "good", "good"), "itself"),
        (("compare", "good"), "there is no variant of good"),
        (("compare", "good", "nowhere"), "no results in 'nowhere'"),
        (("compare", "good", "other", "--margin", "nan"), "margin must be from 0 to under 1"),
        (("compare", "good", "other", "--margin", "-1"), "margin must be from 0 to under 1"),
        (("compare", "good", "other", "--margin", "1"), "margin must be from 0 to under 1"),
        (("compare", "good", "other", "--margin", "wide"), "--margin.*wide"),
        (("compare", "good", "other", "--margin"), "--margin"),
        (("compare", "good", "other", "third"), "third"),
        *((("compare", "good", "other", "--markdown", word), f"--markdown '{word}' is not -.*redirect")
          for word in ("table.md", "a_file/x.md", "")),
        (("publish", "good", "--mode", "on"), "unknown tracking.mode 'on'|--mode"),
        (("publish", "good", "--mode"), "--mode"),
        (("publish", "good", "--project", "a/b"), "project must be a name"),
        (("publish", "good", "--project", ""), "project must be a name"),
        (("publish", "good", "--entity", ""), "entity must be a name"),
        (("publish", "good", "--dashboard=maybe"), "--dashboard"),
        (("logs", "good", "zz"), "zz"),
        (("logs", "good", ""), "."),
        (("logs", "good", "3f", "more"), "more"),
        (("cancel", "good", "job"), "job"),
        (("version",), "unknown command 'version'.*did you mean '--version'"),
        (("--version", "more"), "more"),
        (("help", "run"), "unknown command 'help': choose from run"),
        (("--help", "nowhere"), "unknown command '--help nowhere'"),
    ]
}  # fmt: skip

CASES = {
    f"{table}: {ascii(name)[1:-1]:.80}": bad
    for table, inputs in TABLES.items()
    for name, bad in inputs.items()
}


class TookTooLong(BaseException):
    """Raised if a command still runs after `LIMIT` seconds."""


class Started(BaseException):
    """Raised if a command starts to measure or to submit."""


def running_children():
    """Return the process ids of the running children of this process, whose threads may end meanwhile."""
    children = set()
    for thread in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            children.update(thread.read_text().split())
    return children


@contextlib.contextmanager
def time_limit():
    """Stop a command after the time limit, in CPU time; a second timer is for code that waits or never returns to Python.

    The timers end with the command. If one raised its exception while pytest reports a failure, the whole run would end.
    """

    def stop(*_):
        raise TookTooLong

    before = set_handler(signal.SIGPROF, stop)
    faulthandler.dump_traceback_later(8 * LIMIT, exit=True, file=sys.__stderr__)
    try:
        signal.setitimer(signal.ITIMER_PROF, LIMIT, 1)  # then every second, if the command catches it
        yield
    finally:
        set_handler(signal.SIGPROF, signal.SIG_IGN)  # at once, as the timer may expire again meanwhile
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()
        set_handler(signal.SIGPROF, before)


@pytest.fixture
def call(tmp_path, monkeypatch, call_main, make_record):
    """Call the command's main function with these files in the test's folder; starting a worker is an error."""

    def fail(*_, **__):
        raise Started

    def prepare(files):
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        os.mkfifo(tmp_path / "a_fifo")
        (tmp_path / "a_loop").symlink_to("a_loop")
        for name, status in (("good", "ok"), ("other", "ok")):
            (tmp_path / name).mkdir()
            (tmp_path / name / "records.jsonl").write_text(to_line(make_record(status=status)) + "\n")

    def call(arguments, files):
        prepare(files)
        for module, function in ((supervise, "run_schedule"), (run, "_submit"), (plan_study, "run_plan")):
            monkeypatch.setattr(module, function, fail)
        before = {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")}
        with time_limit():
            done = call_main(list(arguments))
        after = {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")}
        return done, sorted(str(path.relative_to(tmp_path)) for path in after.keys() ^ before.keys())

    return call


@pytest.mark.parametrize("name", CASES)
def test_a_malformed_input_exits_with_status_2_and_one_line_and_starts_nothing(name, call):
    malformed, processes = CASES[name], running_children()
    if malformed.arguments[1:] == DIVIDED:
        machines.require_compiler("libtpu")
    done, changed = call(malformed.arguments, malformed.files)
    lines = done.stderr.splitlines()
    assert (done.returncode, len(lines)) == (2, 1), done.stdout[-2000:] + done.stderr[-2000:]
    assert lines[0].startswith("scaling: ") and "Traceback" not in lines[0], lines[0]
    assert len(lines[0]) < 1500, lines[0]
    assert re.search(malformed.pattern, lines[0]), lines[0]
    assert (done.stdout, changed) == ("", [])
    assert running_children() <= processes


def test_there_are_at_least_300_malformed_inputs():
    assert len(CASES) == sum(map(len, TABLES.values())) >= 300
