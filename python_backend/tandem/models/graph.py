"""The decoder of the Llama family as an OpenVINO graph: our own builder, no torch.

``build_graph`` gives the stateful form (one KV variable pair per layer, scaled dot product attention), the form that the weight
compression of NNCF can run on calibration data and that the paged-attention transformation understands (see ``paged``)::

    input_ids ─► embedding ─► layers ─► norm ─► gather sample_idx ─► LM head ─► logits

``sample_idx`` gathers along the first axis: the batch here; after the transformation, where tokens lie along the first axis,
the rows whose logits are wanted. So the LM head, a third of the weights of a small model, never runs for rows that nobody reads.
Q, K and V are one matrix product, gate and up another: fewer, larger products cost less at batch 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset15 as ops
from openvino.op.util import Variable, VariableInfo

from tandem.models.config import ModelConfig
from tandem.models.weights import EMBEDDING, FINAL_NORM, LM_HEAD, Float32Array, WeightSource, layer_tensor

INPUT_IDS = "input_ids"
POSITION_IDS = "position_ids"
ATTENTION_MASK = "attention_mask"
BEAM_IDX = "beam_idx"
SAMPLE_IDX = "sample_idx"
LOGITS = "logits"


def build_graph(source: WeightSource) -> ov.Model:
    """The stateful decoder in float32; the weights are copied out of ``source`` one by one. Raises: SetupError."""
    return _GraphBuilder(source).build()


class _GraphBuilder:
    """Builds one graph. Shapes in comments: B sequences, S tokens, H heads, D head_dim."""

    def __init__(self, source: WeightSource) -> None:
        self._source = source
        self._config: ModelConfig = source.config
        self._assigns: list[ov.Node] = []
        self._input_ids = _parameter(INPUT_IDS, [-1, -1], ov.Type.i64)
        self._position_ids = _parameter(POSITION_IDS, [-1, -1], ov.Type.i64)
        self._mask = _parameter(ATTENTION_MASK, [-1, 1, -1, -1], ov.Type.f32)  # added to the scores
        self._beam_idx = _parameter(BEAM_IDX, [-1], ov.Type.i32)
        self._sample_idx = _parameter(SAMPLE_IDX, [-1], ov.Type.i64)
        self._cos, self._sin = self._rotary_tables()

    def build(self) -> ov.Model:
        embedding = _weight(self._source.tensor(EMBEDDING), EMBEDDING)
        hidden = ops.gather(embedding, self._input_ids, _ints(0))  # [B, S, hidden]
        for layer in range(self._config.num_layers):
            hidden = self._layer(layer, hidden)
        hidden = self._rms_norm(hidden, FINAL_NORM)
        hidden = ops.gather(hidden, self._sample_idx, _ints(0))
        head = embedding if self._config.has_tied_embeddings else _weight(self._source.tensor(LM_HEAD), LM_HEAD)
        logits = ops.matmul(hidden, head, False, True, name=LOGITS)
        logits.output(0).get_tensor().set_names({LOGITS})
        inputs = [self._input_ids, self._position_ids, self._mask, self._beam_idx, self._sample_idx]
        return ov.Model([ops.result(logits)], self._assigns, inputs, "decoder")

    def _layer(self, layer: int, hidden: ov.Node) -> ov.Node:
        normed = self._rms_norm(hidden, layer_tensor(layer, "input_layernorm.weight"))
        hidden = ops.add(hidden, self._attention(layer, normed))
        normed = self._rms_norm(hidden, layer_tensor(layer, "post_attention_layernorm.weight"))
        return ops.add(hidden, self._mlp(layer, normed))

    def _attention(self, layer: int, hidden: ov.Node) -> ov.Node:
        config = self._config
        sizes = [count * config.head_dim for count in (config.num_heads, config.num_kv_heads, config.num_kv_heads)]
        parts = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        qkv = self._linear(layer, "self_attn.qkv_proj", parts, hidden, has_bias=config.has_qkv_bias)
        query, key, value = ops.variadic_split(qkv, _ints(-1), _ints(*sizes)).outputs()
        query = self._rotate(self._heads(layer, query, config.num_heads, "self_attn.q_norm.weight"))
        key = self._rotate(self._heads(layer, key, config.num_kv_heads, "self_attn.k_norm.weight"))
        value = self._heads(layer, value, config.num_kv_heads, None)
        key = self._repeat(self._cached(f"past_key_values.{layer}.key", key))
        value = self._repeat(self._cached(f"past_key_values.{layer}.value", value))
        mixed = ops.scaled_dot_product_attention(query, key, value, self._mask)  # [B, H, S, D]
        flat = ops.reshape(ops.transpose(mixed, _ints(0, 2, 1, 3)), _ints(0, 0, config.num_heads * config.head_dim), True)
        return self._linear(layer, "self_attn.o_proj", ("self_attn.o_proj",), flat, has_bias=config.has_output_bias)

    def _mlp(self, layer: int, hidden: ov.Node) -> ov.Node:
        inner, has_bias = self._config.intermediate_size, self._config.has_mlp_bias
        both = self._linear(layer, "mlp.gate_up_proj", ("mlp.gate_proj", "mlp.up_proj"), hidden, has_bias=has_bias)
        gate, up = ops.variadic_split(both, _ints(-1), _ints(inner, inner)).outputs()
        return self._linear(layer, "mlp.down_proj", ("mlp.down_proj",), ops.multiply(ops.swish(gate), up), has_bias=has_bias)

    def _linear(self, layer: int, name: str, parts: Sequence[str], hidden: ov.Node, *, has_bias: bool) -> ov.Node:
        """One product with the rows of all ``parts`` under each other."""
        product = ops.matmul(hidden, self._stacked(layer, name, parts, "weight"), False, True, name=layer_tensor(layer, name))
        return ops.add(product, self._stacked(layer, name, parts, "bias")) if has_bias else product

    def _stacked(self, layer: int, name: str, parts: Sequence[str], kind: str) -> ov.Node:
        arrays = [self._source.tensor(layer_tensor(layer, f"{part}.{kind}")) for part in parts]
        return _weight(arrays[0] if len(arrays) == 1 else np.concatenate(arrays), layer_tensor(layer, f"{name}.{kind}"))

    def _heads(self, layer: int, flat: ov.Output, num_heads: int, norm: str | None) -> ov.Node:
        """[B, S, H * D] -> [B, H, S, D], each head normed where the model has it (Qwen3)."""
        heads = ops.reshape(flat, _ints(0, 0, num_heads, self._config.head_dim), True)
        if norm is not None and self._config.has_qk_norm:
            heads = self._rms_norm(heads, layer_tensor(layer, norm))
        return ops.transpose(heads, _ints(0, 2, 1, 3))

    def _rms_norm(self, hidden: ov.Node, name: str) -> ov.Node:
        mean_square = ops.reduce_mean(ops.power(hidden, _floats(2.0)), _ints(-1), True)
        root = ops.sqrt(ops.add(mean_square, _floats(self._config.rms_norm_eps)))
        normed = ops.multiply(hidden, ops.divide(_floats(1.0), root))
        return ops.multiply(normed, _weight(self._source.tensor(name), name))

    def _rotary_tables(self) -> tuple[ov.Node, ov.Node]:
        """Cosine and sine of every position. [B, 1, S, D]"""
        frequencies = ops.constant(self._config.inverse_frequencies().astype(np.float32).reshape(1, 1, -1))
        positions = ops.unsqueeze(ops.convert(self._position_ids, "f32"), _ints(-1))
        half = ops.multiply(positions, frequencies)
        angles = ops.unsqueeze(ops.concat([half, half], -1), _ints(1))
        return ops.cos(angles), ops.sin(angles)

    def _rotate(self, heads: ov.Node) -> ov.Node:
        half = self._config.head_dim // 2
        # Axis 3, not -1: so the runtime recognises the pattern and runs it as one operation.
        first, second = ops.variadic_split(heads, _ints(3), _ints(half, half)).outputs()
        turned = ops.concat([ops.multiply(second, _floats(-1.0)), first], -1)
        return ops.add(ops.multiply(heads, self._cos), ops.multiply(turned, self._sin))

    def _cached(self, name: str, new: ov.Node) -> ov.Node:
        """Append to a KV variable that starts empty. The names and the order of nodes are what the transformation looks for."""
        config = self._config
        batch = ops.gather(ops.shape_of(self._input_ids), _ints(0, as_vector=True), _ints(0))
        empty = ops.broadcast(_floats(0.0), ops.concat([batch, _ints(config.num_kv_heads, 0, config.head_dim)], 0))
        info = VariableInfo()
        info.data_shape = ov.PartialShape([-1, config.num_kv_heads, -1, config.head_dim])
        info.data_type = ov.Type.f32
        info.variable_id = name
        variable = Variable(info)
        past = ops.gather(ops.read_value(empty, variable), self._beam_idx, _ints(0))
        full = ops.concat([past, new], -2)
        self._assigns.append(ops.assign(full, variable))
        return full

    def _repeat(self, heads: ov.Node) -> ov.Node:
        """Each key-value head for every query head of its group: [B, H_kv, S, D] -> [B, H, S, D]."""
        config = self._config
        group = config.num_heads // config.num_kv_heads
        if group == 1:
            return heads
        wide = ops.broadcast(ops.unsqueeze(heads, _ints(2)), _ints(1, 1, group, 1, 1), broadcast_spec="BIDIRECTIONAL")
        return ops.reshape(wide, _ints(0, config.num_heads, -1, config.head_dim), True)


def _parameter(name: str, shape: list[int], dtype: ov.Type) -> ov.Node:
    node = ops.parameter(ov.PartialShape(shape), dtype, name=name)
    node.output(0).get_tensor().set_names({name})
    return node


def _weight(array: Float32Array, name: str) -> ov.Node:
    return ops.constant(array, name=name)


def _ints(*values: int, as_vector: bool = False) -> ov.Node:
    """A scalar for one value, a vector for several."""
    array: npt.NDArray[np.int64] = np.array(values if as_vector or len(values) > 1 else values[0], dtype=np.int64)
    return ops.constant(array)


def _floats(value: float) -> ov.Node:
    return ops.constant(np.float32(value))
