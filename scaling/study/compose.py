"""Compose the configuration of a study with Hydra: from overrides and YAML files to a plain dict.

Errors of Hydra are raised as `Refusal` with a message of one line. This module also implements shell
completion.
"""

import contextlib
import dataclasses
import io
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from scaling.cluster.cluster_settings import NAMES, SLURM, ClusterSettings
from scaling.core.case import Refusal, unknown_name
from scaling.study import hydra_options

_CLUSTER = [f"cluster.{field.name}" for field in dataclasses.fields(ClusterSettings)]
_GROUPS = {"study": "smoke", "cluster": "none", "tracking": "none", "hardware": "v5p"}  # group -> example
_INTEGER = re.compile(r"^(?:[-+]?0b[01_]+|[-+]?0[0-7_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+)$")


def compose(words: list[str], job: Callable[[dict[str, Any], str], None]) -> None:
    """Compose the configuration of a study with Hydra, and call `job(config, study_name)`.

    With --multirun, `job` is called for each combination of values. Raise `Refusal` if the configuration
    cannot be composed. Exceptions of `job` propagate unchanged.

    Args:
        words: The command-line words after the subcommand: overrides and options of Hydra.
        job: The function to call with the composed configuration as a plain dict.
    """
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    conf = configuration()
    known = [*_read_keys(conf / "config.yaml"), *_GROUPS]
    stopped: list[BaseException] = []

    def task(config: DictConfig, choices: Mapping[str, Any]) -> None:
        try:
            if not stopped:
                container: Any = OmegaConf.to_container(config, resolve=True)
                plain = {str(name): value for name, value in container.items()}
                _check_keys(plain, choices, known)
                _check_cluster(plain["cluster"], conf)
                job(plain, choices["study"])
        except BaseException as error:  # Hydra would print its own message first
            stopped.append(error)

    _read_times_as_text()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # make Hydra raise exceptions instead of printing its own message
    hydra_options.check(words, known)
    # argparse accepts overrides only as one uninterrupted sequence.
    overrides = [_in_hydra_syntax(word) for word in words if "=" in word and not word.startswith("-")]
    options = [word for word in words if "=" not in word or word.startswith("-")]
    has_folder = len(options) == 2 and options[0] in ("--config-dir", "-cd") and Path(options[1]).is_dir()
    is_plain = not options or has_folder
    try:
        with _check_files():
            if is_plain and not any("hydra." in word.partition("=")[0] for word in overrides):
                _compose_once(conf, options[1:], overrides, task)
            else:
                _run_hydra(conf, options, overrides, task)
        if stopped:
            raise stopped[0]
    except Exception as error:
        if isinstance(error, Refusal) or (error in stopped and not isinstance(error, OmegaConfBaseException)):
            raise
        raise _explain_hydra_error(error, known, words) from None


_Task = Callable[[Any, Mapping[str, Any]], None]


def _compose_once(conf: Path, folders: list[str], overrides: list[str], task: _Task) -> None:
    """Compose one configuration, and call `task` with it. `hydra.main` would compose it twice."""
    from hydra import compose as compose_config
    from hydra import initialize_config_dir
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import open_dict

    search = [f"hydra.searchpath={[f'file://{Path(folder).absolute()}']}" for folder in folders]
    with initialize_config_dir(str(conf), version_base=None):
        config = compose_config("config", [*overrides, *search], return_hydra_config=True)
    HydraConfig.instance().set_config(config)  # ${hydra:...} refers to this configuration
    with open_dict(config):
        choices = config.pop("hydra").runtime.choices
    task(config, choices)


def _run_hydra(conf: Path, options: list[str], overrides: list[str], task: _Task) -> None:
    import hydra
    from hydra.core.hydra_config import HydraConfig

    program = "scaling" if {"--shell-completion", "-sc"} & {*options} else "scaling run"
    with tempfile.TemporaryDirectory() as scratch:  # --multirun writes files there
        sweep = [f"hydra.sweep.dir='{scratch}'"] if {"--multirun", "-m"} & {*options} else []
        sys.argv = [program, *options, *sweep, *overrides]
        run = hydra.main(version_base=None, config_path=str(conf), config_name="config")
        run(lambda config: task(config, HydraConfig.get().runtime.choices))()


