"""Compose the configuration of a study: parse the arguments, read conf/ with Hydra, check keys, write help.

`compose` checks the names of keys and files, and explains errors of Hydra and YAML in one line. grid.py
checks the values of the fields, and expands them into cases.
"""

import argparse
import functools
import os
import re
import textwrap
import traceback
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from scaling.core.case import (
    CEILING,
    CHOICES,
    FIELDS,
    OPTIONS,
    SCALINGS,
    Case,
    Refusal,
    built_in,
    check_names,
    unknown_name,
)
from scaling.core.formatting import format_value
from scaling.core.grouping import group_by
from scaling.peers import interface

_GROUPS = {"study": "smoke", "cluster": "none", "tracking": "none", "hardware": "v5p"}  # group -> example
# The integers and booleans of YAML 1.2. YAML 1.1 has also 010 (octal), 2:00:00 (base 60), yes, no, on, off.
_PLAIN_SCALARS = {
    "int": re.compile(r"^(?:[-+]?0b[01_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+)$"),
    "bool": re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"),
}
_MAX_BYTES = 256 * 1024  # maximum size of a YAML file
_MAX_VALUES = 10_000  # maximum number of values of a YAML file; the values of an alias count at each use
_BOOLEAN_FIELDS = ("dry_run", "oversubscribe", "bind", "nested", "retry", "overlap", "jit")
_WIDTH, _NAME_WIDTH = 79, 22  # characters in a line of the help text and in its first column
# A key, its default, and its comment, which may continue on the following lines.
_KEY = re.compile(r"^( *)([a-z_]+):[ ]*([^#\n]*?)[ ]*(?:#[ ]*(.*(?:\n +#.*)*))?$", re.MULTILINE)
# Pattern of an error message of Hydra or OmegaConf -> explanation, in which {0} is the first group of the
# pattern, {words} are the arguments of the command, and {file} is the file that Hydra reads.
_EXPLANATIONS = {
    r"is not in struct full_key: (\S+)":
        "unknown key {0!r}: `scaling run --help` and the files in conf list every key",
    r"Could not override '([^']+)'":
        "unknown key {0!r}: `scaling run --help` and the files in conf list every key",
    r"Cannot merge DictConfig with ListConfig full_key: object_type":
        "a list replaces a mapping of another file, which `defaults` names, or the reverse: write the other",
    r"Cannot merge DictConfig with ListConfig full_key: (\S+)":
        "{0} must be a mapping such as {{p: 64}}, or a list, as in its file: write the other",
    r"Incompatible key type 'NoneType'":
        "the key of a value is null or ~: write the name of a field or a size",
    r"Invalid loaded object type":
        "cannot compose {words}: {file} is not a mapping, such as `workload: linear`",
    r"codec can't decode":
        "cannot compose {words}: {file} is not UTF-8: save it as UTF-8",
    r"unacceptable character (#\w+):.* position (\d+)":
        "{file} contains the control character {0} at position {1}: remove it",
    r"maximum recursion depth":
        "cannot compose {words}: {file} or a value refers to itself, or has too many levels: write values",
    r"onfig group override|not iterable|can only concat|nsupported .* in defaults|possible interpolation":
        "cannot compose {words}: study, cluster, tracking and hardware name one file each, as in study=rbf",
    r"Sweep parameters '\+*([^=']+)=(.*)' requires":
        "{0}={1}: write several values as a list, such as 'points=[8,16]'",
    r"In '([^']+)': Could not load '([^']+)'":
        "{0}.yaml names {1} in `defaults`, and there is no such file: correct the name, or leave it out",
    r"Exceeds the limit \((\d+) digits\)":
        "cannot compose {words}: an integer in {file} or in an argument has more than {0} digits",
    r"^(.*) full_key: (\S+) object_type":
        "cannot compose {words}: the value of {1} cannot be used: {0}; correct {file} or the argument",
}  # fmt: skip


