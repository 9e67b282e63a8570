"""vLLM: a KVConnectorBase_V1. Blocks of the paged cache go to kvtier as they fill up, and come back before a request runs.

    --kv-transfer-config '{"kv_connector": "KvtierConnector", "kv_connector_module_path": "kvtier_adapters.vllm",
                           "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}'

Keys are vLLM's own chained block hashes (tokens, LoRA by name and path, prompt embeddings, salt) in the namespace of the
model. A multimodal item is named there by what the request calls it: blocks from the first one on are left alone. Loads run on
a thread of the worker while other requests are computed; a block that does not come is reported and recomputed. Saves
copy the pages of new blocks out at the end of the step that filled them, before anything can overwrite them, and put
them on another thread; when too many wait they are dropped. A page that was loaded is not saved again: it may have come at
a lower precision. All of it for one group of full attention layers."""

from __future__ import annotations

import functools
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole
from vllm.v1.kv_cache_interface import FullAttentionSpec

import kvtier

from .blocks import Background, Settings, Store, digest_of, dtype_of, folder_revision, logger, model_config_facts, require

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

TOKENS_PER_BLOCK = 128
MAX_BLOCKS_AT_ONCE = 16  # of a load: they are staged together, and under one lease
# What the last two axes of a layer's [page][head][token][content] tensor hold, by attention backend.
CONTENT = {
    "FLASH_ATTN": "token",  # K and V of a token side by side
    "TRITON_ATTN": "token",
    "FLEX_ATTENTION": "token",
    "FLASHINFER": "heads",  # heads of K, then heads of V
    "CPU_ATTN": "plane",  # in each head K of all tokens, then V
}
_SAFE_HASHES = ("sha256", "sha256_cbor")


@dataclass
class Transfer:
    """Consecutive blocks of a request and the engine's pages for them. A load leaves the first `skip` pages alone, and pages
    that no block covers are told as missing."""

    request_id: str
    first_block: int
    hashes: list[bytes]
    parent: bytes | None
    pages: list[int]
    skip: int = 0


@dataclass
class KvtierMetadata(KVConnectorMetadata):
    loads: list[Transfer] = field(default_factory=list)
    saves: list[Transfer] = field(default_factory=list)


def attention_spec(kv_cache_config: KVCacheConfig) -> FullAttentionSpec:
    """Errors: ValueError for caches that are not one group of plain K and V."""
    groups = kv_cache_config.kv_cache_groups
    require(len(groups) == 1, "models with several kinds of attention layers are not supported")
    spec = groups[0].kv_cache_spec
    # Latent (MLA) caches are a subclass, and hold no K and V.
    require(type(spec) is FullAttentionSpec, f"a cache of {type(spec).__name__} is not supported, only of full attention")
    # So vLLM names layers of other kinds where it has no groups for them.
    require(spec.sliding_window is None and spec.attention_chunk_size is None, "sliding windows and chunks are not supported")
    require(not spec.non_causal, "K and V that depend on later tokens are not supported")
    require(spec.head_size == spec.head_size_v, "K and V of different sizes are not supported")
    require(TOKENS_PER_BLOCK % spec.block_size == 0, f"--block-size {spec.block_size} does not divide {TOKENS_PER_BLOCK}")
    dtype_of(spec.dtype)
    return spec


def check_config(config: VllmConfig) -> None:
    """Errors: ValueError for what would make hits wrong or failures fatal."""
    parallel, transfer = config.parallel_config, config.kv_transfer_config
    require(parallel.pipeline_parallel_size == 1, "pipeline parallelism is not supported")
    require(parallel.decode_context_parallel_size == 1 and parallel.prefill_context_parallel_size == 1,
            "context parallelism is not supported")
    speculative = config.speculative_config
    # A draft model's K and V of a token depend on the next token, which is not in the key.
    require(speculative is None or speculative.method == "ngram", "speculative decoding is supported with ngram only")
    require(config.cache_config.prefix_caching_hash_algo in _SAFE_HASHES,
            f"--prefix-caching-hash-algo must be one of {', '.join(_SAFE_HASHES)}: keys must not collide")
    require(transfer.kv_load_failure_policy == "recompute",
            'kv_load_failure_policy must be "recompute": a block that does not come is computed')


