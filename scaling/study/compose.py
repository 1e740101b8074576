"""Compose study configurations with Hydra from conf/ and overrides, check YAML files, explain errors."""

import contextlib
import dataclasses
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from scaling.core.case import FIELDS, Refusal, check_names, unknown_name
from scaling.core.timing import Sampling
from scaling.study import arguments

_GROUPS = {"study": "smoke", "cluster": "none", "tracking": "none", "hardware": "v5p"}  # group -> example
# The integers and booleans of YAML 1.2. YAML 1.1 has also 010 (octal), 2:00:00 (base 60), yes, no, on, off.
_PLAIN_SCALARS = {
    "int": re.compile(r"^(?:[-+]?0b[01_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+)$"),
    "bool": re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"),
}
_MAX_STUDIES = 1000  # maximum number of studies of --multirun
_MAX_BYTES = 256 * 1024  # maximum size of a YAML file
_MAX_DEPTH = 40  # maximum number of nesting levels of a YAML file
_MAX_NODES = 10_000  # maximum number of values of a YAML file; the values of an alias count at each use
# Pattern of an error message of Hydra or OmegaConf -> explanation, in which {0} is the first group of the
# pattern, and {selected} lists the overrides that select files, such as study=rbf.
_EXPLANATIONS = {
    r"Recursive interpolation detected full_key: (\S+)":
        "{0} refers to itself, as ${{...}}: write a value",
    r"Interpolation key '(\S+)' not found full_key: (\S+)":
        "{1} refers to ${{{0}}}, which no file sets: write a value, or quote the $ for the shell",
    r"Environment variable '(.*?)' not found.* full_key: (\S+)":
        "{1} refers to ${{oc.env:{0}}}, and {0} is not set: set it, or give a default, ${{oc.env:{0},VALUE}}",
    r"Cannot merge DictConfig with ListConfig full_key: sampling":
        "sampling must be a mapping such as {{seconds: 1.0}}, not a list",
    r"Cannot merge DictConfig with ListConfig full_key: object_type":
        "a list replaces a mapping of another file, which `defaults` names: write a mapping",
    r"Cannot merge DictConfig with ListConfig full_key: (\S+)":
        "{0} must be a mapping such as {{p: 64}}, not a list",
    r"Incompatible key type 'NoneType'":
        "the key of a value is null or ~: write the name of a field or a size",
    r"onfig group override|not iterable|can only concat|nsupported .* in defaults|possible interpolation":
        "{selected!r} (or `defaults` in it) names no file: study, cluster, tracking and hardware need a name",
    r"more than once in the final defaults|Multiple values for":
        "{selected!r} adds a second file: write it without the +",
    r"Sweep parameters '\+*([^=']+)=(.*)' requires":
        "{0}={1} needs --multirun; several values in one study are a list, such as 'points=[8,16]'",
    r"In '(\S+)': Could not load '(\S+)'":
        "{0}.yaml names {1} in `defaults`, and there is no such file: correct the name, or leave it out",
    r"(.*(?:nterpolation|viable alternative|mismatched input).*) full_key: (\S+)":
        "{1} has a ${{...}} that cannot be read ({0}): write a value, ${{oc.env:NAME}} or ${{study.FIELD}}",
}  # fmt: skip
Composed = tuple[dict[str, Any], str]  # (configuration as a plain dict, name of the study)


def compose(words: Sequence[str], command: str = "run") -> list[Composed]:
    """Return (configuration, study name) for each study that the command-line arguments `words` select.

    With --multirun, each combination of values is a study. With --cfg, print the configurations as YAML, and
    return []. `command` is "run" or "plan". Raise `Refusal` if an argument or a YAML file is invalid.
    """
    from hydra import initialize_config_dir

    options = arguments.parse(words, known_keys(), command)
    overrides = [_in_hydra_syntax(word) for word in options.overrides]
    conf, search_path = str(configuration_folder()), []
    if options.config_dir:
        search_path = [f"hydra.searchpath={[f'file://{Path(options.config_dir).absolute()}']}"]
    _read_yaml_1_1_scalars_as_text()
    try:
        with _checked_files(options.config_dir), initialize_config_dir(conf, version_base=None):
            combinations = _split_sweep(overrides) if options.multirun else [overrides]
            composed = [
                _compose_once([*map(_keep_null, combination), *search_path], options.cfg)
                for combination in combinations
            ]
    except Refusal:
        raise
    except Exception as error:
        raise _explain_hydra_error(error, words) from None
    return [] if options.cfg else composed


