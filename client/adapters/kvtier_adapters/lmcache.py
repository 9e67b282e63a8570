"""LMCache: an L2 adapter of type "plugin", kvtier below LMCache's own memory.

    {"type": "plugin", "module_path": "kvtier_adapters.lmcache", "class_name": "KvtierL2Adapter", "adapter_params": {
        "models": {"meta-llama/Llama-3.1-8B-Instruct": {"kv_heads": 8, "revision": "..."}}}}

`kv_heads` are those of one worker (LMCache's objects do not tell them); `revision` names the weights and whatever else changes
K and V but tokens: LMCache's hashes of chunks know tokens and vLLM's names of images alone, so requests with LoRA adapters need
a cache salt of their own. Models that are not listed are always a miss. Objects are K and V as LMCache has them, [2][layer]
[token][head x channel], of chunks of 64 tokens or a multiple of 128; latent and recurrent ones are refused."""

from __future__ import annotations

import hashlib
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface, L2TaskId
from lmcache.v1.platform import create_event_notifier

import kvtier

from .blocks import (HASH_BYTES, Background, Settings, Store, chunk_tokens_per_block, digest_of, dtype_of, is_count, is_text,
                     logger, require)

if TYPE_CHECKING:
    from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
    from lmcache.v1.memory_management import MemoryObj

_LEASE_MS = 30000  # between a lookup and its unlock
_MAX_STORES = 64
_MODEL_OPTIONS = {"kv_heads", "revision"}


class _Tasks:
    """Numbers and results of one kind of task, and the descriptor that tells of them. Threads: any."""

    def __init__(self) -> None:
        self.notifier = create_event_notifier()
        self._lock = threading.Lock()
        self._results: dict[L2TaskId, Any] = {}

    def end(self, number: L2TaskId, result: Any) -> None:
        with self._lock:
            self._results[number] = result
        self.notifier.notify()

    def take(self, number: L2TaskId) -> Any:
        with self._lock:
            return self._results.pop(number, None)

    def take_all(self) -> dict[L2TaskId, Any]:
        with self._lock:
            results, self._results = self._results, {}
        return results


class KvtierL2Adapter(L2AdapterInterface):
    """Threads: any; transfers run on threads of the adapter. Errors: ValueError at start-up for wrong parameters."""

    def __init__(self, params: Mapping[str, Any], l1_memory_desc: Any = None) -> None:
        super().__init__()
        require(isinstance(params, Mapping), f"adapter_params are names with values, not a {type(params).__name__}")
        options = dict(params)
        self._models = _models_of(options.pop("models", None))
        self._settings = Settings.of(options)
        self._stores: dict[tuple, Store | None] = {}
        self._leases: dict[ObjectKey, list[kvtier.Lease]] = defaultdict(list)
        self._lock = threading.Lock()  # of numbers, stores and leases; never held during a call
        self._next: L2TaskId = 0
        self._stored, self._found, self._loaded = _Tasks(), _Tasks(), _Tasks()
        self._writer, self._reader = Background("lmcache-store"), Background("lmcache-load", threads=2)

    def get_store_event_fd(self) -> int:
        return self._stored.notifier.fileno()

    def get_lookup_and_lock_event_fd(self) -> int:
        return self._found.notifier.fileno()

    def get_load_event_fd(self) -> int:
        return self._loaded.notifier.fileno()

    def submit_store_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> L2TaskId:
        def store() -> L2StoreResult:
            saved = [self._save(key, memory) for key, memory in zip(keys, objects, strict=True)]
            return L2StoreResult(all(saved), sum(memory.get_size() for memory, ok in zip(objects, saved) if ok))
        return self._start(self._writer, self._stored, store, L2StoreResult(False, 0))

    def pop_completed_store_tasks(self) -> dict[L2TaskId, L2StoreResult]:
        return self._stored.take_all()

    def submit_lookup_and_lock_task(self, keys: list[ObjectKey],
                                    group_layout_descs: dict[int, MemoryLayoutDesc]) -> L2TaskId:
        def look_up() -> Bitmap:
            return _bitmap([self._lock_key(key, group_layout_descs.get(key.object_group_id)) for key in keys])
        return self._start(self._reader, self._found, look_up, Bitmap(len(keys)))

    def query_lookup_and_lock_result(self, task_id: L2TaskId) -> Bitmap | None:
        return self._found.take(task_id)

    def submit_unlock(self, keys: list[ObjectKey]) -> None:
        for key in keys:
            with self._lock:
                held = self._leases.get(key)
                lease = held.pop() if held else None
                if not held:
                    self._leases.pop(key, None)
            if lease is not None:
                lease.release()

    def submit_load_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> L2TaskId:
        def load() -> Bitmap:
            return _bitmap([self._load(key, memory) for key, memory in zip(keys, objects, strict=True)])
        return self._start(self._reader, self._loaded, load, Bitmap(len(keys)))

    def query_load_result(self, task_id: L2TaskId) -> Bitmap | None:
        return self._loaded.take(task_id)

    def close(self) -> None:
        self._writer.stop()
        self._reader.stop()
        with self._lock:
            leases, self._leases = self._leases, defaultdict(list)
            stores, self._stores = self._stores, {}
        for held in leases.values():
            for lease in held:
                lease.release()
        for store in stores.values():
            if store is not None:
                store.close()
        for tasks in (self._stored, self._found, self._loaded):
            tasks.notifier.close()

    def report_status(self) -> dict[str, Any]:
        return {"is_healthy": True, "type": "KvtierL2Adapter", "models": list(self._models)}

    def _start(self, background: Background, tasks: _Tasks, work: Callable[[], Any], failed: Any) -> L2TaskId:
        with self._lock:
            number, self._next = self._next, self._next + 1

        def run() -> None:
            result = failed
            try:
                result = work()
            finally:
                tasks.end(number, result)
        if not background.submit(run):
            tasks.end(number, failed)
        return number

    def _save(self, key: ObjectKey, memory: MemoryObj) -> bool:
        store = self._store_of(key, memory.get_shapes(), memory.get_dtypes())
        return store is not None and store.save(_blocks(store, key, memory.get_shapes()[0]), self._view(store, memory))

    def _lock_key(self, key: ObjectKey, layout: MemoryLayoutDesc | None) -> bool:
        store = None if layout is None else self._store_of(key, layout.shapes, layout.dtypes)
        if store is None:
            return False
        blocks = _blocks(store, key, layout.shapes[0])
        lease = store.acquire(blocks, ttl_ms=_LEASE_MS)
        if lease is None:
            return False
        if len(lease) < len(blocks):
            lease.release()
            return False
        with self._lock:
            self._leases[key].append(lease)
        return True

    def _load(self, key: ObjectKey, memory: MemoryObj) -> bool:
        store = self._store_of(key, memory.get_shapes(), memory.get_dtypes())
        if store is None:
            return False
        blocks, view = _blocks(store, key, memory.get_shapes()[0]), self._view(store, memory)
        with self._lock:
            held = self._leases.get(key)
            lease = held[0] if held else None  # an unlock of another request ends the last one
        # A lease that has expired meanwhile holds nothing any more: ask once more.
        loaded = [] if lease is None else store.fetch(lease, view)
        if not (loaded and all(loaded)):
            loaded = store.load(blocks, view)
        return bool(loaded) and all(loaded)

    def _view(self, store: Store, memory: MemoryObj) -> kvtier.View:
        tensor = memory.get_tensor(0)
        return kvtier.View(tensor.unflatten(-1, (store.spec.kv_heads, store.spec.k_dim)), "clthd")

    def _store_of(self, key: ObjectKey, shapes: list[torch.Size], dtypes: list[torch.dtype]) -> Store | None:
        """Shape and type of its objects are part of a model's name; one of another shape is another model."""
        name = (key.model_name, key.kv_rank, key.object_group_id, tuple(map(tuple, shapes)), tuple(map(str, dtypes)),
                len(key.chunk_hash))
        with self._lock:
            if name not in self._stores:
                self._stores[name] = self._make_store(key, shapes, dtypes)
            return self._stores[name]

    def _make_store(self, key: ObjectKey, shapes: list[torch.Size], dtypes: list[torch.dtype]) -> Store | None:
        model = self._models.get(key.model_name)
        try:
            require(model is not None, f"model {key.model_name!r} is not in its configuration")
            require(len(key.chunk_hash) >= HASH_BYTES, "--hash-algorithm must be blake3 or sha256_cbor: keys must not collide")
            require(len(self._stores) < _MAX_STORES, f"more than {_MAX_STORES} models, ranks and shapes")
            return Store(_model_spec(key, shapes, dtypes, model, self._settings), self._settings)
        except ValueError as error:
            logger.error("%s: its chunks are not stored", error)
            return None


