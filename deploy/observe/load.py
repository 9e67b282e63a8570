#!/usr/bin/env python3
"""A load for watching a daemon: clients hold conversations about a few system prompts and come back to the popular ones.

usage: load.py SOCKET [--requests N | --seconds S] [--rate R] [--seed S]
Needs numpy, and libkvtier (KVTIER_LIBRARY names it where the loader does not find it). Prints what it did.
"""
import argparse
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client/python"))
sys.dont_write_bytecode = True

import numpy as np

import kvtier

LAYERS, HEADS, DIM, BLOCK = 4, 2, 64, 128
PROMPTS, PROMPT_BLOCKS = 4, 2
CONVERSATIONS, MAX_BLOCKS = 400, 8
POPULARITY = 1.1  # exponent of Zipf's law
TIMEOUT_MS = 2000


class Load:
    def __init__(self, model, seed):
        self._model = model
        self._random = np.random.default_rng(seed)
        self._kv = self._random.standard_normal((LAYERS, 2, HEADS, MAX_BLOCKS * BLOCK, DIM)).astype(np.float16)
        self._out = np.zeros_like(self._kv)
        self._blocks = np.full(CONVERSATIONS, PROMPT_BLOCKS)
        weights = np.arange(1, CONVERSATIONS + 1, dtype=float) ** -POPULARITY
        self._weights = weights / weights.sum()
        self.requests = self.hits = self.misses = 0

    def tokens(self, conversation):
        """Of a conversation as long as it is now; those about one prompt begin alike."""
        prompt = np.random.default_rng(conversation % PROMPTS).integers(1, 30000, PROMPT_BLOCKS * BLOCK)
        turns = np.random.default_rng(1000 + conversation).integers(1, 30000, (MAX_BLOCKS - PROMPT_BLOCKS) * BLOCK)
        return np.concatenate([prompt, turns])[:self._blocks[conversation] * BLOCK].astype(np.int32)

    def request(self):
        """What an engine does: find the prefix, fetch it, compute the rest, put it."""
        conversation = int(self._random.choice(CONVERSATIONS, p=self._weights))
        # A conversation that has become long begins anew.
        self._blocks[conversation] = self._blocks[conversation] % MAX_BLOCKS + 1
        self._blocks[conversation] = max(self._blocks[conversation], PROMPT_BLOCKS + 1)
        blocks = self._model.keys(self.tokens(conversation))
        self.requests += 1
        if self.requests % 16 == 0:
            self._prefetch(blocks)
        found = self._model.lookup(blocks, timeout_ms=TIMEOUT_MS)
        fetched = self._fetch(blocks) if found.tokens else 0
        self.hits += fetched
        self.misses += len(blocks) - fetched
        if fetched < len(blocks):
            self._put(blocks)

    def _prefetch(self, blocks):
        try:
            self._model.prefetch(blocks, 0, timeout_ms=TIMEOUT_MS).wait(TIMEOUT_MS)
        except kvtier.Error as error:
            if error.code not in kvtier.MISSES:
                raise

    def _fetch(self, blocks):
        lease = self._model.acquire(blocks, timeout_ms=TIMEOUT_MS)
        if lease is None:
            return 0
        with lease:
            return sum(result.ok for result in lease.fetch(kvtier.View(self._out, "lchtd")))

    def _put(self, blocks):
        try:
            self._model.put(blocks, kvtier.View(self._kv, "lchtd"), timeout_ms=TIMEOUT_MS).wait(TIMEOUT_MS)
        except kvtier.Error as error:  # a full daemon refuses; the engine has computed the blocks in any case
            if error.code not in kvtier.MISSES:
                raise


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("socket")
    parser.add_argument("--requests", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--rate", type=float, default=0, help="requests a second at most; 0: as many as it can")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    with kvtier.Client(options.socket, name="load", timeout_ms=TIMEOUT_MS) as client:
        load = Load(client.register_model(kvtier.ModelSpec("load", layers=LAYERS, kv_heads=HEADS, k_dim=DIM, v_dim=DIM)),
                    options.seed)
        start = time.monotonic()
        try:
            while options.requests is None or load.requests < options.requests:
                now = time.monotonic() - start
                if options.seconds is not None and now >= options.seconds:
                    break
                if options.rate:
                    time.sleep(max(0.0, load.requests / options.rate - now))
                load.request()
        except KeyboardInterrupt:
            pass
        print(f"{load.requests} requests, {load.hits} blocks fetched, {load.misses} computed", flush=True)


if __name__ == "__main__":
    main()