def compose(words: Sequence[str], command: str = "run") -> tuple[dict[str, Any], str]:
    """Return (configuration, study name) for the command-line arguments `words`.

    With --cfg, print the configuration as YAML, and exit with status 0. `command` is "run" or "plan". Raise
    `Refusal` if an argument or a YAML file is invalid.
    """
    from hydra import compose as compose_config
    from hydra import initialize_config_dir
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf, open_dict

    given, users_folder, prints_config = _parse_arguments(words, command)
    overrides = [_in_hydra_syntax(word) for word in given]
    if users_folder:
        _refuse_same_names(users_folder)
        overrides.append(f"hydra.searchpath={[f'file://{users_folder.absolute()}']}")
    _configure_yaml()
    try:
        with initialize_config_dir(str(configuration_folder()), version_base=None):
            config = compose_config("config", overrides, return_hydra_config=True)
            HydraConfig.instance().set_config(config)  # ${hydra:...} refers to this configuration
            with open_dict(config):
                choices = config.pop("hydra").runtime.choices
            resolved_config: Any = OmegaConf.to_container(config, resolve=True)
    except Exception as error:
        raise _explain_hydra_error(error, words) from None
    if prints_config:
        print(OmegaConf.to_yaml(config), flush=True)
        raise SystemExit(0)
    plain_config = {str(name): value for name, value in resolved_config.items()}
    _check_keys(plain_config, choices)
    for group in ("cluster", "tracking"):
        _check_group(group, plain_config[group])
    return plain_config, choices["study"]


