"""Triton's entry point of the model `slow`: a thin adapter, the logic is in tandem.triton.engine_adapter."""

from tandem.triton.engine_adapter import EngineModel


class TritonPythonModel:
    """The class that Triton's Python backend looks for."""

    def initialize(self, args):
        self._model = EngineModel.load(args)

    def execute(self, requests):
        return self._model.execute(requests)

    def finalize(self):
        self._model.close()