def complete(words: list[str], verbs: list[str]) -> int:
    """Print the shell completions of the word at the cursor, and return exit status 0.

    Hydra completes the words after `run` and `plan`. Errors in these words are not printed, because the user
    is still typing. Without `query=SHELL`, Hydra processes the words, such as `install=SHELL`.

    Args:
        words: The words after the subcommand: `query=SHELL` if a shell requests completions, or other options
            of Hydra.
        verbs: The names of all subcommands of `scaling`.
    """
    if not any(word.startswith("query=") for word in words):
        compose(["--shell-completion", *words], lambda *_: None)
        return 0
    line = os.environ.get("COMP_LINE", "")
    typed = line.split()[1:]
    verb = typed[0] if typed else ""
    if len(typed) < 2 and not (verb and line[-1:].isspace()):
        print(" ".join(each for each in verbs if each.startswith(verb)))
    elif verb in ("run", "plan"):
        os.environ["COMP_LINE"] = line.replace(f" {verb}", "", 1)
        with contextlib.suppress(Exception, SystemExit), contextlib.redirect_stderr(io.StringIO()):
            compose(["--shell-completion", *words], lambda *_: None)
    return 0


def configuration() -> Path:
    """Return the path of `conf`, the folder of YAML files in the installed package or source checkout."""
    package = Path(__file__).resolve().parents[1]
    return next(folder for folder in (package / "conf", package.parent / "conf") if folder.is_dir())


def _read_keys(file: Path) -> list[str]:
    keys = re.findall(r"^([a-z_]+):", file.read_text(encoding="utf-8"), re.MULTILINE)
    return [key for key in keys if key not in ("defaults", "hydra")]


def _check_keys(config: Mapping[str, Any], choices: Mapping[str, Any], known: list[str]) -> None:
    if unknown := [name for name in config if name not in known]:
        raise unknown_name("key", unknown[0], known)
    if missing := [name for name in known if name not in config and name != "hardware"]:
        raise Refusal(
            f"no file sets {missing[0]}: remove the line '# @package' from the file of {missing[0]}"
        )
    for group, example in _GROUPS.items():
        if not isinstance(choices.get(group), str) and (group != "hardware" or group not in choices):
            several = f"; several run with --multirun {group}=A,B" if group in ("study", "hardware") else ""
            raise Refusal(f"name one {group}, such as {group}={example}{several}")


def _check_cluster(config: Any, conf: Path) -> None:
    kind = config.get("name") if isinstance(config, Mapping) else None
    if kind not in NAMES:
        return
    used = _read_keys(conf / "cluster" / f"{kind}.yaml")
    for name in (name for name in config if name not in used):
        if f"cluster.{name}" not in _CLUSTER:
            raise unknown_name(f"key of cluster={kind}", name, used)
        text = f"cluster.{name} has no effect with cluster={kind}"
        raise Refusal(f"{text}: leave it out, or use {', '.join(used)}")


@contextlib.contextmanager
def _check_files() -> Iterator[None]:
    """Return a context manager in which `yaml_files.check` checks each YAML file that Hydra reads."""
    from hydra._internal.core_plugins.file_config_source import FileConfigSource

    from scaling.study import yaml_files

    read = FileConfigSource.load_config

    def load_config(self: Any, config_path: str) -> Any:
        yaml_files.check(Path(self.path) / self._normalize_file_name(config_path))
        return read(self, config_path)

    FileConfigSource.load_config = load_config  # type: ignore[method-assign]
    try:
        yield
    finally:
        FileConfigSource.load_config = read  # type: ignore[method-assign]


def _read_times_as_text() -> None:
    """Make PyYAML load times such as 2:00:00 as strings instead of base-60 integers."""
    import yaml

    resolvers = yaml.SafeLoader.yaml_implicit_resolvers
    for first, known in resolvers.items():
        resolvers[first] = [(tag, _INTEGER if tag.endswith(":int") else pattern) for tag, pattern in known]


