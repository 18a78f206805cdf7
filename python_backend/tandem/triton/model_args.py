"""What Triton hands to ``initialize``."""

from __future__ import annotations

import json
from collections.abc import Mapping


def model_parameters(args: Mapping[str, str]) -> dict[str, str]:
    """The ``parameters`` of the model's config.pbtxt: key -> string_value."""
    parameters = json.loads(args["model_config"]).get("parameters", {})
    return {key: value["string_value"] for key, value in parameters.items()}
