"""Eight CPU devices with float64: import this module before JAX is used."""

import os

from scaling.core import environment

os.environ["XLA_FLAGS"] = environment.variables("cpu")["XLA_FLAGS"]
import jax

from scaling.core.timing import Sampling

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_enable_x64", True)

ONCE = Sampling(least=1, most=1, warm_up=0.0)
HERE = {"digest": "test", "platform": "cpu"}
