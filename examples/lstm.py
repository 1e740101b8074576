"""Workload `examples.lstm`: the loss of a stacked LSTM with diagonal weights, by all its parameters.

For each character x_t of b bits and each of l layers, elementwise with the hidden state h and the cell c:

    forget = sigmoid(w_0 x + b_0)   ingate = sigmoid(w_1 h + b_1)   outgate = sigmoid(w_2 x + b_2)
    c <- c forget + ingate tanh(w_3 h + b_3)      h <- outgate tanh(c)      x <- h, for the next layer

The first layer gets x_t v_0. The prediction of the next character is y_t = h v_1 + v_2 of the last layer, and the
loss -sum_t x_{t+1} (y_t - log(2 + sum(exp(y_t)))) over the number of predicted bits. Source: LSTM of ADBench
(github.com/microsoft/ADBench), from which GradBench took it. A point is one set of parameters.
"""

import jax
import jax.numpy as jnp

from scaling.workload import InputSpec, Workload, uniform

SIZES = {"l": 2, "c": 12, "b": 5}  # layers, characters, bits of a character
TARGETS = ("gradient",)
VALUE = "loss"
UNROLLED = 2  # characters in one step of the loop


def loss(main, extra, state, sequence):
    """Return the loss of predicting each next character of a sequence, a scalar.

    main: weights w and biases b of each layer, (l, 2, 4, b). extra: the vectors v, (3, b).
    state: h and c of each layer before the first character, (l, 2, b). sequence: the bits x_t, (c, b).
    """
    halved = main * jnp.array([0.5, 0.5, 0.5, 1.0])[:, None]  # sigmoid(z) = (1 + tanh(z / 2)) / 2

    @jax.checkpoint  # stores only the states, and recomputes the gates in the backward pass
    def read_character(state, x):
        layers = []
        for (weight, bias), (hidden, cell) in zip(halved, state, strict=True):
            gates = jnp.tanh(weight * jnp.stack([x, hidden, x, hidden]) + bias)
            forget, ingate, outgate = (1 + gates[:3]) / 2
            cell = cell * forget + ingate * gates[3]
            x = outgate * jnp.tanh(cell)
            layers.append(jnp.stack([x, cell]))
        return jnp.stack(layers), x

    _, hidden = jax.lax.scan(read_character, state, sequence[:-1] * extra[0], unroll=UNROLLED)
    y = hidden * extra[1] + extra[2]
    log_sums = jnp.log(2 + jnp.sum(jnp.exp(y), axis=1, keepdims=True))
    return -jnp.sum(sequence[1:] * (y - log_sums)) / y.size


def workload(case):
    layers, characters, bits = (case.sizes[name] for name in ("l", "c", "b"))
    shape = (characters, bits)
    return Workload(
        loss,
        points={"main": uniform(layers, 2, 4, bits), "extra": uniform(3, bits)},
        shared={
            "state": uniform(layers, 2, bits),
            "sequence": InputSpec(shape, lambda rng, rows: rng.integers(0, 2, (len(rows), *shape)) + 0.0),
        },
        wrt="main+extra",
        terms=characters * bits,
    )
