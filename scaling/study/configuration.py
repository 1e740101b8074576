"""Compose the configuration of a study: parse arguments, read YAML files with Hydra, check keys, write help.

Hydra reads the files that arguments such as study=rbf name. The values of the other arguments are YAML.
`compose` checks the names of keys and files. grid.py checks the values of the fields, and expands them into
cases.
"""

import argparse
import difflib
import functools
import json
import os
import re
import textwrap
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
    check_names,
    module_names,
    unknown_name,
)
from scaling.core.formatting import format_value
from scaling.core.grouping import group_by
from scaling.peers import interface

_GROUPS = {"study": "smoke", "cluster": "none", "tracking": "none", "hardware": "v5p"}  # group -> example
_OPEN_GROUPS = ("sizes", "cluster", "tracking", "hardware")  # may get keys that no file contains
# Decimal integers, true and false. YAML 1.1 has also 010 (octal), 2:00:00 (base 60), 0x10, yes, no, on, off.
_PLAIN_SCALARS = {
    "int": re.compile(r"^[-+]?(?:0|[1-9][0-9_]*)$"),
    "bool": re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"),
}
_MAX_VALUES = 10_000  # maximum number of values of a YAML file; the values of an alias count at each use
_BOOLEAN_FIELDS = ("dry_run", "oversubscribe", "bind", "nested", "retry", "overlap", "jit")
_WIDTH = 79  # characters in a line of the help text
# A key, its default, and its comment, which may continue on the following lines.
_KEY = re.compile(r"^( *)([a-z_]+):[ ]*([^#\n]*?)[ ]*(?:#[ ]*(.*(?:\n +#.*)*))?$", re.MULTILINE)


def compose(arguments: Sequence[str], command: str = "run") -> tuple[dict[str, Any], str]:
    """Return the configuration that the arguments of a command describe, and the name of its study.

    With --cfg, print the configuration as YAML, and exit with status 0. `command` is "run" or "plan". Raise
    `Refusal` if an argument or a YAML file is invalid.
    """
    from hydra import compose as compose_config
    from hydra import initialize_config_dir
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf, open_dict

    values, users_folder, prints_config = _parse_arguments(arguments, command)
    selected_files = [_select_file(group, values.pop(group)) for group in _GROUPS if group in values]
    if users_folder:
        _refuse_same_names(users_folder)
        selected_files.append(f"hydra.searchpath={[f'file://{users_folder.absolute()}']}")
    _configure_yaml()
    try:
        with initialize_config_dir(str(configuration_folder()), version_base=None):
            config = compose_config("config", selected_files, return_hydra_config=True)
            HydraConfig.instance().set_config(config)  # ${hydra:...} refers to this configuration
            with open_dict(config):
                choices = config.pop("hydra").runtime.choices
            _set_values(config, values)
            resolved_config: Any = OmegaConf.to_container(config, resolve=True)
    except Refusal:
        raise
    except Exception as error:
        raise _explain_error(error, arguments, users_folder) from None
    if prints_config:
        print(OmegaConf.to_yaml(config), flush=True)
        raise SystemExit(0)
    plain_config = {str(name): value for name, value in resolved_config.items()}
    check_names("key", plain_config, _known_keys())
    for group in _GROUPS:
        _check_group(group, choices.get(group), plain_config.get(group))
    return plain_config, choices["study"]


