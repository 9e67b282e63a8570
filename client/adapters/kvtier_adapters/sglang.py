"""SGLang: a HiCacheStorage, kvtier below the host cache.

    --enable-hierarchical-cache --page-size 64 --hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{
        "backend_name": "kvtier", "module_path": "kvtier_adapters.sglang", "class_name": "KvtierStorage",
        "interface_v1": 1, "kvtier": {"revision": "..."}}'

A page is a block: --page-size 64 or 128. Keys are SGLang's own chained page hashes. They hold tokens, the id of a LoRA (of its
name and path) and the request's salt, so "revision" under "kvtier" is required: it names the weights, and whatever else on the
command line changes K and V (RoPE overrides, quantization). A LoRA that is changed in place keeps its id: then "revision" must
be another one. SGLang calls this from its own prefetch and backup threads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from sglang.srt.mem_cache import utils
from sglang.srt.mem_cache.hicache_storage import (HiCacheStorage, HiCacheStorageConfig, HiCacheStorageExtraInfo, PoolName,
                                                  PoolTransfer, PoolTransferResult)

import kvtier

from .blocks import Settings, Store, digest_of, dtype_of, require

# SGLang's names of host layouts, and the axes of what a page is there.
_AXES = {"layer_first": "lthd", "page_first": "tlhd", "page_first_direct": "lthd", "page_head": "htld"}


class HostPool:
    """SGLang's host memory as views of pages. Errors: ValueError for what is not plain K and V."""

    def __init__(self, pool: Any) -> None:
        require(pool.layout in _AXES, f"--hicache-mem-layout {pool.layout} is not supported, only {', '.join(_AXES)}")
        require(pool.page_size in (64, 128), f"--page-size is {pool.page_size}: it must be 64 or 128")
        require(hasattr(pool, "k_buffer") and hasattr(pool, "v_buffer"), "the host pool holds no K and V")
        require(pool.head_dim == getattr(pool, "v_head_dim", pool.head_dim), "K and V of different sizes are not supported")
        # A draft model's K and V of a token depend on the next token, which is not in the key.
        require(pool.layer_num == getattr(pool, "target_layer_num", pool.layer_num), "draft layers are not supported")
        self.page_tokens, self.layers, self.heads, self.dim = pool.page_size, pool.layer_num, pool.head_num, pool.head_dim
        self.dtype = dtype_of(pool.dtype)
        self._layout, self._k, self._v = pool.layout, pool.k_buffer, pool.v_buffer

    def view(self, token: int) -> kvtier.View:
        """Of the page that begins at this index of the pool."""
        require(token % self.page_tokens == 0, "a page does not begin at a multiple of its size")
        return kvtier.View(self._page(self._k, token), _AXES[self._layout], v=self._page(self._v, token))

    def _page(self, buffer: torch.Tensor, token: int) -> torch.Tensor:
        if self._layout == "layer_first":
            return buffer[:, token:token + self.page_tokens]
        if self._layout == "page_first":
            return buffer[token:token + self.page_tokens]
        return buffer[token // self.page_tokens]


class KvtierStorage(HiCacheStorage):
    """Threads: any. Errors: ValueError at start-up for what is not supported; afterwards all is a miss."""

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: dict[str, Any] | None = None) -> None:
        extra = storage_config.extra_config or {}
        self._settings = Settings.of(extra.get("kvtier"))
        require(bool(extra.get("interface_v1")), 'the extra configuration needs "interface_v1": 1')
        require(bool(self._settings.revision), 'the extra configuration needs a "revision" under "kvtier"')
        require(hasattr(utils, "storage_namespace_seed"), "the page hashes of this SGLang know neither LoRA nor salt")
        require(bool(storage_config.model_name), "the model has no name")
        require(not storage_config.is_mla_model, "latent (MLA) caches hold no K and V")
        require(not storage_config.should_split_heads, "split heads are not supported")
        self._config, self._prefix = storage_config, ""
        self._pool: HostPool | None = None
        self._store: Store | None = None

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        config, pool = self._config, HostPool(mem_pool_host)
        facts = {"engine": "sglang", "dtype": str(mem_pool_host.dtype),
                 "layers": [mem_pool_host.start_layer, mem_pool_host.end_layer]}
        spec = kvtier.ModelSpec(
            config.model_name, layers=pool.layers, kv_heads=pool.heads, k_dim=pool.dim, v_dim=pool.dim, dtype=pool.dtype,
            tokens_per_block=pool.page_tokens, revision=self._settings.revision, config_digest=digest_of(facts),
            layout_id="sglang", tp=(config.tp_rank, config.tp_size), pp=(config.pp_rank, config.pp_size),
            cp=(config.attn_cp_rank, config.attn_cp_size), floor=kvtier.Precision[self._settings.floor])
        self._pool, self._store = pool, Store(spec, self._settings)

    def batch_get_v1(self, keys: list[str], host_indices: torch.Tensor,
                     extra_info: HiCacheStorageExtraInfo | None = None) -> list[bool]:
        return [self._store.load(self._block(key), self._pool.view(token)) == [True]
                for key, token in zip(keys, self._first_tokens(keys, host_indices))]

    def batch_set_v1(self, keys: list[str], host_indices: torch.Tensor,
                     extra_info: HiCacheStorageExtraInfo | None = None) -> list[bool]:
        return [self._store.save(self._block(key), self._pool.view(token))
                for key, token in zip(keys, self._first_tokens(keys, host_indices))]

    def batch_exists(self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None = None) -> int:
        return next((i for i, key in enumerate(keys) if not self.exists(key)), len(keys))

    def exists(self, key: str) -> bool:
        return self._store.lookup(self._block(key)) > 0

    # The interface of several pools: of K and V of full attention there is one.

    def batch_exists_v2(self, keys: list[str], pool_transfers: list[PoolTransfer] | None = None,
                        extra_info: HiCacheStorageExtraInfo | None = None) -> PoolTransferResult:
        if pool_transfers:
            return PoolTransferResult.empty()
        return PoolTransferResult(self.batch_exists(keys, extra_info), {})

    def batch_get_v2(self, transfers: list[PoolTransfer],
                     extra_info: HiCacheStorageExtraInfo | None = None) -> dict[str, list[bool]]:
        return {transfer.name: self._transfer(transfer, self.batch_get_v1) for transfer in transfers}

    def batch_set_v2(self, transfers: list[PoolTransfer],
                     extra_info: HiCacheStorageExtraInfo | None = None) -> dict[str, list[bool]]:
        return {transfer.name: self._transfer(transfer, self.batch_set_v1) for transfer in transfers}

    def _transfer(self, transfer: PoolTransfer, move: Any) -> list[bool]:
        keys = transfer.keys or []
        return move(keys, transfer.host_indices) if transfer.name == PoolName.KV else [False] * len(keys)

    # The older interface copies pages without saying which memory they are: it is never a hit here.

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> torch.Tensor | None:
        return None

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[torch.Tensor | None]:
        return [None] * len(keys)

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return False

    def batch_set(self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None) -> bool:
        return False

    def clear(self) -> None:
        """Nothing that is stored is found any more, and what will be has names that nobody else knows: the weights may be
        others now, under the same revision."""
        self._prefix = os.urandom(16).hex()

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def _block(self, key: str) -> kvtier.Blocks | None:
        return self._store.chunk((self._prefix + key).encode(), 1)

    def _first_tokens(self, keys: Sequence[str], host_indices: torch.Tensor) -> list[int]:
        size = self._pool.page_tokens
        require(len(host_indices) == len(keys) * size, "there are not as many host indices as the pages have tokens")
        return host_indices[::size].tolist()
