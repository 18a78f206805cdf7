"""The router's way to the model ``route_classifier``: one BLS call per prompt, in the caller's thread."""

from __future__ import annotations

import triton_python_backend_utils as pb_utils

from tandem.errors import EngineFailure
from tandem.routing.stages_classifier import Classified
from tandem.triton.errors_table import from_child
from tandem.triton.responses import read_outputs
from tandem.triton.tensors import texts

MODEL = "route_classifier"


class BlsClassifier:
    """Implements :class:`tandem.routing.stages_classifier.ClassifierPort`. Thread-safe."""

    def classify(self, text: str) -> Classified:
        call = pb_utils.InferenceRequest(
            model_name=MODEL,
            inputs=[pb_utils.Tensor("text_input", texts((text,)))],
            requested_output_names=["fast_suffices", "task"],
        )
        response = call.exec()
        if response.has_error():
            raise from_child(MODEL, response.error())
        outputs = read_outputs(response)
        try:
            return Classified(float(outputs["fast_suffices"].item()), outputs["task"].item().decode())
        except (KeyError, ValueError, AttributeError) as error:
            raise EngineFailure(f"the answer of {MODEL} does not keep to its tensors ({error})") from error