def _parse_arguments(words: Sequence[str], command: str) -> tuple[list[str], Path | None, bool]:
    """Return (overrides such as "devices=2", the folder of --config-dir or None, whether --cfg is given).

    `words` contains the arguments after the command name. Raise `Refusal` if an argument is invalid.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--cfg", choices=["job"], action="append", default=[])
    parser.add_argument("--config-dir", metavar="DIR", action="append", default=[])
    try:
        options, overrides = parser.parse_known_args(list(words))
    except argparse.ArgumentError as error:
        raise Refusal(f"scaling {command}: {error}; `scaling {command} --help` lists what it takes") from None
    for folder in options.config_dir:
        if not (os.path.isdir(folder) and os.access(folder, os.R_OK | os.X_OK)):
            example = "such as --config-dir my_conf"
            raise Refusal(f"--config-dir takes a folder that can be read, {example}, not {folder!r}")
    if {"--multirun", "-m"} & set(overrides):
        fix = f"write `for s in rbf linear; do scaling {command} study=$s; done`"
        raise Refusal(f"--multirun is not an option, one command takes one study: {fix}")
    names = ["--cfg"] * len(options.cfg) + ["--config-dir"] * len(options.config_dir)
    names += [name for word in overrides for name in _read_names(word)]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise Refusal(f"{repeated[0]} is given twice: write it once")
    return overrides, next(map(Path, options.config_dir), None), bool(options.cfg)


def _read_names(word: str) -> list[str]:
    """Return the names that an override sets, such as ["sizes", "sizes.p"] for sizes={p: 8}.

    Raise `Refusal` if `word` is not an override of a field or group.
    """
    name, equals_sign, value = word.lstrip("+").partition("=")
    if len(name) == 1 and equals_sign:
        raise Refusal(f"unknown key {name!r}: a size is written sizes.{word}")
    check_names("key", [name.partition(".")[0]], [*_known_keys(), "--help", "--cfg", "--config-dir"])
    if not equals_sign:
        raise Refusal(f"{word!r} is not an override: write {name}=VALUE")
    keys = re.findall(r"[{,]\s*(\w+)\s*:", value) if name in ("sizes", "sampling") else []
    return [name, *(f"{name}.{key}" for key in keys)]


def _refuse_same_names(folder: Path) -> None:
    """Raise `Refusal` if a file in `folder` differs from the file of the package that Hydra would read."""
    package = configuration_folder()
    for path in package.glob("**/*.yaml"):
        own = folder / path.relative_to(package)
        if own.is_file() and own.read_bytes() != path.read_bytes():
            problem = "has the name of a file of the package, which would be read instead"
            raise Refusal(f"{own} {problem}: rename it, such as my_{own.name}")


def configuration_folder() -> Path:
    """Return the path of the folder `conf`, which contains the YAML files of the configuration."""
    package = Path(__file__).resolve().parents[1]
    return next(folder for folder in (package / "conf", package.parent / "conf") if folder.is_dir())


def _known_keys() -> list[str]:
    """Return the names of all fields and groups of the configuration, such as "devices" and "cluster"."""
    return [*_read_keys(configuration_folder() / "config.yaml"), *_GROUPS]


def _read_keys(file: Path) -> list[str]:
    """Return the top-level keys of a YAML file, except `defaults`."""
    keys = re.findall(r"^([a-z_]+):", file.read_text(encoding="utf-8"), re.MULTILINE)
    return [key for key in keys if key != "defaults"]


def _check_keys(config: Mapping[str, Any], choices: Mapping[str, Any]) -> None:
    """Raise `Refusal` if a key is unknown, missing or misplaced, or if a group has no file or no mapping.

    `choices` maps each group, such as "cluster", to its selected file. The group "hardware" needs no file.
    """
    known_names = _known_keys()
    check_names("key", config, known_names)
    for group, example in _GROUPS.items():
        name = choices.get(group)
        has_name = isinstance(name, str) and ".." not in name.split("/") and not name.endswith(".yaml")
        if not has_name and not (group == "hardware" and group in choices and name is None):
            raise Refusal(f"name one {group} by the name of its file, such as {group}={example}")
        if choices[group] and not isinstance(config.get(group), dict):
            fix = f"write a mapping in its file, or name another, such as {group}={example}"
            raise Refusal(f"{group}={choices[group]} is not a mapping: {fix}")
    for name in config["study"]:
        if name == "" and isinstance(config["study"][name], dict):
            problem = f"study/{choices['study']}.yaml names a file of another folder in `defaults`"
            raise Refusal(f"{problem}: leave it out, and write such as cluster=slurm on the command line")
        if name in known_names and name not in (*FIELDS, "scaling", "where"):
            fix = f"leave it out, and write {name}=VALUE on the command line"
            raise Refusal(f"study/{choices['study']}.yaml sets {name}, which is not a field: {fix}")
    if config.get("hardware") is not None and choices["hardware"] is None:
        problem = "a key of hardware has no effect without a choice such as hardware=v5p"
        raise Refusal(f"{problem}: add that, or leave the key out")


def _check_group(group: str, config: Mapping[str, Any]) -> None:
    """Raise `Refusal` if a key of a group is unknown or has no effect. `group` is "cluster" or "tracking"."""
    files = {path.stem: _read_keys(path) for path in sorted((configuration_folder() / group).glob("*.yaml"))}
    name = config.get("name")
    if name is None:
        example = {"cluster": "slurm", "tracking": "wandb"}[group]
        fix = f"add `defaults: [{example}]` at its top, or `name: {example}`"
        raise Refusal(f"the {group} file has no key `name`: {fix}")
    check_names(group, [name], list(files))
    # `TrackingSettings` checks the keys of tracking=wandb.
    used_keys = files.get("" if name == "wandb" else str(name), list(config))
    for key in (key for key in config if key not in used_keys):
        names = [other for other, keys in files.items() if key in keys]
        if not names:
            raise unknown_name(f"key of {group}={name}", key, used_keys)
        fix = f"leave it out, or write {group}={' or '.join(names)}"
        raise Refusal(f"{group}.{key} has no effect with {group}={name}: {fix}")


def _configure_yaml() -> None:
    """Make PyYAML load 2:00:00, 010, yes, no, on and off as strings, and refuse too many values."""
    resolvers = yaml.SafeLoader.yaml_implicit_resolvers
    for first, patterns in resolvers.items():
        resolvers[first] = [
            # such as the type int of the tag "tag:yaml.org,2002:int"
            (tag, _PLAIN_SCALARS.get(tag.rpartition(":")[2], regex))
            for tag, regex in patterns
        ]
    yaml.SafeLoader.get_single_node = _read_small_file  # type: ignore[method-assign]


def _read_small_file(loader: Any) -> yaml.Node | None:
    """Return the root node of a YAML file. Raise `yaml.MarkedYAMLError` if it has too many values."""

    @functools.cache
    def count_values(node: yaml.Node) -> int:
        pairs = node.value if isinstance(node, yaml.MappingNode) else [node.value]
        return 1 + sum(count_values(child) for pair in pairs for child in pair if not isinstance(child, str))

    mark = loader.get_mark()
    is_small = not os.path.isfile(mark.name) or os.path.getsize(mark.name) <= _MAX_BYTES
    node = yaml.composer.Composer.get_single_node(loader) if is_small else None
    if not is_small or (node and count_values(node) > _MAX_VALUES):
        limit = f"a file has at most {_MAX_BYTES // 1024} kB and {_MAX_VALUES} values"
        raise yaml.MarkedYAMLError(
            problem=f"{limit}, those of an alias counted at each use", problem_mark=mark
        )
    return node


def _in_hydra_syntax(word: str) -> str:
    """Convert an override to Hydra syntax.

    The prefix ++ is added to a key that may be absent from the configuration files. A value with special
    characters is quoted. "~" in results=~/PATH is expanded. ".yaml" is removed from the name of a
    configuration file, as in study=rbf.yaml. chunk=null becomes chunk=[null], because null would mean that
    the field is not set. where=null becomes where=true.
    """
    name, _, value = word.partition("=")
    field = name.lstrip("+")
    if value.strip().lower() == "null" and field in (*FIELDS, "scaling", "where"):
        return f"{field}={'true' if field == 'where' else '[null]'}"
    # Keys that a YAML file may omit.
    if word.startswith(("sizes.", "sizes=", "cluster.", "tracking.", "hardware.")):
        return f"++{word}"
    if name == "results" and value.startswith("~/"):  # which some shells do not expand after =
        value = os.path.expanduser(value)
    # A revision may contain ~, flags contain =, and 1e3 may be a folder.
    is_text = name in ("versus", "results") or (name == "where" and re.search("[=<>]", value))
    if is_text and value not in ("", "null") and value[0] not in "'\"~[{":
        return "{}='{}'".format(name, value.replace("'", "\\'"))
    if name in _GROUPS:
        return re.sub(r"\.yaml(?=['\"]?$)", "", word)
    return word


def _explain_hydra_error(error: Exception, words: Sequence[str]) -> Refusal:
    """Return a `Refusal` that explains in one line why Hydra cannot compose the arguments `words`."""
    from hydra.errors import MissingConfigException, OverrideParseException

    text = " ".join(str(error.__cause__ or error).split())
    # The function of Hydra that reads a file has its path in this variable.
    frames = [frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__)]
    file = next((os.path.relpath(names["full_path"]) for names in frames if "full_path" in names), "a file")
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark):
        return Refusal(
            f"{os.path.relpath(mark.name)}, line {mark.line + 1}: {error.problem}; correct this file"
        )
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, name = (error.missing_cfg_file or "").partition("/")
        fix = f"; your own is DIR/study/{Path(name).name}.yaml, with --config-dir DIR" * (group == "study")
        return Refusal(f"{unknown_name(group or 'configuration', name, error.options)}{fix}")
    if isinstance(error, OverrideParseException):
        word = error.override.removeprefix("++")
        fix = "quote a value with special characters for the shell and for Hydra, such as \"results='a b'\""
        return Refusal(f"cannot read {word!r}: {fix}; a list is written 'devices=[1,2]'")
    if ambiguous_value := re.search(r"Ambiguous value for argument '\+*([^=']+)=([^']*)'", text):
        name, values = ambiguous_value.groups()
        fix = f"write several values in brackets, '{name}=[{values}]'"
        if name in ("wrt", "forward"):
            fix = f"join inputs with +, {name}={values.replace(',', '+')}; a study sweeps a list"
        return Refusal(
            f"{name}={values}: {'name one, and run the others after it' if name in _GROUPS else fix}"
        )
    for pattern, explanation in _EXPLANATIONS.items():
        if match := re.search(pattern, text):
            return Refusal(explanation.format(*match.groups(), words=" ".join(words)[:200], file=file))
    nodes = [names["node"] for names in frames if isinstance(names.get("node"), yaml.Node)]
    if nodes:  # a value that does not have the type of its tag, such as !!int x
        line, tag = nodes[-1].start_mark.line + 1, nodes[-1].tag.rpartition(":")[2]
        return Refusal(f"{file}, line {line}: the value is not of the type !!{tag}; correct this file")
    fix = "`scaling run --help` lists every field and its values" if file == "a file" else f"correct {file}"
    return Refusal(f"cannot compose {' '.join(words)[:200]}: {text[:300]}; {fix}")


def describe_groups(words: Sequence[str]) -> str:
    """Return text with a line such as "cluster: local, none, slurm" for each folder of configuration files.

    `words` are the arguments of `scaling run`. The files in the folder of --config-dir are included.
    """
    _, users_folder, _ = _parse_arguments(words, "run")
    folders = [configuration_folder(), *([users_folder] if users_folder else [])]
    files = [path.relative_to(folder) for folder in folders for path in folder.glob("*/**/*.yaml")]
    groups = sorted(group_by(files, lambda path: str(path.parent)).items())
    lines = [f"{group}: {', '.join(sorted({path.stem for path in paths}))}" for group, paths in groups]
    return "\n".join(
        textwrap.fill(line, _WIDTH, subsequent_indent="  ", break_on_hyphens=False) for line in lines
    )


def describe_fields() -> str:
    """Return text with the name, meaning, allowed values and default of each field in conf/config.yaml."""
    valid_values: dict[str, Collection[Any]] = {
        **CHOICES, **OPTIONS, **dict.fromkeys(_BOOLEAN_FIELDS, (True, False)), "wait": (True, False, None),
        "scaling": SCALINGS,
        "workload": [*sorted(built_in("workloads") - {CEILING}), "an import path of your own"],
        "engine": [interface.JAX, *interface.ENGINES, "an import path of your own"],
    }  # fmt: skip
    text = (configuration_folder() / "config.yaml").read_text(encoding="utf-8")
    fields = [
        (f"sampling.{key}" if indent else key, default, comment)
        for indent, key, default, comment in _KEY.findall(text)
        if key not in ("defaults", "sampling")
    ]
    return "\n".join(_format_field(*field, valid_values.get(field[0], ())) for field in fields)


def _format_field(name: str, default: str, comment: str, valid_values: Collection[Any]) -> str:
    default = re.sub(r"\$\{.*?\}", "<study>", default)
    if default == "null":
        default = _in_yaml("strong" if name == "scaling" else getattr(Case, name, None))
    meaning = re.sub(r"\n +# ?", " ", comment).strip().removesuffix(".")
    values = f" Values: {', '.join(map(_in_yaml, valid_values))}." if valid_values else ""
    first = f"  {name}".ljust(_NAME_WIDTH)
    return textwrap.fill(
        f"{meaning}.{values} Default: {default or 'none'}.", _WIDTH, break_long_words=False,
        break_on_hyphens=False, initial_indent=first if len(first) <= _NAME_WIDTH else f"{first} ",
        subsequent_indent=" " * _NAME_WIDTH,
    )  # fmt: skip


def _in_yaml(value: Any) -> str:
    return value if isinstance(value, str) else format_value(value)
