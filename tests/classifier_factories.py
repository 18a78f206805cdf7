"""A route classifier without its 90 MB encoder: a fake one that counts letters, and heads of seeded weights."""

from __future__ import annotations

import numpy as np

from tandem.protocol import ROUTE_TASKS
from tandem.routing.classifier_features import NUM_BUCKETS, SURFACE
from tandem.routing.head import Head, OperatingPoint, Platt

NUM_LAYERS, HIDDEN = 2, 8


class FakeEncoder:
    """Vectors that depend on the text only. [NUM_LAYERS, HIDDEN]"""

    identity = "fake"

    def layer_means(self, text):
        counts = np.zeros((NUM_LAYERS, HIDDEN), np.float32)
        for place, char in enumerate(text):
            counts[place % NUM_LAYERS, ord(char) % HIDDEN] += 1
        return counts


def make_head(**changes):
    rng = np.random.default_rng(0)
    layers = changes.pop("layers", (0, 1))
    width = HIDDEN * len(layers) + NUM_BUCKETS + len(SURFACE)
    parts = {
        "encoder": "fake",
        "layers": layers,
        "tasks": ROUTE_TASKS,
        "weights": rng.normal(size=(width, len(ROUTE_TASKS) + 1)).astype(np.float16).astype(np.float32),
        "bias": np.zeros(len(ROUTE_TASKS) + 1, np.float32),
        "surface_mean": np.zeros(len(SURFACE), np.float32),
        "surface_scale": np.ones(len(SURFACE), np.float32),
        "platt": Platt(1.0, 0.0),
        "temperature": 1.0,
        "operating_point": OperatingPoint(0.5, 0.4, 0.6),
        "made_by": {},
    }
    return Head(**{**parts, **changes})
