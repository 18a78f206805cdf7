"""Triton's entry point of the model `preprocessing`: a thin adapter, the logic is in tandem.triton.preprocessing_adapter."""

from tandem.triton.preprocessing_adapter import PreprocessingModel


class TritonPythonModel:
    """The class that Triton's Python backend looks for."""

    def initialize(self, args):
        self._model = PreprocessingModel.load(args)

    def execute(self, requests):
        return self._model.execute(requests)

    def finalize(self):
        self._model.close()
