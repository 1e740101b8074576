"""Composing: Hydra's own command line on our configuration, from words to plain values.

Knows Hydra, and turns what it cannot compose into a refusal of one line; does not know what the values mean.
"""

import contextlib
import dataclasses
import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from scaling.cluster.settings import NAMES, SLURM, Cluster
from scaling.core.case import Refusal, unknown_name
from scaling.study import hydra_options

_CLUSTER = [f"cluster.{field.name}" for field in dataclasses.fields(Cluster)]
_GROUPS = ("study", "cluster", "tracking", "hardware")


def compose(words: list[str], job: Callable[[dict[str, Any], str], None]) -> None:
    """Call `job(config, study's name)`, once, or (--multirun) once for each combination."""
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    conf = configuration()
    known = _known(conf)
    stopped: list[BaseException] = []

    def task(config: DictConfig) -> None:
        try:
            if not stopped:
                plain = {str(k): v for k, v in OmegaConf.to_container(config, resolve=True).items()}  # type: ignore[union-attr]
                _check(plain, HydraConfig.get().runtime.choices, known)
                _check_cluster(plain["cluster"], conf / "cluster")
                job(plain, HydraConfig.get().runtime.choices["study"])
        except BaseException as error:  # Hydra would print its own words about it first
            stopped.append(error)

    _read_times_as_text()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # raise, so that the words are ours
    hydra_options.check(words, known)
    overrides = [
        word for word in words if "=" in word and not word.startswith("-")
    ]  # argparse wants them all in one place
    program = "scaling" if {"--shell-completion", "-sc"} & {*words} else "scaling run"
    sys.argv = [program, *(word for word in words if word not in overrides), *map(_spelt, overrides)]
    try:
        with _checked_files(), _sweep_removed(stopped):
            hydra.main(version_base=None, config_path=str(conf), config_name="config")(task)()
    except Refusal:
        raise
    except Exception as error:
        raise _plainly(error, known, words) from None
    if stopped and isinstance(stopped[0], OmegaConfBaseException):
        raise _plainly(stopped[0], known, words) from None
    if stopped:
        raise stopped[0]