def configuration_folder() -> Path:
    """Return the path of the folder `conf`, which contains the YAML files of the configuration."""
    package = Path(__file__).resolve().parents[1]
    return next(folder for folder in (package / "conf", package.parent / "conf") if folder.is_dir())


def known_keys() -> list[str]:
    """Return the names of all fields and groups of the configuration, such as "devices" and "cluster"."""
    return [*_read_keys(configuration_folder() / "config.yaml"), *_GROUPS]


def _read_keys(file: Path) -> list[str]:
    """Return the top-level keys of a YAML file, except `defaults`."""
    keys = re.findall(r"^([a-z_]+):", file.read_text(encoding="utf-8"), re.MULTILINE)
    return [key for key in keys if key != "defaults"]


def _split_sweep(overrides: list[str]) -> list[list[str]]:
    """Return a list of overrides for each combination of the values in sweeps such as study=rbf,linear."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import RangeSweep

    parser = OverridesParser.create(GlobalHydra.instance().config_loader())
    given = " ".join(override.removeprefix("++") for override in overrides)  # see `_in_hydra_syntax`
    parsed = parser.parse_overrides(overrides)
    sweeps = [  # `sweep_iterator` of shuffle(range(1,1e9)) would make a list of all values
        value.range() if isinstance(value := override.value(), RangeSweep) else override.sweep_iterator()
        for override in parsed
        if override.is_discrete_sweep()
    ]
    if math.prod(sum(1 for _ in islice(sweep, _MAX_STUDIES + 1)) for sweep in sweeps) > _MAX_STUDIES:
        fix = "sweep less, or write a list such as points=[8,16], which sweeps within one study"
        raise Refusal(f"--multirun {given} is more than {_MAX_STUDIES} studies: {fix}")
    (combinations,) = BasicSweeper.split_arguments(parsed, None)
    if not combinations:  # such as points=range(1,1) or study=glob(x*)
        example = "write one or more values for each field, such as study=rbf,linear"
        raise Refusal(f"--multirun {given} sweeps over no value: {example}")
    return combinations


def _compose_once(overrides: list[str], only_print: bool) -> Composed:
    """Return (configuration, study name) for a list of overrides.

    If `only_print` is true, print the configuration as YAML, and return ({}, "").
    """
    from hydra import compose as compose_config
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf, open_dict

    config = compose_config("config", overrides, return_hydra_config=True)
    HydraConfig.instance().set_config(config)  # ${hydra:...} refers to this configuration
    with open_dict(config):
        choices = config.pop("hydra").runtime.choices
    if only_print:
        print(OmegaConf.to_yaml(config))
        return {}, ""
    resolved_config: Any = OmegaConf.to_container(config, resolve=True)
    plain_config = {str(name): value for name, value in resolved_config.items()}
    _check_keys(plain_config, choices)
    for group in ("cluster", "tracking"):
        _check_group(group, plain_config[group])
    return plain_config, choices["study"]


def _check_keys(config: Mapping[str, Any], choices: Mapping[str, Any]) -> None:
    """Raise `Refusal` if a key is unknown, missing or misplaced, or if a group has no file or no mapping.

    `choices` maps each group, such as "cluster", to its selected file. The group "hardware" needs no file.
    """
    known_names = known_keys()
    check_names("key", config, known_names)
    for name in known_names:
        if name not in config and name != "hardware":
            raise Refusal(f"no file sets {name}: remove the line '# @package' from the file of {name}")
    for group, example in _GROUPS.items():
        if not isinstance(choices.get(group), str) and (group != "hardware" or group not in choices):
            several = f"; several run with --multirun {group}=A,B" if group in ("study", "hardware") else ""
            raise Refusal(f"name one {group}, such as {group}={example}{several}")
        if choices[group] and not isinstance(config.get(group), dict):
            fix = f"write a mapping in its file, or name another, such as {group}={example}"
            raise Refusal(f"{group}={choices[group]} is not a mapping: {fix}")
    for name, value in config["study"].items():
        if name in known_names and name not in (*FIELDS, "scaling", "where"):
            key = f"{name}.{next(iter(value))}" if isinstance(value, dict) and value else name
            fix = f"leave it out, and write {key}=VALUE on the command line"
            fix = "remove this line and the indentation below it" if name == "study" else fix
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


def _read_yaml_1_1_scalars_as_text() -> None:
    """Make PyYAML load numbers such as 2:00:00 and 010, and the words yes, no, on and off, as strings."""
    resolvers = yaml.SafeLoader.yaml_implicit_resolvers
    for first, patterns in resolvers.items():
        resolvers[first] = [
            # such as the type int of the tag "tag:yaml.org,2002:int"
            (tag, _PLAIN_SCALARS.get(tag.rpartition(":")[2], regex))
            for tag, regex in patterns
        ]


def _in_hydra_syntax(word: str) -> str:
    """Convert an override to Hydra syntax.

    The prefix ++ is added to a key that may be absent from the configuration files. A value with special
    characters is quoted. "~" in results=~/PATH is expanded. ".yaml" is removed from the name of a
    configuration file, as in study=rbf.yaml.
    """
    name, _, value = word.partition("=")
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
        return re.sub(r"\.yaml\b", "", word)
    return word


def _keep_null(override: str) -> str:
    """Replace null by [null] in an override, so that chunk=null becomes chunk=[null].

    Without brackets, null would mean that the field is not set. where=null becomes where=true. All other
    overrides are returned unchanged.
    """
    name, _, value = override.lstrip("+").partition("=")
    # A plain null means "not given".
    is_null = value.strip().lower() == "null" and name in (*FIELDS, "scaling", "where")
    return f"{name}={'true' if name == 'where' else '[null]'}" if is_null else override


def _explain_hydra_error(error: Exception, words: Sequence[str]) -> Refusal:
    """Return a `Refusal` that explains in one line why Hydra cannot compose the arguments `words`."""
    from hydra.errors import MissingConfigException, OverrideParseException

    text = " ".join(str(error.__cause__ or error).split())
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, name = (error.missing_cfg_file or "").partition("/")
        fix = f"; your own is DIR/study/{Path(name).name}.yaml, with --config-dir DIR" * (group == "study")
        return Refusal(f"{unknown_name(group or 'configuration', name, error.options)}{fix}")
    if isinstance(error, OverrideParseException):
        return _explain_unreadable(error.override.removeprefix("++"))
    if unknown_key := re.search(r"is not in struct full_key: (\S+)|Could not override '([^']+)'", text):
        return _explain_unknown_key(unknown_key[1] or unknown_key[2])
    selected = " ".join(word for word in words if word.lstrip("+").partition("=")[0] in _GROUPS)
    prefix = "cannot compose the configuration"
    if isinstance(error, RecursionError):
        return Refusal(f"{prefix}: a file or a value refers to itself, in `defaults` or as ${{...}}")
    if long_number := next((word for word in words if re.search("[0-9]{4301}", word)), ""):
        problem = f"{long_number[:40]}... has a number of {len(long_number)} characters"
        return Refusal(f"{problem}: write one of at most 15 digits")
    if ambiguous_value := re.search(r"Ambiguous value for argument '\+*([^=']+)=([^']*)'", text):
        name, values = ambiguous_value.groups()
        if name in _GROUPS:
            return Refusal(f"{name}={values} names several files: add --multirun to run one after another")
        if name in ("wrt", "forward"):
            fix = f"join inputs with +, {name}={values.replace(',', '+')}; a study sweeps a list"
            return Refusal(f"{name}={values}: {fix}, '{name}=[{values}]'")
        return Refusal(f"{name}={values}: write several values in brackets, '{name}=[{values}]'")
    for pattern, explanation in _EXPLANATIONS.items():
        if match := re.search(pattern, text):
            return Refusal(explanation.format(*match.groups(), selected=selected))
    return Refusal(f"{prefix}: {text[:300]}")


def _explain_unreadable(word: str) -> Refusal:
    name, _, value = word.partition("=")
    unquoted = value.strip().strip("'\"").replace("'", "\\'")
    quoted = f"'{unquoted}'"
    if re.fullmatch(r"\[[^\[\]]*\]", unquoted):  # a list, whose elements are quoted
        items = [f"'{item.strip()}'" for item in unquoted[1:-1].split(",")]
        quoted = f"[{','.join(items)}]"
    fix = "quote a value with special characters for the shell and for Hydra"
    example = f"such as \"{name}={quoted}\"; a list is written 'devices=[1,2]'"
    return Refusal(f"cannot read {word!r}: {fix}, {example}")


def _explain_unknown_key(key: str) -> Refusal:
    root, _, name = key.partition(".")
    if root == "sampling":
        return unknown_name("key of sampling", name, [field.name for field in dataclasses.fields(Sampling)])
    if root == "study":
        check_names("key", [name], known_keys())
        return Refusal(f"unknown key {key!r}: write {name} without the prefix study.")
    return Refusal(f"unknown key {key!r}: `scaling run --help` and the files in conf list every key")


@contextlib.contextmanager
def _checked_files(users_folder: str | None) -> Iterator[None]:
    """Make Hydra raise `Refusal` within this context if a file is invalid or its path contains "..".

    A file in `users_folder` (the value of --config-dir) is also invalid if the package contains a different
    file with the same name.
    """
    from hydra._internal.sources_registry import SourcesRegistry
    from hydra.core.plugins import Plugins

    Plugins.instance()  # registers the class that loads files
    loader: Any = SourcesRegistry.instance().resolve("file")
    load_yaml = loader.load_config

    def check_and_load(source: Any, config_path: str) -> Any:
        if ".." in Path(config_path).parts:
            folder, *_, name = Path(config_path).parts
            raise Refusal(f"{config_path} is a path: name a file in the folder {folder}, such as {name}")
        path = Path(source.path, f"{config_path}.yaml")
        shown_path = os.path.relpath(path) if path.is_relative_to(Path.cwd()) else path.name
        try:
            if path.is_file():
                _check_file(path, shown_path)
                own = Path(users_folder or source.path, f"{config_path}.yaml")
                if own.is_file() and own.read_bytes() != path.read_bytes():
                    problem = "has the name of a file of the package, which would be read instead"
                    raise Refusal(f"{own} {problem}: rename it, such as my_{own.name}")
            return load_yaml(source, config_path)
        except (yaml.YAMLError, OSError, RecursionError) as error:
            raise Refusal(_describe_yaml_error(error, shown_path)) from None

    loader.load_config = check_and_load
    try:
        yield
    finally:
        loader.load_config = load_yaml


def _check_file(path: Path, name: str) -> None:
    """Raise `Refusal` if a YAML file is too large, is not UTF-8, or has too many values or nesting levels."""
    content = path.read_bytes()
    if len(content) > _MAX_BYTES:
        raise Refusal(
            f"{name} is too large: a configuration has at most {_MAX_BYTES // 1024} kB; use `parts`"
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Refusal(f"{name} is not UTF-8 at byte {error.start}: save it as UTF-8") from None
    sizes_by_anchor: dict[str | None, int] = {}  # anchor -> number of values in its value
    parents: list[tuple[str | None, int]] = []  # (anchor, number of values before it) of each open collection
    value_count = 0
    with contextlib.suppress(yaml.YAMLError):  # Hydra reports these errors
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            if isinstance(event, yaml.CollectionEndEvent):
                anchor, before = parents.pop()
                sizes_by_anchor[anchor] = value_count - before
            elif isinstance(event, yaml.NodeEvent):
                if isinstance(event, yaml.CollectionStartEvent):
                    parents.append((event.anchor, value_count))
                is_alias = isinstance(event, yaml.AliasEvent)
                value_count += sizes_by_anchor.get(event.anchor, 1) if is_alias else 1
            if len(parents) > _MAX_DEPTH or value_count > _MAX_NODES:
                limit = f"a file has at most {_MAX_NODES} values, those of an alias counted at each use, and"
                line = event.start_mark.line + 1
                raise Refusal(f"{name}, line {line}: {limit} is at most {_MAX_DEPTH} levels deep")


def _describe_yaml_error(error: Exception, name: str) -> str:
    """Return an error message for the YAML file `name`, with the location, the problem, and a fix."""
    mark = getattr(error, "problem_mark", None)
    location = f"{name}, line {mark.line + 1}" if mark else name
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or error
    advice = "tags and tabs for indentation are not allowed, and text with special characters needs quotes"
    if isinstance(error, RecursionError):
        problem, advice = "an alias refers to a value that contains the alias", "remove it"
    elif isinstance(error, OSError):  # OmegaConf raises it without `strerror` for a file that is no mapping
        advice = "make it readable" if error.strerror else "a file is a mapping, such as `workload: linear`"
        problem = error.strerror or error
    elif "duplicate key" in str(problem):
        advice = "write each key once; several values are a list, such as devices: [1, 2]"
    return f"{location}: {problem}; {advice}"