def model_spec(config: VllmConfig, spec: FullAttentionSpec, layers: Sequence[str], rank: int, settings: Settings):
    model = config.model_config
    facts = {
        "engine": "vllm",
        "config": model_config_facts(model.hf_config),
        "quantization": str(model.quantization),
        "load_format": str(config.load_config.load_format),  # "dummy" has other weights
        "dtype": str(model.dtype),
        "cache_dtype": str(config.cache_config.cache_dtype),
        "max_model_len": model.max_model_len,  # vLLM chooses the factors of LongRoPE by it
        "layers": list(layers),
        "hash": config.cache_config.prefix_caching_hash_algo,
    }
    # A --revision may be a branch: the commit says more.
    revision = settings.revision or getattr(model.hf_config, "_commit_hash", None) or model.revision or ""
    revision += folder_revision(model.model)
    require(bool(revision), 'a model without a --revision, a commit or a local folder needs a "revision" under "kvtier"')
    return kvtier.ModelSpec(
        model.model, layers=len(layers), kv_heads=spec.num_kv_heads, k_dim=spec.head_size, v_dim=spec.head_size_v,
        dtype=dtype_of(spec.dtype), tokens_per_block=TOKENS_PER_BLOCK, revision=revision,
        config_digest=digest_of(facts), layout_id="vllm", tp=(rank, config.parallel_config.tensor_parallel_size),
        floor=kvtier.Precision[settings.floor])


