"""The secondary tier under vLLM's own tiering manager and shared CPU cache; a test stands where the GPU copies would."""

import contextlib
import ctypes
import dataclasses
import itertools
import os
import threading
import time
import types
import uuid

import pytest

from conftest import leaves_no_session, needs

needs("vllm")
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
import torch
from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext, make_offload_key
from vllm.v1.kv_offload.config import (OffloadingCacheConfig, OffloadingConfig, OffloadingGroupConfig, OffloadingModelConfig,
                                       OffloadingParallelConfig)
from vllm.v1.kv_offload.tiering.base import SecondaryTierManager
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

LAYERS, HEADS, DIM, PAGE, CHUNKS = 3, 2, 64, 16, 16
LAYOUTS = ["LBHNC", "LBNHC", "BLHNC", "BLNHC", "BHLNC"]


class Engine:
    """vLLM's manager with our tier, and the chunks of its CPU cache by meaning."""

    def __init__(self, socket, layout="LBHNC", content="token", pages=8, dtype="bfloat16", revision="1", model="m", tier=None,
                 parallel=None, groups=1, **config):
        tier = {"type": "KvtierTier", "module_path": "kvtier_adapters.vllm_tier", "kv_heads": HEADS, "head_size": DIM,
                "content": content, "kvtier": {"socket": socket, "timeout_ms": 20000, "transfer_timeout_ms": 20000, "retry_ms": 1}
                } | (tier or {})
        if revision:
            tier["kvtier"]["revision"] = revision
        self.row_bytes = LAYERS * pages * PAGE * HEADS * 2 * DIM * 2
        self.layout, self.content, self.pages = layout, content, pages
        rounded = -(-self.row_bytes // 4096) * 4096
        ranks = {"rank": 0, "world_size": 1, "tp_size": 1, "pp_size": 1, "pcp_size": 1, "dcp_size": 1, "data_parallel_index": 0,
                 "data_parallel_size": 1, "data_parallel_rank_local": None, "is_parallelism_agnostic": True} | (parallel or {})
        self.spec = TieringOffloadingSpec(OffloadingConfig(**{
            "groups": tuple(OffloadingGroupConfig(PAGE, tuple(f"l{i}" for i in range(LAYERS)), n) for n in range(groups)),
            "worker_kv_bytes_per_block": self.row_bytes // pages, "enable_kv_cache_events": False,
            "extra_config": {"cpu_bytes_to_use": rounded * CHUNKS, "secondary_tiers": [tier]}, "engine_id": uuid.uuid4().hex,
            "model": OffloadingModelConfig(model, dtype), "cache": OffloadingCacheConfig(PAGE, pages),
            "parallel": OffloadingParallelConfig(**ranks), "kv_cache_layout": layout} | config))
        self.manager = self.spec.get_manager()
        self.tier = self.manager.secondary_tiers[0]
        self.lock = getattr(self.manager, "lock", contextlib.nullcontext())  # vLLM 0.33 has one

    def chunk(self, number):
        """[layer][K, V][page][head][token][channel]: a view of vLLM's memory."""
        row = torch.frombuffer(self.manager.primary_tier.get_kv_memoryview()[number:number + 1].cast("B"), dtype=torch.bfloat16)
        row = row[:self.row_bytes // 2]
        letters = {"LBHNC": "lphtx", "LBNHC": "lpthx", "BLHNC": "plhtx", "BLNHC": "plthx", "BHLNC": "phltx"}[self.layout]
        size = {"l": LAYERS, "p": self.pages, "h": HEADS, "t": PAGE, "x": 2 * DIM}
        if self.content == "heads":
            size["h"], size["x"] = 2 * HEADS, DIM
        whole = row.view([size[letter] for letter in letters]).permute([letters.index(letter) for letter in "lphtx"])
        if self.content == "heads":
            return torch.stack([whole[:, :, :HEADS], whole[:, :, HEADS:]], dim=1)
        return torch.stack([whole[..., :DIM], whole[..., DIM:]], dim=1)

    def write(self, number, values):
        row = self.tier._rows[number]
        k, v = values[:, 0], values[:, 1]
        whole = torch.cat([k, v], dim=2 if self.content == "heads" else -1)
        order = ["lphtx".index(x) for x in {"LBHNC": "lphtx", "LBNHC": "lpthx", "BLHNC": "plhtx", "BLNHC": "plthx",
                                            "BHLNC": "phltx"}[self.layout]]
        row[:self.row_bytes] = whole.permute(order).contiguous().view(-1).view(torch.uint8).numpy()

    def step(self):
        with self.lock:
            self.manager.on_schedule_end(ScheduleEndContext([], []))

    def store(self, request, keys, values, expected=None):
        """Until the daemon has them, which vLLM does not wait for: `expected` of them, else all."""
        with self.lock:
            self.manager.on_new_request(request)
            stored = self.manager.prepare_store(keys, request)
            for number, key in zip(stored.store_spec.chunk_ids, stored.keys_to_store):
                self.write(int(number), values[keys.index(key)])
            self.manager.complete_store(stored.keys_to_store, request)
        self.until(lambda: not self.manager.has_pending_work())
        self.until(lambda: all(self.tier._exists(key) for key in (keys if expected is None else expected)))

    def until(self, condition):
        end = time.monotonic() + 20
        while not condition() and time.monotonic() < end:
            self.step()
            time.sleep(0.005)
        assert condition()

    def find(self, request, keys):
        """As the scheduler asks: until no answer is pending."""
        pending, end = (LookupResult.RETRY, LookupResult.HIT_PENDING), time.monotonic() + 20
        while True:
            with self.lock:
                answers = [self.manager.lookup(key, request) for key in keys]
            if not set(answers) & set(pending):
                return answers
            assert time.monotonic() < end
            self.step()
            time.sleep(0.005)

    def load(self, request, keys):
        """The chunks of keys that hit."""
        with self.lock:
            numbers = self.manager.prepare_load(keys, request).chunk_ids
            values = [self.chunk(int(number)).clone() for number in numbers]
            self.manager.complete_load(keys, request)
        return values

    def close(self):
        self.manager.shutdown()


names = itertools.count()


def keys_of(count):
    base = next(names)
    return [make_offload_key(f"{base:030d}{i:02d}".encode(), 0) for i in range(count)]


def random_chunks(count, seed=1, pages=8):
    return list(torch.randn((count, LAYERS, 2, pages, HEADS, PAGE, DIM), generator=torch.Generator().manual_seed(seed)).bfloat16())


def test_hashes_that_may_collide_are_a_miss(module_daemon, caplog):
    engine, (safe,) = Engine(module_daemon.socket), keys_of(1)
    short = make_offload_key(b"short-hash-16-by", 0)
    engine.store(ReqContext("r"), [short, safe], random_chunks(2), [safe])
    assert engine.tier._exists(safe) and not engine.tier._exists(short)
    assert engine.tier._blocks(short) is None and "must not collide" in caplog.text
    engine.close()


@pytest.fixture
def engines(module_daemon):
    made = []

    def make(**options):
        made.append(Engine(options.pop("socket", module_daemon.socket), **options))
        return made[-1]
    yield make
    for engine in made:
        engine.close()


@pytest.mark.parametrize(("layout", "content"), [*itertools.product(LAYOUTS, ["token", "heads"])])
def test_chunks_come_back_under_another_engine_and_layout(engines, layout, content):
    keys, values = keys_of(4), random_chunks(4)
    engines(layout=layout, content=content).store(ReqContext("a"), keys, values)
    for other in ((layout, content), ("BLNHC", "token"), ("LBHNC", "heads")):
        engine, request = engines(layout=other[0], content=other[1]), ReqContext("b")
        with engine.lock:
            engine.manager.on_new_request(request)
        assert engine.find(request, [*keys, *keys_of(1)]) == [LookupResult.HIT] * 4 + [LookupResult.MISS]
        for ours, theirs in zip(engine.load(request, keys), values):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("pages", [4, 16])
def test_chunks_of_64_and_256_tokens(engines, pages):
    keys, values = keys_of(3), random_chunks(3, pages=pages)
    engines(pages=pages).store(ReqContext("a"), keys, values)
    engine, request = engines(pages=pages), ReqContext("b")
    with engine.lock:
        engine.manager.on_new_request(request)
    assert engine.find(request, keys) == [LookupResult.HIT] * 3
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(engine.load(request, keys), values))


@pytest.mark.parametrize("other", [{"model": "n"}, {"revision": "2"}, {"dtype": "float16"}])
def test_another_model_is_a_miss_on_data_that_exists(engines, other):
    keys = keys_of(2)
    engines().store(ReqContext("a"), keys, random_chunks(2))
    engine, request = engines(**other), ReqContext("b")
    with engine.lock:
        engine.manager.on_new_request(request)
    assert engine.find(request, keys) == [LookupResult.MISS] * 2


def test_a_chunk_that_goes_between_lookup_and_load_is_a_miss_and_not_asked_again(engines):
    keys, values = keys_of(3), random_chunks(3)
    engines().store(ReqContext("a"), keys, values)
    engine, request = engines(), ReqContext("b")
    with engine.lock:
        engine.manager.on_new_request(request)
    original, loads = engine.tier._store.load, []

    def load(blocks, view):
        loads.append(blocks.keys()[0])
        if blocks.keys()[0] == engine.tier._blocks(keys[1]).keys()[0]:
            original(blocks, view)
            return [False]
        return original(blocks, view)
    engine.tier._store.load = load
    assert engine.find(request, keys) == [LookupResult.HIT, LookupResult.MISS, LookupResult.HIT]
    assert engine.find(request, keys) == [LookupResult.HIT, LookupResult.MISS, LookupResult.HIT]
    assert len(loads) == 3
    assert torch.equal(engine.load(request, keys[2:])[0], values[2])


def test_a_load_that_finds_no_room_is_a_miss(engines):
    keys = keys_of(2)
    engines().store(ReqContext("a"), keys, random_chunks(2))
    engine, request = engines(), ReqContext("b")
    with engine.lock:
        engine.manager.on_new_request(request)
    engine.tier._jobs.submit = lambda *args: False
    assert engine.find(request, keys) == [LookupResult.MISS] * 2


def test_half_a_chunk_is_a_miss(engines):
    keys = keys_of(2)
    engines(pages=16).store(ReqContext("a"), keys, random_chunks(2, pages=16))
    engine, request = engines(pages=16), ReqContext("b")
    half = engine.tier._blocks(keys[0])
    assert len(half) == 2 and engine.tier._store._connected().remove(half[1:]) == 1
    assert [engine.tier._exists(name) for name in keys] == [False, True]
    with engine.lock:
        engine.manager.on_new_request(request)
    assert engine.find(request, keys) == [LookupResult.MISS, LookupResult.HIT]
    assert not engine.tier._load_chunk(keys[0], 15) and engine.tier._load_chunk(keys[1], 15)


def test_a_request_that_has_finished_is_forgotten(engines):
    engine, request, keys = engines(), ReqContext("a"), keys_of(3)
    with engine.lock:
        engine.manager.on_new_request(request)
    assert engine.find(request, keys) == [LookupResult.MISS] * 3
    assert engine.tier._lookups._lookup_state
    with engine.lock:
        engine.manager.on_request_finished(request)
    assert not engine.tier._lookups._lookup_state


@pytest.mark.parametrize("layout", ["LBHNC", "LBNHC"])
def test_chunks_of_two_workers_are_those_of_one(layout):
    """By vLLM's own mapping of each worker's pages into the canonical ones that the CPU cache holds then."""
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.canonical_mapping import derive_canonical_mappings
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.kv_cache_layout import KVCacheLayout

    from kvtier_adapters.vllm_tier import ChunkShape

    (values,), workers, simple = random_chunks(1), 2, types.SimpleNamespace
    names, heads, pages = [f"l{i}" for i in range(LAYERS)], HEADS // workers, values.shape[2]
    spec = FullAttentionSpec(block_size=PAGE, num_kv_heads=heads, head_size=DIM, dtype=torch.bfloat16)
    page_bytes = HEADS * PAGE * 2 * DIM * 2
    row = torch.zeros(LAYERS, pages, page_bytes, dtype=torch.uint8)
    for rank in range(workers):
        caches = {}
        for layer, name in enumerate(names):
            k, v = values[layer, :, :, rank * heads:(rank + 1) * heads]
            logical = torch.cat([k, v], dim=-1)  # [page][head][token][content]
            by_token = torch.empty(pages, PAGE, heads, 2 * DIM, dtype=torch.bfloat16).copy_(logical.transpose(1, 2))
            caches[name] = logical if layout == "LBHNC" else by_token.transpose(1, 2)
        mappings = derive_canonical_mappings(
            simple(parallel_config=simple(tensor_parallel_size=workers, prefill_context_parallel_size=1, world_size=workers,
                                          decode_context_parallel_size=1, cp_kv_cache_interleave_size=1, rank=rank),
                   model_config=simple(get_total_num_kv_heads=lambda: HEADS)),
            KVCacheConfig(num_blocks=pages, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(names, spec)]), caches)
        for layer, name in enumerate(names):
            mapping, cache = mappings[name], caches[name]
            assert mapping.canonical_page_size_bytes == page_bytes and mapping.parallelism_agnostic
            memory = torch.as_strided(cache, (cache.numel(),), (1,)).view(torch.uint8).view(pages, -1)
            for run in mapping.runs:
                for i in range(run.num_fragments):
                    into, of = (offset + i * stride for offset, stride in (
                        (run.canonical_offset, run.canonical_stride), (run.local_offset, run.local_stride)))
                    row[layer, :, into:into + run.fragment_size] = memory[:, of:of + run.fragment_size]
    ranks = {"world_size": workers, "tp_size": workers, "pp_size": 1, "pcp_size": 1, "dcp_size": 1, "is_parallelism_agnostic": True}
    config = simple(groups=[simple(layer_names=names, tokens_per_block=PAGE)], parallel=simple(**ranks), canonical_layout=True,
                    replicated_layout=False, kv_cache_layout=layout, model=simple(dtype="bfloat16"),
                    cache=simple(blocks_per_chunk=pages), worker_kv_bytes_per_block=LAYERS * page_bytes // workers)
    shape = ChunkShape(simple(config=config), HEADS, DIM, "token")
    assert shape.row_bytes == row.numel()
    view = shape.view(row.view(-1).numpy()).struct
    for layer, c, page, head, token in itertools.product(range(LAYERS), range(2), range(pages), range(HEADS), (0, PAGE - 1)):
        base = (view.v_bases if c and view.v_bases else view.bases)[0] + (0 if view.v_bases else c * view.v_offset)
        first = (base + layer * view.layer_stride + view.page_table[page] * view.page_stride + head * view.head_stride
                 + token * view.token_stride)
        there = torch.frombuffer((ctypes.c_char * (2 * DIM)).from_address(first), dtype=torch.bfloat16)
        assert view.channel_stride == 2 and torch.equal(there, values[layer, c, page, head, token])


def test_what_a_tier_is_told_is_in_the_name(engines):
    from kvtier_adapters.blocks import Settings
    from kvtier_adapters.vllm_tier import _model_spec

    engine = engines()

    def name(revision="1", hash_tokens=PAGE, layers="l", **other):
        config = dataclasses.replace(
            engine.spec.config, cache=OffloadingCacheConfig(hash_tokens, 8),
            groups=(OffloadingGroupConfig(PAGE, tuple(f"{layers}{i}" for i in range(LAYERS)), 0),), **other)
        spec = _model_spec(types.SimpleNamespace(config=config), engine.tier._shape, Settings(revision=revision, floor="INT4"))
        assert spec.floor.name == "INT4"
        return dataclasses.replace(spec, layers=1)
    names = [name(), name(revision="2"), name(hash_tokens=32), name(layers="m"), name(model=OffloadingModelConfig("n", "bfloat16")),
             name(model=OffloadingModelConfig("/tmp", "bfloat16"))]
    assert len(set(names)) == len(names) and names[0] == name() and len(names[-1].revision) > 1  # a folder's files


def test_jobs_are_ended_whatever_happens(engines):
    engine, request, keys = engines(), ReqContext("a"), keys_of(2)
    engine.tier._store.save = lambda *args: 1 / 0
    engine.store(request, keys, random_chunks(2), [])  # ends, though nothing was stored
    del engine.tier._store.save
    engine.tier._jobs.submit = lambda *args: False  # full
    more = keys_of(2)
    engine.store(ReqContext("c"), more, random_chunks(2), [])
    fresh, other = engines(), ReqContext("b")
    with fresh.lock:
        fresh.manager.on_new_request(other)
    assert fresh.find(other, keys + more) == [LookupResult.MISS] * 4


def test_nothing_blocks_the_scheduler_while_the_daemon_is_slow(engines):
    engine, request, keys = engines(), ReqContext("a"), keys_of(8)
    go = threading.Event()
    for name in ("save", "load", "lookup"):
        original = getattr(engine.tier._store, name)
        setattr(engine.tier._store, name, lambda *args, original=original: (go.wait(30), original(*args))[1])
    with engine.lock:
        engine.manager.on_new_request(request)
        start = time.monotonic()
        assert {engine.manager.lookup(key, request) for key in keys} == {LookupResult.RETRY}
        stored = engine.manager.prepare_store(keys, request)
        engine.manager.complete_store(stored.keys_to_store, request)
        engine.manager.on_schedule_end(ScheduleEndContext([], []))
        assert time.monotonic() - start < 2
        assert engine.manager.has_pending_work()
    go.set()
    engine.until(lambda: not engine.manager.has_pending_work())


def test_a_drain_ends_when_the_jobs_have(engines):
    engine, go, done = engines(), threading.Event(), []
    assert engine.tier._jobs.submit(lambda: (go.wait(30), done.append(1)))
    threading.Timer(0.2, go.set).start()
    engine.tier.drain_jobs()  # vLLM gives the memory away then
    assert done == [1]


def test_a_shutdown_leaves_nothing_behind(daemon):
    engine, keys = Engine(daemon.socket), keys_of(1)
    engine.store(ReqContext("a"), keys, random_chunks(1))
    jobs, lookups = engine.tier._jobs._threads, engine.tier._lookups._thread
    with leaves_no_session(daemon):
        engine.close()
    assert not any(thread.is_alive() for thread in [*jobs, lookups])


def test_a_dead_daemon_is_a_miss(daemon):
    engine, request, keys = Engine(daemon.socket), ReqContext("a"), keys_of(2)
    daemon.kill()
    engine.store(request, keys, random_chunks(2), [])
    other, second = Engine(daemon.socket), ReqContext("b")
    with other.lock:
        other.manager.on_new_request(second)
    assert other.find(second, keys) == [LookupResult.MISS] * 2
    engine.close()
    other.close()
    daemon.start()


@pytest.mark.parametrize(("options", "what"), [
    ({"groups": 2}, "several kinds"), ({"parallel": {"world_size": 2, "tp_size": 2}}, "canonical_layout"),
    ({"parallel": {"world_size": 2, "tp_size": 2}, "canonical_layout": True, "content": "heads"}, "one worker"),
    ({"parallel": {"world_size": 2, "tp_size": 2, "is_parallelism_agnostic": False}, "canonical_layout": True},
     "number of workers"),
    ({"parallel": {"pp_size": 2}}, "pipeline"), ({"replicated_layout": True}, "latent"), ({"layout": "LHBNC"}, "LHBNC"),
    ({"dtype": "fp8_e4m3"}, "fp8_e4m3"), ({"pages": 3}, "whole blocks"), ({"tier": {"kv_heads": 4}}, "kv_heads"),
    ({"tier": {"content": "x"}}, "content is"), ({"revision": None}, "revision"),
    ({"revision": None, "model": "/tmp"}, "revision"),  # a folder tells nothing of what the command line changes
    ({"tier": {"kv_heads": True}}, "whole numbers"), ({"tier": {"head_size": "64"}}, "whole numbers"),
    ({"tier": {"kvtier": {"nonsense": 1}}}, "unknown option")])
def test_what_is_not_supported_is_refused(module_daemon, options, what):
    Engine(module_daemon.socket).close()
    with pytest.raises(ValueError, match=what):
        Engine(module_daemon.socket, **options)


def test_the_tier_is_whole():
    from kvtier_adapters.vllm_tier import KvtierTier

    assert issubclass(KvtierTier, SecondaryTierManager) and not KvtierTier.__abstractmethods__
