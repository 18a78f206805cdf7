"""Triton's entry point of the model `router`: a thin adapter, the logic is in tandem.triton.router_adapter."""

from tandem.triton.router_adapter import RouterModel


class TritonPythonModel:
    """The class that Triton's Python backend looks for."""

    def initialize(self, args):
        self._model = RouterModel.load(args)

    def execute(self, requests):
        return self._model.execute(requests)

    def finalize(self):
        self._model.close()
