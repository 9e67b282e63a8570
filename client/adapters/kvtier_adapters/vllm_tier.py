"""vLLM: kvtier as a SecondaryTierManager, a tier below vLLM's own CPU cache. No device code: it copies between that
cache's memory and the daemon.

    --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
        "spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 10737418240, "block_size": 128, "secondary_tiers": [
        {"type": "KvtierTier", "module_path": "kvtier_adapters.vllm_tier", "kv_heads": 8, "head_size": 128, "content": "token",
         "kvtier": {"revision": "..."}}]}}'

`kv_heads` and `head_size` are those of the model (all ranks'), which vLLM does not tell a tier; they are checked against the
size of a block. `content` says how a page holds K and V: "token" (a token's K and V side by side: FlashAttention, Triton and
Flex), "heads" (the heads of K, then those of V: FlashInfer). Chunks ("block_size" above) are 64 tokens or a multiple of 128. More
than one worker needs vLLM's "canonical_layout": true. Keys are vLLM's own. "revision" under "kvtier" is required: vLLM tells
a tier no configuration, so it names the weights and whatever else on the command line changes K and V (--hf-overrides, RoPE
among them, quantization, --max-model-len under LongRoPE). Of a local folder the files' names, sizes and times are taken, too."""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from vllm.v1.kv_offload.base import LookupResult, RequestOffloadingContext, get_offload_block_hash
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

import kvtier

from .blocks import (HASH_BYTES, Background, Settings, Store, chunk_tokens_per_block, digest_of, dtype_of, folder_revision,
                     is_count, logger, require)

if TYPE_CHECKING:
    from vllm.v1.kv_offload.base import OffloadingSpec, OffloadKey, ReqContext, ScheduleEndContext

# A worker's memory of one chunk, outermost axis first: l layer, p page, h heads, t tokens, x content of K and V.
_AXES = {"LBHNC": "lphtx", "LBNHC": "lpthx", "BLHNC": "plhtx", "BLNHC": "plthx", "BHLNC": "phltx"}
_MAX_JOBS = 1024


class ChunkShape:
    """Where K and V are in a row of vLLM's CPU cache. Errors: ValueError for what is not plain K and V."""

    def __init__(self, spec: OffloadingSpec, kv_heads: int, head_size: int, content: str) -> None:
        config = spec.config
        require(is_count(kv_heads) and is_count(head_size), "kv_heads and head_size are whole numbers of at least 1")
        require(len(config.groups) == 1, "models with several kinds of attention layers are not supported")
        group, parallel = config.groups[0], config.parallel
        require(parallel.world_size == 1 or config.canonical_layout, 'several workers need "canonical_layout": true')
        require(parallel.world_size == 1 or parallel.is_parallelism_agnostic,
                "chunks of several workers are supported only where they do not depend on the number of workers")
        require(parallel.pcp_size == 1 and parallel.dcp_size == 1 and parallel.pp_size == 1,
                "context and pipeline parallelism are not supported")
        require(not config.replicated_layout, "latent (MLA) caches hold no K and V")
        require(config.kv_cache_layout in _AXES, f"KV cache layout {config.kv_cache_layout} is not supported")
        require(content in ("token", "heads"), 'content is "token" or "heads"')
        require(content == "token" or parallel.world_size == 1, 'content "heads" is supported for one worker')
        self.dtype = dtype_of(config.model.dtype)
        self.layers, self.pages = len(group.layer_names), config.cache.blocks_per_chunk
        self.page_tokens, self.heads, self.dim = group.tokens_per_block, kv_heads, head_size
        self.tokens_per_block = chunk_tokens_per_block(self.tokens)
        self._content = content
        self._letters = _AXES[config.kv_cache_layout]
        # vLLM's number is of one worker; ours of all.
        expected = self.row_bytes // self.pages
        require(config.worker_kv_bytes_per_block * parallel.world_size == expected,
                f"a block of vLLM has {config.worker_kv_bytes_per_block * parallel.world_size} bytes, {self.layers} layers of "
                f"{kv_heads} heads of {head_size} have {expected}: kv_heads, head_size or the kind of cache is another")

    @property
    def tokens(self) -> int:
        return self.pages * self.page_tokens

    @property
    def row_bytes(self) -> int:
        return self.layers * self.tokens * self.heads * 2 * self.dim * 2

    def view(self, row: np.ndarray) -> kvtier.View:
        """Of one chunk, `row_bytes` of bytes."""
        size = {"l": self.layers, "p": self.pages, "h": self.heads, "t": self.page_tokens, "x": 2 * self.dim}
        letters = self._letters
        if self._content == "heads":
            size["h"], size["x"] = 2 * self.heads, self.dim
        values = row.view(np.uint16).reshape([size[letter] for letter in letters])
        if self._content == "token":
            values = values.reshape([*values.shape[:-1], 2, self.dim])
            return kvtier.View(values, letters[:-1] + "cd", page_table=range(self.pages), dtype=self.dtype)
        keys, values = np.split(values, 2, axis=letters.index("h"))
        return kvtier.View(keys, letters[:-1] + "d", v=values, page_table=range(self.pages), dtype=self.dtype)


class _Lookups(AsyncLookupManager):
    """Asks the daemon on a thread of its own; until it has answered the scheduler hears RETRY."""

    def __init__(self, tier_type: str, exists: Any) -> None:
        self._exists = exists
        super().__init__(tier_type)

    def batch_lookup(self, keys: list[OffloadKey], req_context: ReqContext) -> Iterable[bool]:
        return [self._exists(key) for key in keys]


