"""Drawing a token without sorting the vocabulary against drawing it by definition, over random rows and parameters."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.engine.draw import BlockedRow, TokenDrawer
from tests.factories import kept_probs


@given(
    seed=st.integers(0, 10_000),
    vocab_size=st.sampled_from([1, 2, 5, 255, 256, 257, 700, 5000]),
    spread=st.sampled_from([0.0, 0.5, 3.0, 12.0]),
    num_levels=st.sampled_from([0, 1, 4]),
    num_banned=st.integers(0, 3),
    temperature=st.sampled_from([1e-4, 0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 2, 7, 50, 400, 5000]),
    top_p=st.sampled_from([1e-6, 0.3, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 1e-3, 0.2, 1.0]),
    uniform=st.floats(0.0, 1.0, exclude_max=True),
)
@settings(max_examples=600)
def test_draw_when_row_and_parameters_vary_then_equal_definition(
    seed, vocab_size, spread, num_levels, num_banned, temperature, top_k, top_p, min_p, uniform
):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0.0, spread, vocab_size)
    if num_levels:  # many ties
        logits = np.round(logits * num_levels) / num_levels
    logits[rng.permutation(vocab_size)[: min(num_banned, vocab_size - 1)]] = -np.inf
    params = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    drawer = TokenDrawer(BlockedRow(vocab_size, logits.dtype))
    token = drawer.draw(logits, int(logits.argmax()), uniform, **params)
    probs = kept_probs(logits, **params)
    assert probs[token] > 0.0
    above = float(probs[: token + 1].sum())
    below = above - float(probs[token])
    assert below - 1e-9 <= uniform <= above + 1e-9


@given(
    seed=st.integers(0, 10_000), k=st.integers(1, 20), vocab_size=st.sampled_from([1, 3, 256, 257, 2000]), has_ties=st.booleans()
)
@settings(max_examples=200)
def test_top_ids_when_row_varies_then_equal_full_sort(seed, k, vocab_size, has_ties):
    logits = np.random.default_rng(seed).normal(0.0, 2.0, vocab_size).astype(np.float32)
    if has_ties:
        logits = np.round(logits)
    row = BlockedRow(vocab_size, logits.dtype)
    row.fill(logits, logits.max())
    assert row.top_ids(k).tolist() == np.argsort(-logits, kind="stable")[:k].tolist()