def _in_hydra_syntax(word: str) -> str:
    name, _, value = word.partition("=")
    if word.startswith(("sizes.", "cluster.sbatch.")) or name in _CLUSTER:  # keys that a YAML file may omit
        return f"++{word}"
    if name == "versus" and value not in ("", "null") and value[0] not in "'\"":
        return f"{name}='{value}'"  # a revision may contain ~, and flags contain =
    return word


def _explain_hydra_error(error: Exception, known: list[str], words: list[str]) -> Refusal:
    import yaml
    from hydra.errors import MissingConfigException, OverrideParseException

    from scaling.study import yaml_files

    cause = error.__cause__ or error
    text = " ".join(str(cause).split())
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, name = (error.missing_cfg_file or "").rpartition("/")
        return unknown_name(group or "configuration", name, error.options)
    if isinstance(cause, yaml.YAMLError):
        return Refusal(yaml_files.describe(cause))
    if isinstance(error, OverrideParseException):
        return _explain_override(error.override)
    if refusal := _explain_key(text, known, words):
        return refusal
    selected = " ".join(word for word in words if word.lstrip("+").partition("=")[0] in (*_GROUPS, ""))
    endless = next((word for word in words if re.search("[0-9]{4301}", word)), "")
    ambiguous = re.search(r"Ambiguous value for argument '\+*([^=']+)=([^']*)'", text)
    name, values = ambiguous.groups() if ambiguous else ("", "")
    explanations = [
        (isinstance(error, RecursionError),
         "cannot compose the configuration: a file or a value refers to itself, in `defaults` or as ${...}"),
        ("one subcommand from" in str(error),
         "--shell-completion takes install=SHELL or uninstall=SHELL, where SHELL is bash, zsh or fish"),
        ("onfig group override" in text,
         f"{selected!r} names no file: study, cluster and tracking each need one name, such as study=smoke"),
        ("more than once in the final defaults" in text or "Multiple values for" in text,
         f"{selected!r} adds a second file: write it without the +"),
        (endless != "",
         f"{endless[:40]}... has a number of {len(endless)} characters: write one of at most 15 digits"),
        (name in _GROUPS, f"{name}={values} names several files: add --multirun to run one after another"),
        (ambiguous is not None, f"{name}={values}: write several values in brackets, '{name}=[{values}]'"),
        (True, f"cannot compose the configuration: {text[:300]}"),
    ]  # fmt: skip
    return Refusal(next(explanation for holds, explanation in explanations if holds))


def _explain_key(text: str, known: list[str], words: list[str]) -> Refusal | None:
    match = re.search(r"full_key: (cluster|hardware)\.(\w+)", text)
    group, key = match.groups() if match else ("", "")
    if f"{group}.{key}" in _CLUSTER:
        return Refusal(f"cluster.{key} cannot be set: {text[:200]}; conf/cluster has an example of each key")
    if group == "cluster":
        kinds = [word.partition("=")[2] for word in words if word.startswith("cluster=")]
        kind = kinds[-1] if kinds and kinds[-1] in NAMES else SLURM  # a user's own file is for Slurm
        return unknown_name("key of cluster", key, _read_keys(configuration() / "cluster" / f"{kind}.yaml"))
    if group == "hardware":
        return Refusal(
            f"unknown key of hardware {key!r}: conf/hardware has one file for each, with every key in it"
        )
    missing = re.search(r"Key '([^']+)' is not in struct", text) or re.search(
        r"Could not override '([^']+)'", text
    )
    if missing is None:
        return None
    if "." not in missing[1] and "full_key: sampling" not in text:
        return unknown_name("key", missing[1], known)
    where = re.search(r"full_key: (\S+)", text) or missing
    return Refusal(f"unknown key {where[1]!r}: `scaling run --help` lists every key")


def _explain_override(word: str) -> Refusal:
    word = word.removeprefix("++")
    name, sign, value = word.partition("=")
    if not sign or not name:
        text = f"{word!r} is not an override: write FIELD=VALUE"
        return Refusal(f"{text}, such as devices=2 or 'devices=[1,2]'")
    bare = value.strip().strip("'\"").replace("'", "\\'")
    return Refusal(
        f"cannot read {word!r}: quote a value with special characters for the shell and for Hydra, such as "
        f"\"{name}='{bare}'\"; a list is written 'devices=[1,2]'"
    )