class Pages:
    """The layers' tensors of a worker, logically [page][head][token][content] whatever their strides."""

    def __init__(self, tensors: Sequence[torch.Tensor], spec: FullAttentionSpec, content: str, pages: int) -> None:
        heads, dim, per_page = spec.num_kv_heads, spec.head_size, spec.block_size
        shape = (pages, 2 * heads, per_page, dim) if content == "heads" else (pages, heads, per_page, 2 * dim)
        for tensor in tensors:
            require(tuple(tensor.shape) == shape, f"a layer's cache has shape {tuple(tensor.shape)}, not {shape}")
            require(tensor.dtype == spec.dtype, f"a layer's cache is of {tensor.dtype}, not {spec.dtype}")
        self._tensors, self._heads, self._dim, self.tokens, self._content = list(tensors), heads, dim, per_page, content
        self._on_host = all(tensor.device.type == "cpu" for tensor in tensors)

    @property
    def page_bytes(self) -> int:
        return sum(tensor[0].numel() * tensor.element_size() for tensor in self._tensors)

    def staging(self, pages: int) -> list[torch.Tensor]:
        return [torch.empty((pages, *tensor.shape[1:]), dtype=tensor.dtype, pin_memory=not self._on_host)
                for tensor in self._tensors]

    def fence(self) -> Any:
        """What the engine has asked its device to do until now; None where there is nothing to wait for."""
        if self._on_host:
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._tensors[0].device))
        return event

    @torch.inference_mode()
    def copy_out(self, pages: Sequence[int]) -> list[torch.Tensor]:
        """Ends when the copy is complete: the pages may then be overwritten."""
        index = torch.tensor(pages, dtype=torch.long)
        return [tensor.index_select(0, index.to(tensor.device)).to("cpu") for tensor in self._tensors]

    @torch.inference_mode()
    def copy_in(self, staged: Sequence[torch.Tensor], rows: Sequence[int], pages: Sequence[int], fence: Any) -> None:
        """Ends when the copy is complete, and begins after the fence."""
        if fence is not None:
            fence.synchronize()
        index, source = torch.tensor(pages, dtype=torch.long), torch.tensor(rows, dtype=torch.long)
        for tensor, part in zip(self._tensors, staged):
            tensor.index_copy_(0, index.to(tensor.device), part.index_select(0, source).to(tensor.device))
        if not self._on_host:
            torch.cuda.current_stream(self._tensors[0].device).synchronize()

    def view(self, staged: Sequence[torch.Tensor]) -> kvtier.View:
        keys, values = zip(*[self._planes(part) for part in staged])
        return kvtier.View(keys, "phtd", v=values, page_table=range(staged[0].shape[0]))

    def _planes(self, part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self._content == "heads":
            return part[:, :self._heads], part[:, self._heads:]
        if self._content == "plane":
            rows = part.contiguous().view(part.shape[0], self._heads, 2 * self.tokens, self._dim)
            return rows[:, :, :self.tokens], rows[:, :, self.tokens:]
        return part[..., :self._dim], part[..., self._dim:]


class Worker:
    """The side that touches the cache. Threads: vLLM's worker thread; `_load` and `_save` on those of the adapter."""

    def __init__(self, store: Store, pages: Pages, max_staged_bytes: int) -> None:
        self._store, self._pages = store, pages
        self._loads = Background("load")
        self._saves = Background("save", max_bytes=max_staged_bytes)
        self._lock = threading.Lock()
        self._ended: list[tuple[str, set[int]]] = []  # loads: request, pages that did not come
        self._errors: set[int] = set()
        self.dropped_saves = 0

    def start_loads(self, loads: Sequence[Transfer]) -> None:
        for load in loads:
            if not self._loads.submit(functools.partial(self._load, load, self._pages.fence())):
                self._end(load, set(load.pages[load.skip:]))

    def start_saves(self, saves: Sequence[Transfer]) -> None:
        for save in saves:
            if not self._start_save(save):
                self.dropped_saves += 1

    def take_ended(self) -> set[str]:
        """Errors of these loads are told by the next take_errors, in the same step."""
        with self._lock:
            ended, self._ended = self._ended, []
        for _, missing in ended:
            self._errors |= missing
        return {request_id for request_id, _ in ended}

    def take_errors(self) -> set[int]:
        errors, self._errors = self._errors, set()
        return errors

    def drain(self, timeout_s: float) -> bool:
        return self._saves.drain(timeout_s) and self._loads.drain(timeout_s)

    def close(self) -> None:
        self._loads.stop()
        self._saves.stop()
        self._store.close()

    def _start_save(self, save: Transfer) -> bool:
        save_bytes = len(save.pages) * self._pages.page_bytes
        if not self._saves.has_room(save_bytes):
            return False  # before the copy
        try:
            staged = self._pages.copy_out(save.pages)
        except (MemoryError, RuntimeError) as error:  # torch tells a want of memory as a RuntimeError
            logger.warning("kvtier: a save is dropped: %s", error)
            return False
        return self._saves.submit(functools.partial(self._save, save, staged), save_bytes)

    def _load(self, load: Transfer, fence: Any) -> None:
        missing = set(load.pages[load.skip:])
        try:
            per_block = TOKENS_PER_BLOCK // self._pages.tokens
            staged = self._pages.staging(min(len(load.hashes), MAX_BLOCKS_AT_ONCE) * per_block)
            view, done, run = self._pages.view(staged), 0, 1
            while done < len(load.hashes) and run > 0:
                run = self._load_run(load, done, view)
                first = done * per_block
                rows = range(max(load.skip, first), first + run * per_block)
                if rows:
                    good = [load.pages[row] for row in rows]
                    self._pages.copy_in(staged, [row - first for row in rows], good, fence)
                    missing -= set(good)
                done += run
        finally:
            self._end(load, missing)  # whatever happened: vLLM waits for every load

    def _load_run(self, load: Transfer, first: int, view: kvtier.View) -> int:
        """How many came of the next blocks, under a lease of their own: the daemon may grant it for fewer than asked."""
        hashes = load.hashes[first:first + MAX_BLOCKS_AT_ONCE]
        parent = load.hashes[first - 1] if first > 0 else load.parent
        loaded = self._store.load(self._store.chain(hashes, parent, load.first_block + first), view)
        return loaded.index(False) if False in loaded else len(loaded)

    def _save(self, save: Transfer, staged: list[torch.Tensor]) -> None:
        self._store.save(self._store.chain(save.hashes, save.parent, save.first_block), self._pages.view(staged))

    def _end(self, load: Transfer, missing: set[int]) -> None:
        with self._lock:
            self._ended.append((load.request_id, missing))


@dataclass
class _Known:
    """What the scheduler's side knows of a request."""

    request: Request
    matched_blocks: int = 0  # stored when it was looked up
    computed_tokens: int = 0  # by vLLM's own prefix cache, then
    saved_blocks: int = 0
    load: Transfer | None = None  # under way
    load_failed: bool = False


class Scheduler:
    """The side that decides. Threads: vLLM's scheduler thread alone. Blocks for a lookup's deadline at most, whatever the
    number of ranks; until it is connected to the daemon for a second one."""

    def __init__(self, stores: Sequence[Store], page_tokens: int, hash_tokens: int, timeout_ms: int,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._stores, self._page_tokens, self._hash_tokens = stores, page_tokens, hash_tokens
        self._timeout_ms, self._clock = timeout_ms, clock
        self._known: dict[str, _Known] = {}
        self._loads: list[Transfer] = []
        self._loaded_pages: set[int] = set()  # whose content came from the daemon, until vLLM computes another
        self._prefix = b""  # of all names

    def matched(self, request: Request, computed_tokens: int) -> tuple[int, bool]:
        known = self._known.setdefault(request.request_id, _Known(request))
        # What failed would fail again; some requests want each token computed.
        if known.load_failed or request.skip_reading_prefix_cache:
            return 0, False
        # One token stays for the engine to compute.
        hashes = self._block_hashes(request)[:(request.num_tokens - 1) // TOKENS_PER_BLOCK]
        known.computed_tokens, known.matched_blocks = computed_tokens, 0
        if len(hashes) * TOKENS_PER_BLOCK > computed_tokens:
            known.matched_blocks = self._found(hashes)
        known.saved_blocks = max(known.saved_blocks, known.matched_blocks)
        tokens = known.matched_blocks * TOKENS_PER_BLOCK - computed_tokens
        return (tokens, True) if tokens > 0 else (0, False)

    def allocated(self, request: Request, pages: Sequence[int], tokens: int) -> None:
        if tokens == 0:
            return  # nothing to load, or it has been: a request that a reset has forgotten meanwhile stays so
        known = self._known[request.request_id]
        end_token = known.computed_tokens + tokens
        first = known.computed_tokens // TOKENS_PER_BLOCK
        load = self._transfer(request, first, end_token // TOKENS_PER_BLOCK, pages)
        load.pages = list(pages[first * TOKENS_PER_BLOCK // self._page_tokens:-(-end_token // self._page_tokens)])
        # Pages before the first new token are vLLM's own, and maybe other requests' too.
        load.skip = (known.computed_tokens - first * TOKENS_PER_BLOCK) // self._page_tokens
        known.load = load
        self._loaded_pages.update(load.pages[load.skip:])
        self._loads.append(load)

    def plan(self, output: SchedulerOutput) -> KvtierMetadata:
        metadata, self._loads = KvtierMetadata(loads=self._loads), []
        for request_id, tokens in output.num_scheduled_tokens.items():
            known = self._known.get(request_id)
            pages = output.kv_connector_block_state.get_block_ids(request_id)
            if known is None or pages is None:
                continue
            computed = known.request.num_computed_tokens
            begun = slice(-(-computed // self._page_tokens), -(-(computed + tokens) // self._page_tokens))
            self._loaded_pages.difference_update(pages[0][begun])
            full = min(computed + tokens, self._named_tokens(known.request),
                       len(pages[0]) * self._page_tokens) // TOKENS_PER_BLOCK
            if full > known.saved_blocks:
                metadata.saves += self._saves(known.request, known.saved_blocks, full, pages[0])
                known.saved_blocks = full
        return metadata

    def loads_ended(self, request_ids: set[str], missing_pages: set[int]) -> None:
        for known in self._known.values():
            if known.load is None:
                continue
            missing = [row for row, page in enumerate(known.load.pages) if row >= known.load.skip and page in missing_pages]
            if missing:
                # From that block on they are to be saved again, once they are computed.
                first = known.load.first_block + missing[0] * self._page_tokens // TOKENS_PER_BLOCK
                known.load_failed, known.saved_blocks = True, min(known.saved_blocks, first)
        for request_id in request_ids:
            if request_id in self._known:
                self._known[request_id].load = None

    def finished(self, request_id: str) -> None:
        self._known.pop(request_id, None)

    def reset(self) -> None:
        """The weights may be others now, under the same name: nothing that is stored is found any more, and what will be has
        names that nobody else knows. Requests that have begun are left alone."""
        self._prefix = os.urandom(16)
        self._known.clear()

    def close(self) -> None:
        for store in self._stores:
            store.close()

    def _found(self, hashes: list[bytes]) -> int:
        """Blocks that every rank has: each has its own of them, and all must have what is loaded."""
        found, end = len(hashes) * TOKENS_PER_BLOCK, self._clock() + self._timeout_ms / 1000
        for store in self._stores:
            blocks = store.chain(hashes)  # may connect first
            left_ms = math.ceil((end - self._clock()) * 1000)
            if left_ms < 1:
                return 0
            found = min(found, store.lookup(blocks, timeout_ms=left_ms))
            if found == 0:
                return 0
        return found // TOKENS_PER_BLOCK

    def _saves(self, request: Request, first: int, end: int, pages: Sequence[int]) -> list[Transfer]:
        """Runs of those blocks without a page that was loaded. Such pages are also others' who share a prefix, and may have
        come at a lower precision, with which they would be stored as exact ones once the daemon has forgotten them."""
        per_block, saves = TOKENS_PER_BLOCK // self._page_tokens, []
        for block in range(first, end):
            if not self._loaded_pages.isdisjoint(pages[block * per_block:(block + 1) * per_block]):
                if block > first:
                    saves.append(self._transfer(request, first, block, pages))
                first = block + 1
        return saves + ([self._transfer(request, first, end, pages)] if end > first else [])

    def _named_tokens(self, request: Request) -> int:
        """Hashes are there for tokens that are known for good: drafts that may be rejected have none. A multimodal item has a
        name that its request chose, or a count of the process, and another has it, too."""
        items = (item.mm_position.offset for item in request.mm_features)
        return min([len(request.block_hashes) * self._hash_tokens, *items])

    def _block_hashes(self, request: Request) -> list[bytes]:
        """vLLM's hash of a block covers all before it: the hash of the last page names a block of ours."""
        per_block, pages = TOKENS_PER_BLOCK // self._hash_tokens, self._named_tokens(request) // self._hash_tokens
        return [self._prefix + bytes(block_hash) for block_hash in request.block_hashes[per_block - 1:pages:per_block]]

    def _transfer(self, request: Request, first: int, end: int, pages: Sequence[int]) -> Transfer:
        hashes, per_block = self._block_hashes(request), TOKENS_PER_BLOCK // self._page_tokens
        return Transfer(request.request_id, first, hashes[first:end], hashes[first - 1] if first > 0 else None,
                        list(pages[first * per_block:end * per_block]))


class KvtierConnector(KVConnectorBase_V1):
    """Errors: ValueError at start-up for what is not supported. A daemon that is away is none."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        check_config(vllm_config)
        self._spec = attention_spec(kv_cache_config)
        self._settings = Settings.of(self._kv_transfer_config.get_from_extra_config("kvtier", None))
        self._layers = list(kv_cache_config.kv_cache_groups[0].layer_names)
        self._worker: Worker | None = None
        self._scheduler: Scheduler | None = None
        if role == KVConnectorRole.SCHEDULER:
            from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

            _, hash_tokens = resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)
            require(TOKENS_PER_BLOCK % hash_tokens == 0, f"hashes of {hash_tokens} tokens do not divide {TOKENS_PER_BLOCK}")
            ranks = range(vllm_config.parallel_config.tensor_parallel_size)
            stores = [Store(self._model(rank), self._settings, connect_timeout_ms=self._settings.timeout_ms) for rank in ranks]
            self._scheduler = Scheduler(stores, self._spec.block_size, hash_tokens, self._settings.timeout_ms)

    def _model(self, rank: int) -> kvtier.ModelSpec:
        return model_spec(self._vllm_config, self._spec, self._layers, rank, self._settings)

    # ---- worker

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        from vllm.config import get_layers_from_vllm_config
        from vllm.distributed.parallel_state import get_tensor_model_parallel_rank
        from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

        layers = get_layers_from_vllm_config(self._vllm_config, AttentionLayerBase, self._layers)
        backends = {layer.get_attn_backend().get_name() for layer in layers.values()}
        self.attach(kv_caches, backends, get_tensor_model_parallel_rank())

    def attach(self, kv_caches: dict[str, torch.Tensor], backends: set[str], rank: int) -> None:
        require(len(backends) == 1 and backends <= CONTENT.keys(),
                f"attention backends {sorted(backends)} are not supported, only one of {sorted(CONTENT)}")
        require(set(self._layers) <= kv_caches.keys(), "a layer has no cache of its own")
        pages = Pages([kv_caches[name] for name in self._layers], self._spec, CONTENT[next(iter(backends))],
                      self._kv_cache_config.num_blocks)
        self._worker = Worker(Store(self._model(rank), self._settings), pages, self._settings.max_staged_mib << 20)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if self._worker is not None:
            self._worker.start_loads(self._get_connector_metadata().loads)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Requests run when all of their loads have ended."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Layers are saved together, at the end of the step."""

    def wait_for_save(self) -> None:
        if self._worker is not None:
            self._worker.start_saves(self._get_connector_metadata().saves)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        return None, (self._worker.take_ended() or None) if self._worker is not None else None

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._worker.take_errors() if self._worker is not None else set()

    # ---- scheduler

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # a save that is dropped is a later miss

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        return self._scheduler.matched(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        pages = blocks.get_block_ids()[0] if num_external_tokens else []
        self._scheduler.allocated(request, pages, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        return self._scheduler.plan(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        output = connector_output
        self._scheduler.loads_ended(set(output.finished_recving or ()), set(output.invalid_block_ids or ()))

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._scheduler.finished(request.request_id)
        return False, None  # nothing reads its pages any more: saves have copied them

    def reset_cache(self) -> bool:
        """vLLM asks for it when weights change in place."""
        if self._scheduler is not None:
            self._scheduler.reset()
        return True

    def shutdown(self) -> None:
        for side in (self._worker, self._scheduler):
            if side is not None:
                side.close()
