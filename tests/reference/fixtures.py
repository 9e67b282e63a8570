"""Loads the fixtures of tests/data (their README has the shapes)."""

from pathlib import Path

import numpy as np

LAYERS, TOKENS, DIM, QUERIES = 4, 512, 64, 64


class Fixture:
    """kv: float16 [layers, K or V, heads, tokens, dim]; q: float16 [layers, query heads, queries, dim]."""

    def __init__(self, kv_path):
        kv_path = Path(kv_path)
        self.kv = np.fromfile(kv_path, dtype="<f2").reshape(LAYERS, 2, -1, TOKENS, DIM)
        q_path = kv_path.with_name(kv_path.name.replace(".kv.f16", ".q.f16"))
        self.q = np.fromfile(q_path, dtype="<f2").reshape(LAYERS, -1, QUERIES, DIM)


def attention(q, k, v):
    """Causal attention of the last QUERIES tokens in float64. q [query heads, queries, dim]; k, v [heads, tokens, dim]."""
    q, k, v = (a.astype(np.float64) for a in (q, k, v))
    per_kv_head = q.shape[0] // k.shape[0]
    k, v = np.repeat(k, per_kv_head, axis=0), np.repeat(v, per_kv_head, axis=0)
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    tokens, queries = k.shape[1], q.shape[1]
    is_later = np.arange(tokens)[None, :] > (tokens - queries + np.arange(queries))[:, None]
    scores[:, is_later] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ v
