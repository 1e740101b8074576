"""Studies of conf/ as Hydra composes them."""

import hydra
from omegaconf import OmegaConf

from scaling.core.case import FIELDS
from scaling.study.grid import expand_study
from tests.support.paths import CONF


def configuration(*words):
    with hydra.initialize_config_dir(str(CONF), version_base=None):
        return OmegaConf.to_container(hydra.compose("config", overrides=list(words)), resolve=False)


def compose(*words):
    config = configuration(*words)
    return expand_study(config["study"], {name: config[name] for name in (*FIELDS, "scaling", "where")})
