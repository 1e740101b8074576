"""The Jacobian of a small convolutional network by its parameters, for a neural tangent kernel of 64 images.

Thread: google/neural-tangents#100, https://github.com/google/neural-tangents/issues/100 (2021): images of 28
x 28, a convolution with 64 channels, a global average and ten outputs. Out of memory on a GTX 1080 Ti.

All 640 outputs of the batch are differentiated together, and each cotangent has the size of all feature maps.
But an output depends on one image only. So a point is an image here.
"""

import jax
import jax.numpy as jnp
import numpy as np

from scaling.workload import Reference, Workload, normal

SIZES = {"side": 4, "channels": 2, "labels": 3}
SMALL = {"side": 4, "channels": 2, "labels": 3, "points": 2}
THREAD = {"side": 28, "channels": 64, "labels": 10, "points": 64}
REPORT = {
    "thread": "google/neural-tangents#100", "asked": "Jacobian, 640 x 1,290", "needed": "out of memory",
    "machine": "GTX 1080 Ti",
}  # fmt: skip


def network(image, conv, shift, dense, bias):
    """Return the outputs (labels,) for an image (side, side): convolution, mean over pixels, dense layer."""
    layout = ("NHWC", "HWIO", "NHWC")
    x = jax.lax.conv_general_dilated(image[None, :, :, None], conv, (1, 1), "SAME", dimension_numbers=layout)
    return jax.nn.relu(jnp.mean(jax.nn.relu(x[0] + shift), axis=(0, 1)) @ dense + bias)


def parameters(sizes):
    """Return a dict from the name of each parameter of the network to its shape."""
    channels, labels = sizes["channels"], sizes["labels"]
    return {"conv": (3, 3, 1, channels), "shift": (channels,), "dense": (channels, labels), "bias": (labels,)}


def reported_call(sizes):
    """Return (function, JAX transformation, dict from input to shape) of the call in the GitHub thread."""
    of_batch = lambda parameters, images: jax.vmap(lambda x: network(x, **parameters))(images)  # noqa: E731
    images = (sizes["points"], sizes["side"], sizes["side"])
    return of_batch, jax.jacrev, {"parameters": parameters(sizes), "images": images}


def reference(inputs):
    """Return outputs and their Jacobians in float64: (points, labels), (points, labels, parameters)."""
    image, conv, dense = inputs["image"], inputs["conv"].reshape(9, -1), inputs["dense"]
    padded, side = np.pad(image, ((0, 0), (1, 1), (1, 1))), image.shape[1]
    patches = [padded[:, i : i + side, j : j + side] for i in range(3) for j in range(3)]
    patches = np.stack(patches, axis=-1).reshape(len(image), -1, 9)
    maps = patches @ conv + inputs["shift"]  # (points, pixels, channels)
    active, feature = maps > 0, np.maximum(maps, 0).mean(axis=1)
    output = feature @ dense + inputs["bias"]
    gate = (output > 0)[..., None] * np.eye(len(inputs["bias"]))  # (points, labels, labels)
    by_feature = gate @ dense.T  # (points, labels, channels)
    by_shift = by_feature * active.mean(axis=1)[:, None]
    by_conv = by_feature[:, :, None] * (patches.transpose(0, 2, 1) @ active / side**2)[:, None]
    by_dense = feature[:, None, :, None] * gate[:, :, None]
    blocks = [block.reshape(*output.shape, -1) for block in (by_conv, by_shift, by_dense, gate)]
    return Reference(np.maximum(output, 0), np.concatenate(blocks, axis=2))


def workload(case):
    side = case.sizes["side"]
    shared = {name: normal(shape) for name, shape in parameters(case.sizes).items()}
    wrt = "+".join(shared)
    image = {"image": normal(side, side)}
    return Workload(network, points=image, shared=shared, wrt=wrt, reference=reference, terms=side**2)