def _models_of(models: Any) -> Mapping[str, Mapping[str, Any]]:
    """Errors: ValueError for what would make every chunk a miss, or name weights wrongly."""
    require(isinstance(models, Mapping) and bool(models),
            'adapter_params need "models": {NAME: {"kv_heads": ..., "revision": ...}}, one at least')
    for name, model in models.items():
        require(is_text(name) and bool(name), f"{name!r} is no name of a model")
        require(isinstance(model, Mapping) and set(model) == _MODEL_OPTIONS,
                f'model {name!r} needs "kv_heads" and "revision", and nothing else')
        require(is_count(model["kv_heads"]), f'"kv_heads" of model {name!r} is a whole number of at least 1')
        require(is_text(model["revision"]) and bool(model["revision"]), f'"revision" of model {name!r} is a text, and not empty')
    return models


def _model_spec(key: ObjectKey, shapes: list[torch.Size], dtypes: list[torch.dtype], model: Mapping[str, Any],
                settings: Settings) -> kvtier.ModelSpec:
    require(len(shapes) == 1 and len(shapes[0]) == 4 and shapes[0][0] == 2,
            f"objects of shape {[tuple(shape) for shape in shapes]} are no K and V of one kind")
    _, layers, tokens, hidden = shapes[0]
    require(hidden % model["kv_heads"] == 0, f"{model['kv_heads']} heads do not divide {hidden} channels")
    dim = hidden // model["kv_heads"]
    facts = {"engine": "lmcache", "kv_rank": key.kv_rank, "group": key.object_group_id, "tokens": tokens}
    return kvtier.ModelSpec(
        key.model_name, layers=layers, kv_heads=model["kv_heads"], k_dim=dim, v_dim=dim, dtype=dtype_of(dtypes[0]),
        tokens_per_block=chunk_tokens_per_block(tokens), revision=model["revision"], config_digest=digest_of(facts),
        layout_id="lmcache", floor=kvtier.Precision[settings.floor])


def _blocks(store: Store, key: ObjectKey, shape: torch.Size) -> kvtier.Blocks | None:
    """The salt isolates users: it is part of the name, with its length."""
    salt = key.cache_salt.encode()
    name = hashlib.sha256(len(salt).to_bytes(4, "big") + salt + key.chunk_hash).digest()
    return store.chunk(name, shape[2] // store.tokens_per_block)


def _bitmap(bits: list[bool]) -> Bitmap:
    bitmap = Bitmap(len(bits))
    for i, bit in enumerate(bits):
        if bit:
            bitmap.set(i)
    return bitmap