def _parse_arguments(arguments: Sequence[str], command: str) -> tuple[dict[str, str], Path | None, bool]:
    """Return (values by name, folder of --config-dir or None, whether --cfg is given).

    The values are the texts of arguments such as "devices=2". Raise `Refusal` if an argument is invalid.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--cfg", choices=["job"])
    parser.add_argument("--config-dir", metavar="DIR")
    try:
        options, overrides = parser.parse_known_args(list(arguments))
    except argparse.ArgumentError as error:
        raise Refusal(f"scaling {command}: {error}; `scaling {command} --help` lists what it takes") from None
    folder = options.config_dir
    if folder is not None and not (os.path.isdir(folder) and os.access(folder, os.R_OK | os.X_OK)):
        example = "such as --config-dir my_conf"
        raise Refusal(f"--config-dir takes a folder that can be read, {example}, not {folder!r}")
    values, names = dict[str, str](), [word.partition("=")[0] for word in arguments if word.startswith("--")]
    known_keys = [*_known_keys(), "--help", "--cfg", "--config-dir"]
    for word in overrides:
        name, equals_sign, text = word.lstrip("+").partition("=")
        if equals_sign and name.isidentifier() and not difflib.get_close_matches(name, known_keys):
            fix = f"a size is written sizes.{name}=VALUE; `scaling {command} --help` lists the keys"
            raise Refusal(f"unknown key {name!r}: {fix}")
        check_names("key", [name.partition(".")[0]], known_keys)
        if not equals_sign:
            raise Refusal(f"{word!r} is not an override: write {name}=VALUE")
        values[name] = text
        names += [name, *(f"{name}.{key}" for key in re.findall(r"[{,]\s*(\w+)\s*:", text))]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise Refusal(f"{repeated[0]} is given twice: write it once")
    return values, folder and Path(folder), bool(options.cfg)


def _select_file(group: str, text: str) -> str:
    """Return the Hydra override that selects a file of a group, such as "study='rbf'" for study=rbf.yaml."""
    name = text.strip("'\"").removesuffix(".yaml")
    if not re.fullmatch(r"[\w./ -]+", name) or ".." in name or name.endswith(".yaml"):
        example = f"{group}={_GROUPS[group]}"
        raise Refusal(f"{group}={text}: name one {group} by the name of its file, such as {example}")
    return f"{group}='{name}'"


def _refuse_same_names(folder: Path) -> None:
    """Raise `Refusal` if a file in `folder` has the name of a different file in the folder `conf`."""
    package = configuration_folder()
    for path in package.glob("**/*.yaml"):
        user_file = folder / path.relative_to(package)
        if user_file.is_file() and user_file.read_bytes() != path.read_bytes():
            problem = "has the name of a file of the package, which would be read instead"
            raise Refusal(f"{user_file} {problem}: rename it, such as my_{user_file.name}")


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


def _check_group(group: str, choice: str | None, config: Any) -> None:
    """Raise `Refusal` if the value `config` of a group is not a mapping, or has an invalid key.

    Keys are checked only in the groups "cluster" and "tracking". `choice` is the name of the selected file.
    If it is None for the group "hardware", `config` need not be a mapping.
    """
    if not isinstance(config, Mapping) and (group, choice) != ("hardware", None):
        fix = f"write a mapping in its file, or name another, such as {group}={_GROUPS[group]}"
        raise Refusal(f"{group}={choice} is not a mapping: {fix}")
    if group not in ("cluster", "tracking"):
        return
    files = {path.stem: _read_keys(path) for path in sorted((configuration_folder() / group).glob("*.yaml"))}
    name = config.get("name")
    if name is None:
        raise Refusal(f"{group}={choice} has no key `name`: add `defaults: [{[*files][-1]}]` at its top")
    check_names(f"{group}.name", [name], [*files])
    if name == "wandb":
        return  # `TrackingSettings` checks these keys
    for key in (key for key in config if key not in files[name]):
        names = [other for other, keys in files.items() if key in keys]
        if not names:
            raise unknown_name(f"key of {group}={name}", key, files[name])
        fix = f"leave it out, or write {group}={' or '.join(names)}"
        raise Refusal(f"{group}.{key} has no effect with {group}={name}: {fix}")


def _configure_yaml() -> None:
    """Make PyYAML load 2:00:00, 010, 0x10, yes, no, on and off as strings, and reject too large files."""
    resolvers = yaml.SafeLoader.yaml_implicit_resolvers
    for first, patterns in resolvers.items():
        resolvers[first] = [
            # such as the type int of the tag "tag:yaml.org,2002:int"
            (tag, _PLAIN_SCALARS.get(tag.rpartition(":")[2], regex))
            for tag, regex in patterns
        ]
    yaml.SafeLoader.get_single_node = _read_small_document  # type: ignore[method-assign]


def _read_small_document(loader: Any) -> yaml.Node | None:
    """Return the root node of a YAML document, for use by a PyYAML loader.

    Raise `yaml.MarkedYAMLError` if the document has more than 10,000 values.
    """

    @functools.cache
    def count_values(node: yaml.Node) -> int:
        pairs = node.value if isinstance(node, yaml.MappingNode) else [node.value]
        return 1 + sum(count_values(child) for pair in pairs for child in pair if not isinstance(child, str))

    node = yaml.composer.Composer.get_single_node(loader)
    if node and count_values(node) > _MAX_VALUES:
        limit = f"more than {_MAX_VALUES} values, those of an alias counted at each use"
        raise yaml.MarkedYAMLError(problem=limit, problem_mark=node.start_mark)
    return node


def _set_values(config: Any, values: Mapping[str, str]) -> None:
    """Set keys of a composed configuration in place. `values` maps keys, such as "sizes.p", to YAML text.

    Raise `Refusal` if a key is unknown, or if a text is not YAML.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import ConfigAttributeError, ConfigKeyError

    for group in _OPEN_GROUPS:
        if OmegaConf.is_config(config.get(group)):
            OmegaConf.set_struct(config[group], False)
    for name, text in values.items():
        try:
            config.merge_with_dotlist([f"{name}={_in_yaml_syntax(name, text)}"])
            if OmegaConf.select(config, name) is None and text.lower() not in ("null", "~"):
                raise yaml.YAMLError  # the text is a comment or an anchor without a value
        except yaml.YAMLError:
            fix = "quote a text with special characters for the shell and for YAML, such as \"results='a b'\""
            raise Refusal(f"cannot read {name}={text}: {fix}; a list is written 'devices=[1,2]'") from None
        except (ConfigAttributeError, ConfigKeyError) as error:
            fix = "`scaling run --help` and the files in conf list every key"
            key = max(name, str(error.full_key), key=len)  # for sampling={x: 1}, "sampling.x"
            raise Refusal(f"unknown key {key!r}: {fix}") from None