class KvtierTier(SecondaryTierManager):
    """Threads: the scheduler's, under vLLM's lock; jobs and lookups run on threads of the tier."""

    def __init__(self, offloading_spec: OffloadingSpec, primary_kv_view: memoryview, tier_type: str, *, kv_heads: int,
                 head_size: int, content: str = "token", kvtier: dict[str, Any] | None = None,
                 backpressure_detector: Any = None) -> None:
        super().__init__(offloading_spec=offloading_spec, primary_kv_view=primary_kv_view, tier_type=tier_type,
                         backpressure_detector=backpressure_detector)
        self._shape = ChunkShape(offloading_spec, kv_heads, head_size, content)
        require(self._shape.row_bytes <= self.block_size_bytes, "a chunk of vLLM's CPU cache is too small for its blocks")
        self._rows = np.asarray(primary_kv_view).view(np.uint8)
        settings = Settings.of(kvtier)
        self._store = Store(_model_spec(offloading_spec, self._shape, settings), settings)
        self._blocks_per_chunk = self._shape.tokens // self._shape.tokens_per_block
        self._lookups = _Lookups(tier_type, self._exists)
        self._jobs = Background("tier", threads=2, capacity=_MAX_JOBS)
        self._finished: deque[JobResult] = deque()
        self._loading: dict[int, frozenset[OffloadKey]] = {}

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        found = self._lookups.lookup(key, req_context)
        return LookupResult.RETRY if found is None else LookupResult.HIT if found else LookupResult.MISS

    def submit_store(self, job_metadata: TransferJob) -> None:
        self._submit(job_metadata, self._store_chunk)

    def submit_load(self, job_metadata: TransferJob) -> None:
        self._loading[job_metadata.job_id] = frozenset(job_metadata.keys)
        self._submit(job_metadata, self._load_chunk)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        finished = []
        while self._finished:
            finished.append(self._finished.popleft())
        for result in finished:
            keys = self._loading.pop(result.job_id, frozenset())
            # A miss for this request from now on: as a hit it would be asked for again and again.
            self._lookups.mark_miss(keys - frozenset(result.successful_keys or ()))
        return finished

    def has_pending_work(self) -> bool:
        return bool(self._finished) or bool(self._loading)

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._lookups.cleanup(req_context.req_id)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        self._lookups.flush()

    def drain_jobs(self) -> None:
        self._jobs.drain()

    def _submit(self, job: TransferJob, move: Callable[[OffloadKey, int], bool]) -> None:
        pairs = list(zip(job.keys, (int(chunk) for chunk in job.chunk_ids), strict=True))
        if not self._jobs.submit(functools.partial(self._run, job.job_id, pairs, move)):
            self._finished.append(JobResult(job.job_id, False, successful_keys=[]))

    def _run(self, job_id: int, pairs: list[tuple[OffloadKey, int]], move: Callable[[OffloadKey, int], bool]) -> None:
        start, moved = time.monotonic(), []
        try:
            moved = [key for key, chunk in pairs if move(key, chunk)]
        finally:  # whatever happened: vLLM waits for every job
            self._finished.append(JobResult(job_id, len(moved) == len(pairs), moved, time.monotonic() - start,
                                            len(moved) * self._shape.row_bytes))

    def _store_chunk(self, key: OffloadKey, chunk: int) -> bool:
        return self._store.save(self._blocks(key), self._view(chunk))

    def _load_chunk(self, key: OffloadKey, chunk: int) -> bool:
        loaded = self._store.load(self._blocks(key), self._view(chunk))
        return bool(loaded) and all(loaded)

    def _exists(self, key: OffloadKey) -> bool:
        return self._store.lookup(self._blocks(key)) == self._shape.tokens

    def _blocks(self, key: OffloadKey) -> kvtier.Blocks | None:
        if len(get_offload_block_hash(key)) < HASH_BYTES:
            _tell_short_hashes()
            return None
        return self._store.chunk(bytes(key), self._blocks_per_chunk)

    def _view(self, chunk: int) -> kvtier.View:
        return self._shape.view(self._rows[chunk, :self._shape.row_bytes])

    def shutdown(self) -> None:
        self._jobs.stop()
        self._lookups.shutdown()
        self._store.close()
        self._rows = self._primary_kv_view = None  # vLLM unmaps it now


@functools.cache
def _tell_short_hashes() -> None:
    logger.error("kvtier: --prefix-caching-hash-algo must be sha256 or sha256_cbor: keys must not collide; nothing is stored")


def _model_spec(spec: OffloadingSpec, shape: ChunkShape, settings: Settings) -> kvtier.ModelSpec:
    config = spec.config
    require(bool(settings.revision), 'the tier needs a "revision" under "kvtier": vLLM tells it nothing of the configuration')
    facts = {"engine": "vllm", "dtype": config.model.dtype, "layers": list(config.groups[0].layer_names),
             "hash_tokens": config.cache.tokens_per_hash}
    return kvtier.ModelSpec(
        config.model.name, layers=shape.layers, kv_heads=shape.heads, k_dim=shape.dim, v_dim=shape.dim, dtype=shape.dtype,
        tokens_per_block=shape.tokens_per_block, revision=settings.revision + folder_revision(config.model.name),
        config_digest=digest_of(facts), layout_id="vllm-tier", floor=kvtier.Precision[settings.floor])
