"""Triton's entry point of the model `route_classifier`: a thin adapter, the logic is in tandem.triton.route_classifier_adapter."""

from tandem.triton.route_classifier_adapter import RouteClassifierModel


class TritonPythonModel:
    """The class that Triton's Python backend looks for."""

    def initialize(self, args):
        self._model = RouteClassifierModel.load(args)

    def execute(self, requests):
        return self._model.execute(requests)

    def finalize(self):
        self._model.close()
