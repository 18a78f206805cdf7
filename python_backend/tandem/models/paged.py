"""From the stateful graph to the served one: paged attention, and what a sampler wants beside the logits.

The transformation is OpenVINO's own; it turns every KV variable into a block tensor and lays the tokens of all sequences along the
first axis. Then the outputs ``log_sum_exp``, ``entropy`` and ``argmax`` are added behind the logits, where they cost little.
"""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset15 as ops
from openvino._offline_transformations import paged_attention_transformation

LOG_SUM_EXP = "log_sum_exp"
ENTROPY = "entropy"
ARGMAX = "argmax"

_MAX_ARGMAX_BLOCK = 256


def to_paged(model: ov.Model) -> None:
    """Modifies ``model``: paged attention inputs instead of KV variables, four outputs with one row per ``sample_idx``."""
    paged_attention_transformation(model)
    _add_statistics(model)
    model.validate_nodes_and_infer_types()


def _add_statistics(model: ov.Model) -> None:
    """The distribution is ``softmax(logits)``: log-sum-exp L = m + log sum exp(x - m), entropy = L - sum p x (nats)."""
    (old_result,) = model.get_results()
    (name,) = old_result.input_value(0).get_names()
    vocab_size = old_result.get_input_partial_shape(0)[-1].get_length()
    last = ops.constant(np.int64(-1))
    logits = ops.reshape(old_result.input_value(0), ops.constant(np.array([-1, vocab_size], np.int64)), False)
    # The maxima of blocks serve both the maximum and its place: every pass over a row of the vocabulary counts at batch 16.
    blocks, block_max = _block_maxima(logits, vocab_size)
    top = ops.reduce_max(block_max, last, True)
    weights = ops.exp(ops.subtract(logits, top))
    total = ops.reduce_sum(weights, last, True)
    # With y = x - m: entropy = log(sum exp y) - sum(exp(y) y) / sum(exp y); free of cancellation between large logits.
    mean = ops.divide(ops.reduce_sum(ops.multiply(weights, ops.subtract(logits, top)), last, True), total)
    log_total = ops.log(total)
    outputs = {
        name: logits,
        LOG_SUM_EXP: ops.squeeze(ops.add(top, log_total), last),
        ENTROPY: ops.squeeze(ops.subtract(log_total, mean), last),
        ARGMAX: _argmax(blocks, block_max),
    }
    old_result.input_value(0).get_tensor().set_names(set())
    for output_name, node in outputs.items():
        node.output(0).get_tensor().set_names({output_name})
    model.remove_result(old_result)
    model.add_results([ops.result(node) for node in outputs.values()])


def _block_maxima(logits: ov.Node, vocab_size: int) -> tuple[ov.Node, ov.Node]:
    """The rows cut into blocks, and the maximum of each block. [n, vocab] -> [n, num_blocks, block], [n, num_blocks]"""
    block = max(size for size in range(1, _MAX_ARGMAX_BLOCK + 1) if vocab_size % size == 0)
    blocks = ops.reshape(logits, ops.constant(np.array([-1, vocab_size // block, block], np.int64)), False)
    return blocks, ops.reduce_max(blocks, ops.constant(np.int64(2)), False)


def _argmax(blocks: ov.Node, block_max: ov.Node) -> ov.Node:
    """The first block with the maximum, then the first id in it: a plain TopK over a whole vocabulary is slow."""
    num_blocks, block = (blocks.get_output_partial_shape(0)[axis].get_length() for axis in (1, 2))
    block_index = _first_max(block_max, num_blocks)  # [n, 1]
    winner = ops.gather(blocks, block_index, ops.constant(np.int64(1)), batch_dims=1)  # [n, 1, block]
    index_in_block = _first_max(ops.squeeze(winner, ops.constant(np.int64(1))), block)
    ids = ops.add(ops.multiply(block_index, ops.constant(np.int32(block))), index_in_block)
    return ops.squeeze(ids, ops.constant(np.int64(1)))


def _first_max(values: ov.Node, size: int) -> ov.Node:
    """Index of the first maximum of each row. [n, size] -> [n, 1]"""
    axis = ops.constant(np.int64(1))
    is_max = ops.equal(values, ops.reduce_max(values, axis, True))
    indices = ops.constant(np.arange(size, dtype=np.int32).reshape(1, size))
    # A row of NaN has no maximum; the last index keeps the result a valid token id.
    return ops.reduce_min(ops.select(is_max, indices, ops.constant(np.int32(size - 1))), axis, True)
