"""The sentence encoder of the route classifier as an ONNX graph, written from the weights of a BERT model; no torch.

Architecture: Devlin et al. 2019, "BERT"; pooling as in Reimers and Gurevych 2019, "Sentence-BERT". Attention, bias with GELU and
residual with layer norm are ONNX Runtime's fused operators (domain ``com.microsoft``), so that nothing has to be recognised and
fused later. One text per call: dynamic quantization has one scale per tensor, so a batch would let neighbours change a decision.

::

    input_ids [1, n] ─► word + position + type 0 ─► norm ─► layer 1 ─► … ─► layer L
                                                            mean over n │          │ mean over n
                                                              layer_means [1, L, hidden]
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from tandem.errors import SetupError
from tandem.models.safetensors_file import SafetensorsFile

INPUT, OUTPUT = "input_ids", "layer_means"
_OPSET, _IR_VERSION = 18, 8
_FUSED = "com.microsoft"
_QKV = ("query", "key", "value")


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """Sizes of a BERT encoder, from its config.json."""

    num_layers: int
    num_heads: int
    norm_epsilon: float

    @classmethod
    def read(cls, path: Path) -> EncoderConfig:
        """Raises: SetupError for anything but a BERT model with exact GELU and absolute positions."""
        try:
            config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            found = (config["model_type"], config["hidden_act"], config.get("position_embedding_type", "absolute"))
            sizes = cls(config["num_hidden_layers"], config["num_attention_heads"], config["layer_norm_eps"])
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise SetupError(
                f"{path}: the configuration of the sentence encoder cannot be read ({error}); install it again"
            ) from error
        if found != ("bert", "gelu", "absolute"):
            raise SetupError(f"{path}: got {found}; the sentence encoder must be a bert with gelu and absolute positions")
        return sizes


class _Graph:
    """Collects nodes and constants; each node has one output, which bears its name."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, value: npt.NDArray[Any]) -> str:
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def node(self, operator: str, inputs: list[str], name: str, *, domain: str = "", **attributes: Any) -> str:
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, domain=domain, **attributes))
        return name


def build_graph(weights: SafetensorsFile, config: EncoderConfig) -> onnx.ModelProto:
    """The float32 encoder. Raises: KeyError when a tensor of the architecture is missing."""
    graph = _Graph()
    hidden = _embeddings(graph, weights, config)
    axis = graph.constant("token_axis", np.array([1], np.int64))
    means = []
    for layer in range(config.num_layers):
        hidden = _layer(graph, weights, config, layer, hidden)
        means.append(graph.node("ReduceMean", [hidden, axis], f"mean.{layer}", keepdims=1))  # [1, 1, hidden]
    graph.node("Concat", means, OUTPUT, axis=1)
    width = weights.tensor("embeddings.LayerNorm.bias").size
    proto = helper.make_graph(
        graph.nodes,
        "sentence_encoder",
        [helper.make_tensor_value_info(INPUT, TensorProto.INT64, [1, "num_tokens"])],
        [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, [1, config.num_layers, width])],
        graph.constants,
    )
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_FUSED, 1)]
    return helper.make_model(proto, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="tandem")


def _embeddings(graph: _Graph, weights: SafetensorsFile, config: EncoderConfig) -> str:
    prefix = "embeddings."
    # Prompts are one segment, so the embedding of type 0 is part of every position.
    positions = weights.tensor(f"{prefix}position_embeddings.weight") + weights.tensor(f"{prefix}token_type_embeddings.weight")[0]
    words = graph.constant("words", weights.tensor(f"{prefix}word_embeddings.weight"))
    begin, one, two = (graph.constant(f"index.{value}", np.array([value], np.int64)) for value in (0, 1, 2))
    shape = graph.node("Shape", [INPUT], "shape")
    length = graph.node("Slice", [shape, one, two], "length")
    here = graph.node("Slice", [graph.constant("positions", positions), begin, length, begin], "positions_here")
    total = graph.node("Add", [graph.node("Gather", [words, INPUT], "words_here"), here], "embeddings")
    scale, shift = (graph.constant(f"norm.{part}", weights.tensor(f"{prefix}LayerNorm.{part}")) for part in ("weight", "bias"))
    return graph.node("LayerNormalization", [total, scale, shift], "hidden", axis=-1, epsilon=config.norm_epsilon)


def _layer(graph: _Graph, weights: SafetensorsFile, config: EncoderConfig, layer: int, hidden: str) -> str:
    prefix = f"encoder.layer.{layer}."

    def matrix(name: str) -> npt.NDArray[np.float32]:
        return weights.tensor(f"{prefix}{name}.weight").T

    def vector(name: str) -> str:
        return graph.constant(f"{prefix}{name}", weights.tensor(prefix + name))

    def dense(name: str, source: str) -> str:
        return graph.node("MatMul", [source, graph.constant(f"{prefix}{name}.weight", matrix(name))], f"{prefix}{name}")

    def add_and_norm(name: str, change: str, residual: str) -> str:
        inputs = [change, residual, *(vector(f"{name}.{part}") for part in ("LayerNorm.weight", "LayerNorm.bias", "dense.bias"))]
        return graph.node("SkipLayerNormalization", inputs, f"{prefix}{name}", domain=_FUSED, epsilon=config.norm_epsilon)

    qkv = np.concatenate([matrix(f"attention.self.{part}") for part in _QKV], axis=1)  # [hidden, 3 * hidden]
    bias = np.concatenate([weights.tensor(f"{prefix}attention.self.{part}.bias") for part in _QKV])
    inputs = [hidden, graph.constant(f"{prefix}qkv.weight", qkv), graph.constant(f"{prefix}qkv.bias", bias)]
    context = graph.node("Attention", inputs, f"{prefix}context", domain=_FUSED, num_heads=config.num_heads)
    attended = add_and_norm("attention.output", dense("attention.output.dense", context), hidden)
    grown = dense("intermediate.dense", attended)
    active = graph.node("BiasGelu", [grown, vector("intermediate.dense.bias")], f"{prefix}gelu", domain=_FUSED)
    return add_and_norm("output", dense("output.dense", active), attended)
