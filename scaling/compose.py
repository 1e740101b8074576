"""Composing: Hydra's own command line on our configuration, from words to plain values.

Knows Hydra, and turns what it cannot compose into a refusal of one line; does not know what the values mean.
"""

import dataclasses
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scaling.case import Refusal, unknown
from scaling.cluster.settings import Cluster

_CLUSTER = [f"cluster.{field.name}" for field in dataclasses.fields(Cluster)]
_GROUPS = ("study", "cluster", "tracking", "hardware")


def compose(words: list[str], job: Callable[[dict[str, Any], str], None]) -> None:
    """Call `job(config, study's name)`, once, or (--multirun) once for each combination."""
    import hydra
    import yaml
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    package = Path(__file__).resolve().parent
    conf = next(folder for folder in (package / "conf", package.parent / "conf") if folder.is_dir())
    known = _known(conf)
    stopped: list[BaseException] = []

    def task(config: DictConfig) -> None:
        try:
            if not stopped:
                plain = {str(k): v for k, v in OmegaConf.to_container(config, resolve=True).items()}  # type: ignore[union-attr]
                for name in plain:
                    if name not in known:
                        raise unknown("key", name, known)
                study = HydraConfig.get().runtime.choices.get("study")
                if not isinstance(study, str):
                    raise Refusal("name one study, such as study=smoke; several run with --multirun study=rbf,linear")
                if not isinstance(HydraConfig.get().runtime.choices.get("hardware"), str | None):
                    raise Refusal("name one hardware, such as hardware=v5p; several with --multirun hardware=v5p,h100")
                job(plain, study)
        except BaseException as error:  # Hydra would print its own words about it first
            stopped.append(error)

    _read_times_as_text()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # raise, so that the words are ours
    overrides = [word for word in words if "=" in word and not word.startswith("-")]  # argparse wants them all in one place
    sys.argv = ["scaling run", *(word for word in words if word not in overrides), *map(_spelt, overrides)]
    try:
        hydra.main(version_base=None, config_path=str(conf), config_name="config")(task)()
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
        raise _plainly(error, known) from None
    if stopped and isinstance(stopped[0], OmegaConfBaseException):
        raise _plainly(stopped[0], known) from None
    if stopped:
        raise stopped[0]


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
    if name == "versus" and value not in ("", "null") and value[0] not in "'\"":  # a revision may hold ~, and flags hold =
        return f"{name}='{value}'"
    return word


def _known(conf: Path) -> list[str]:
    """The keys of the root configuration: the fields, the settings and the groups."""
    lines = (conf / "config.yaml").read_text(encoding="utf-8").splitlines()
    keys = [line.split(":")[0] for line in lines if re.match(r"[a-z_]+:", line)]
    return [key for key in keys if key not in ("defaults", "hydra")] + list(_GROUPS)


def _plainly(error: Exception, known: list[str]) -> Refusal:
    """What Hydra could not compose, in one line with the alternatives."""
    from hydra.errors import MissingConfigException

    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, name = (error.missing_cfg_file or "").rpartition("/")
        return unknown(group or "configuration", name, error.options)
    text = " ".join(str(error.__cause__ or error).split())
    if within := re.search(r"full_key: cluster\.(\w+)", text):
        return unknown("key of cluster", within.group(1), [name.removeprefix("cluster.") for name in _CLUSTER])
    if within := re.search(r"full_key: hardware\.(\w+)", text):
        return Refusal(f"unknown key of hardware {within.group(1)!r}: conf/hardware has one file for each, with every key in it")
    missing = re.search(r"Key '([^']+)' is not in struct", text) or re.search(r"Could not override '([^']+)'", text)
    if missing and "." not in missing.group(1) and "full_key: sampling" not in text:
        return unknown("key", missing.group(1), known)
    if missing:
        return Refusal(f"unknown key {missing.group(1)!r}: `scaling run --help` lists every key")
    return Refusal(f"cannot compose the configuration: {text[:300]}; study, cluster and tracking each want one name")