def complete(words: list[str], verbs: list[str]) -> int:
    """Print what a shell may put at the cursor, or the lines that set completion up; returns the exit status.

    Words of `run` and `plan` are completed by Hydra. Nothing goes wrong aloud while a person types.
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


def _check(config: Mapping[str, Any], choices: Mapping[str, Any], known: list[str]) -> None:
    """Refuse a composed configuration with unknown keys, without known ones, or with several choices of one group."""
    for name in config:
        if name not in known:
            raise unknown_name("key", name, known)
    for name in known:
        if name not in config and name != "hardware":
            raise Refusal(
                f"~{name} removes a key that every study needs: leave that out, or write {name}=..."
            )
    for group, example in (
        ("study", "smoke"),
        ("cluster", "none"),
        ("tracking", "none"),
        ("hardware", "v5p"),
    ):
        if not isinstance(choices.get(group), str) and (group != "hardware" or group not in choices):
            several = f"; several run with --multirun {group}=A,B" if group in ("study", "hardware") else ""
            raise Refusal(f"name one {group}, such as {group}={example}{several}")


def _check_cluster(config: Any, folder: Path) -> None:
    """Refuse a key that a cluster of ours has no use for; one that no cluster has is refused with the values."""
    if not isinstance(config, Mapping) or config.get("name") not in NAMES:
        return
    used = _cluster_keys(folder, config["name"])
    for name in config:
        if name not in used and f"cluster.{name}" in _CLUSTER:
            raise Refusal(
                f"cluster.{name} has no effect with cluster={config['name']}: leave it out, or use {', '.join(used)}"
            )
        if name not in used:
            raise unknown_name(f"key of cluster={config['name']}", name, used)


def _cluster_keys(folder: Path, kind: str) -> list[str]:
    """Return the keys of a kind of cluster, in the order of its file in conf/cluster."""
    lines = (folder / f"{kind}.yaml").read_text(encoding="utf-8").splitlines()
    return [line.partition(":")[0] for line in lines if re.match("[a-z_]+:", line)]


@contextlib.contextmanager
def _sweep_removed(stopped: list[BaseException]) -> Iterator[None]:
    """Remove the folder that Hydra makes for --multirun, if it was not there before and the input is refused."""
    folder = Path("results/.multirun")
    fresh = [each for each in (folder, folder.parent) if not each.exists()]
    refused = True
    try:
        yield
        refused = bool(stopped) and isinstance(stopped[0], Refusal)
    finally:
        if refused and folder in fresh:
            with contextlib.suppress(OSError):
                (folder / "multirun.yaml").unlink(missing_ok=True)
                for each in fresh:
                    each.rmdir()


@contextlib.contextmanager
def _checked_files() -> Iterator[None]:
    """Check every YAML file, within limits, before Hydra reads it."""
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


def configuration() -> Path:
    """Return the folder of our configuration: within an installed package, or in the checkout."""
    package = Path(__file__).resolve().parents[1]
    return next(folder for folder in (package / "conf", package.parent / "conf") if folder.is_dir())


def _read_times_as_text() -> None:
    """Let YAML files hold times such as 2:00:00 as text; YAML 1.1 reads them as numbers to the base of 60."""
    import yaml

    integer = re.compile(r"^(?:[-+]?0b[01_]+|[-+]?0[0-7_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+)$")
    resolvers = yaml.SafeLoader.yaml_implicit_resolvers
    for first, known in resolvers.items():
        resolvers[first] = [(tag, integer if tag.endswith(":int") else pattern) for tag, pattern in known]


def _spelt(word: str) -> str:
    """A word of the command line as Hydra wants it written."""
    name, _, value = word.partition("=")
    if word.startswith(("sizes.", "cluster.sbatch.")) or name in _CLUSTER:  # a file need not declare them all
        return f"++{word}"
    if (
        name == "versus" and value not in ("", "null") and value[0] not in "'\""
    ):  # a revision may hold ~, and flags hold =
        return f"{name}='{value}'"
    return word


def _known(conf: Path) -> list[str]:
    """The keys of the root configuration: the fields, the settings and the groups."""
    lines = (conf / "config.yaml").read_text(encoding="utf-8").splitlines()
    keys = [line.split(":")[0] for line in lines if re.match(r"[a-z_]+:", line)]
    return [key for key in keys if key not in ("defaults", "hydra")] + list(_GROUPS)


def _plainly(error: Exception, known: list[str], words: list[str]) -> Refusal:
    """What Hydra could not compose, in one line with the alternatives."""
    import yaml
    from hydra.errors import MissingConfigException, OverrideParseException

    from scaling.study import yaml_files

    cause = error.__cause__ or error
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, name = (error.missing_cfg_file or "").rpartition("/")
        return unknown_name(group or "configuration", name, error.options)
    if isinstance(cause, yaml.YAMLError):
        return Refusal(yaml_files.describe(cause))
    if isinstance(error, RecursionError):
        return Refusal(
            "cannot compose the configuration: a file or a value refers to itself, in `defaults` or as ${...}"
        )
    if "one subcommand from" in str(error):
        return Refusal(
            "--shell-completion takes install=SHELL or uninstall=SHELL, where SHELL is bash, zsh or fish"
        )
    if isinstance(error, OverrideParseException):
        return _unreadable(error.override)
    text = " ".join(str(cause).split())
    within = re.search(r"full_key: cluster\.(\w+)", text)
    if within and f"cluster.{within.group(1)}" in _CLUSTER:
        return Refusal(
            f"cluster.{within.group(1)} cannot be set: {text[:200]}; conf/cluster has an example of each key"
        )
    if within:
        kinds = [word.partition("=")[2] for word in words if word.startswith("cluster=")]
        kind = kinds[-1] if kinds and kinds[-1] in NAMES else SLURM  # a file for a site is of Slurm
        return unknown_name(
            "key of cluster", within.group(1), _cluster_keys(configuration() / "cluster", kind)
        )
    if within := re.search(r"full_key: hardware\.(\w+)", text):
        return Refusal(
            f"unknown key of hardware {within.group(1)!r}: conf/hardware has one file for each, with every key in it"
        )
    missing = re.search(r"Key '([^']+)' is not in struct", text) or re.search(
        r"Could not override '([^']+)'", text
    )
    if missing and "." not in missing.group(1) and "full_key: sampling" not in text:
        return unknown_name("key", missing.group(1), known)
    if missing:
        place = re.search(r"full_key: (\S+)", text)
        return Refusal(
            f"unknown key {place.group(1) if place else missing.group(1)!r}: `scaling run --help` lists every key"
        )
    if re.search("[Cc]onfig group override", text):
        given = [word for word in words if word.partition("=")[0] in (*_GROUPS, "")]
        return Refusal(
            f"{' '.join(given)!r} names no file: study, cluster and tracking each want one name, such as study=smoke"
        )
    if endless := next((word for word in words if re.search("[0-9]{4301}", word)), None):
        return Refusal(
            f"{endless[:40]}... has a number of {len(endless)} characters: write one of at most 15 digits"
        )
    return Refusal(f"cannot compose the configuration: {text[:300]}")


def _unreadable(word: str) -> Refusal:
    """Return the refusal of a word of the command line that Hydra cannot parse, with the way to quote it."""
    word = word.removeprefix("++")
    name, sign, value = word.partition("=")
    if not sign or not name:
        return Refusal(f"{word!r} is no override: write FIELD=VALUE, such as devices=2 or 'devices=[1,2]'")
    bare = value.strip().strip("'\"").replace("'", "\\'")
    return Refusal(
        f"cannot read {word!r}: quote a value with special characters for the shell and for Hydra, such as \"{name}='{bare}'\"; "
        "a list is written 'devices=[1,2]'"
    )
