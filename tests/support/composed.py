"""Studies of conf/, composed by Hydra."""

import hydra
from omegaconf import OmegaConf

from scaling.core.case import FIELDS
from scaling.study.grid import expand_study
from tests.support.paths import CONF


def configuration(*overrides):
    """Return the composed configuration as a dict."""
    with hydra.initialize_config_dir(str(CONF), version_base=None):
        return OmegaConf.to_container(hydra.compose("config", overrides=list(overrides)), resolve=False)


def compose(*overrides):
    """Return the cells of the composed study."""
    config = configuration(*overrides)
    return expand_study(config["study"], {name: config[name] for name in (*FIELDS, "scaling", "where")})