def _in_yaml_syntax(name: str, text: str) -> str:
    """Convert the value of a command-line argument to the YAML text that Hydra reads.

    Values of `results` and `versus`, and comparisons in `where`, are quoted if necessary. In results=~/PATH,
    "~" is expanded, because some shells do not expand it. where=null becomes where=true. For other fields,
    such as chunk, null becomes [null], because null alone means that the field is not set. Raise `Refusal`
    for several values without brackets.
    """
    if text.lower() in ("null", "~") and name in (*FIELDS, "scaling", "where"):
        return "true" if name == "where" else "[null]"
    if name in FIELDS and re.fullmatch(r"[^\[{'\"]*,.*", text):
        together = f"to differentiate with respect to all of them, write wrt={text.replace(',', '+')}; "
        each = f"to run each of several values, write '{name}=[{text}]'"
        raise Refusal(f"{name}={text}: {together * (name == 'wrt')}{each}")
    if name in ("sizes", "sampling"):
        text = re.sub(r":(?=\S)", ": ", text)  # {p:8} is {p: 8}; in YAML "p:8" would be a key
    if name == "results":
        text = os.path.expanduser(text)
    # A revision may contain ~, flags contain =, and 1e3 may be a folder.
    is_text = name in ("versus", "results") or (name == "where" and re.search("[=<>]", text))
    is_text = is_text and text.lower() != "null" and not text.startswith(("'", '"', "[", "{"))
    return json.dumps(text, ensure_ascii=False) if is_text or not text else text


def _explain_error(error: Exception, arguments: Sequence[str], users_folder: Path | None) -> Refusal:
    """Return a `Refusal` that explains in one line why Hydra cannot compose `arguments`.

    If Hydra failed to load a file, the line names the file.
    """
    from hydra.errors import MissingConfigException
    from omegaconf import OmegaConf

    cause = error.__cause__ or error
    if isinstance(cause, yaml.MarkedYAMLError) and (mark := cause.problem_mark):
        return Refusal(
            f"{os.path.relpath(mark.name)}, line {mark.line + 1}: {cause.problem}; correct this file"
        )
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, name = (error.missing_cfg_file or "").partition("/")
        fix = f"; your own is DIR/study/{Path(name).name}.yaml, with --config-dir DIR" * (group == "study")
        return Refusal(f"{unknown_name(group or 'configuration', name, error.options)}{fix}")
    text = str(cause).replace("Incompatible key type 'NoneType'", "a key is null or ~")
    reason = " ".join(re.split(r'object_type|Config search path|full_key: *\n|\n +in "', text)[0].split())
    if isinstance(cause, RecursionError):
        reason = "a file or a value refers to itself, or has too many levels"
    folders = filter(None, (users_folder, configuration_folder()))
    for path in (path for folder in folders for path in folder.glob("**/*.yaml")):
        try:
            OmegaConf.load(path)
        except Exception as other:
            if str(other) == str(cause) or type(other) is type(cause) is RecursionError:
                return Refusal(f"{os.path.relpath(path)}: {reason[:300]}; correct this file")
    fix = "correct the argument or the file that this names"
    return Refusal(f"cannot compose {' '.join(arguments)[:200]}: {reason[:300]}; {fix}")


def describe_groups(arguments: Sequence[str]) -> str:
    """Return help text with a line such as "cluster: local, none, slurm" for each group of YAML files.

    The files in the folder of --config-dir are included.
    """
    _, users_folder, _ = _parse_arguments(arguments, "run")
    folders = [configuration_folder(), *([users_folder] if users_folder else [])]
    files = [path.relative_to(folder) for folder in folders for path in folder.glob("*/**/*.yaml")]
    groups = sorted(group_by(files, lambda path: str(path.parent)).items())
    lines = [f"{group}: {', '.join(sorted({path.stem for path in paths}))}" for group, paths in groups]
    return "\n".join(map(_wrap, lines))


def describe_fields() -> str:
    """Return help text with the name, meaning, values and default of each field in conf/config.yaml."""
    valid_values: dict[str, Collection[Any]] = {
        **CHOICES, **OPTIONS, **dict.fromkeys(_BOOLEAN_FIELDS, (True, False)), "wait": (True, False, None),
        "scaling": SCALINGS,
        "workload": [*sorted(module_names("workloads") - {CEILING}), "an import path of your own"],
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
    text = f"{name}: {meaning}.{values} Default: {default or 'none'}."
    return _wrap(text, "  ")


def _wrap(text: str, indent: str = "") -> str:
    """Return a paragraph of the help text, wrapped at 79 characters. Its first line starts with `indent`."""
    return textwrap.fill(
        text, _WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ", break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def _in_yaml(value: Any) -> str:
    return value if isinstance(value, str) else format_value(value)
