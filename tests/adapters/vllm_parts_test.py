"""Parts of the vLLM connector with vLLM's own classes and tensors of its layouts, without an engine."""

import itertools
import types

import pytest

from conftest import needs

needs("vllm")
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.v1.kv_cache_interface import (FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MLAAttentionSpec,
                                        SlidingWindowSpec)
from vllm.v1.kv_cache_layout import KVCacheLayout

LAYERS, HEADS, DIM, PAGE, PAGES = 3, 2, 64, 16, 24
BLOCKS, PER_BLOCK = 2, 8


def attention(**other):
    return FullAttentionSpec(**{"block_size": PAGE, "num_kv_heads": HEADS, "head_size": DIM, "dtype": torch.bfloat16} | other)


def random_values(seed=1):
    """[layer][K, V][page][head][token][channel]"""
    shape = (LAYERS, 2, PAGES, HEADS, PAGE, DIM)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def caches(layout, content, values):
    """Tensors as vLLM makes them: logical [page][head][token][content] views of one allocation in a layout's order."""
    k, v = values[:, 0], values[:, 1]
    if content == "token":
        logical = torch.cat([k, v], dim=-1)
    elif content == "heads":
        logical = torch.cat([k, v], dim=2)
    else:
        logical = torch.cat([k, v], dim=3).view(LAYERS, PAGES, HEADS, PAGE, 2 * DIM)
    order = layout.stride_order
    memory = logical.permute(order).contiguous()
    view = memory.permute([order.index(axis) for axis in range(5)])
    assert torch.equal(view, logical)
    return list(view)


def worker(daemon, layout, content, values, **options):
    from kvtier_adapters.blocks import Settings, Store
    from kvtier_adapters.vllm import Pages, Worker

    import kvtier

    spec = attention()
    model = kvtier.ModelSpec("parts", layers=LAYERS, kv_heads=HEADS, k_dim=DIM, v_dim=DIM, dtype=kvtier.DType.BF16)
    settings = Settings.of({"socket": daemon.socket, "timeout_ms": 20000, "transfer_timeout_ms": 20000} | options)
    tensors = caches(layout, content, values)
    return Worker(Store(model, settings), Pages(tensors, spec, content, PAGES), 1 << 30), tensors


def transfer(name, pages, blocks=BLOCKS, **other):
    from kvtier_adapters.vllm import Transfer

    return Transfer(name, 0, [f"{name}{i}".encode() for i in range(blocks)], None, list(pages), **other)


FORMATS = [(layout, content) for layout, content in itertools.product(KVCacheLayout, ("token", "heads", "plane"))
           # Planes are inside a head: CPU attention has them in this layout alone.
           if content != "plane" or layout == KVCacheLayout.LBHNC]


def stored(daemon, side, name):
    tickets, model = [], side._store._connected()
    original = model.put
    model.put = lambda *args, **kwargs: tickets.append(original(*args, **kwargs)) or tickets[-1]
    side.start_saves([transfer(name, range(4, 20))])
    assert side.drain(30)
    model.put = original
    assert all(result.stored for ticket in tickets for result in ticket.wait(20000)) and tickets


def loaded(side, load):
    side.start_loads([load])
    assert side.drain(30)
    assert side.take_ended() == {load.request_id}
    return side.take_errors()


@pytest.mark.parametrize(("layout", "content"), FORMATS, ids=lambda value: getattr(value, "name", value))
def test_every_layout_reads_what_another_wrote(module_daemon, layout, content):
    values, blank = random_values(), torch.zeros((LAYERS, 2, PAGES, HEADS, PAGE, DIM)).bfloat16()
    name = f"{layout.name}-{content}/"
    writer, _ = worker(module_daemon, layout, content, values)
    stored(module_daemon, writer, name)
    for other_layout, other_content in ((layout, content), (KVCacheLayout.LBHNC, "plane"), (KVCacheLayout.BLNHC, "token")):
        reader, tensors = worker(module_daemon, other_layout, other_content, blank)
        pages = list(reversed(range(2, 18)))
        assert loaded(reader, transfer(name, pages)) == set()
        expected = blank.clone()
        expected[:, :, pages] = values[:, :, 4:20]
        for ours, theirs in zip(tensors, caches(other_layout, other_content, expected)):
            assert torch.equal(ours, theirs)  # and no other page was touched
        reader.close()
    writer.close()


def test_pages_to_skip_stay_as_they_are(module_daemon):
    values = random_values(2)
    writer, _ = worker(module_daemon, KVCacheLayout.LBHNC, "token", values)
    stored(module_daemon, writer, "skip")
    mine = random_values(3)
    reader, tensors = worker(module_daemon, KVCacheLayout.LBHNC, "token", mine)
    assert loaded(reader, transfer("skip", range(16), skip=3)) == set()
    expected = mine.clone()
    expected[:, :, 3:16] = values[:, :, 7:20]
    for ours, theirs in zip(tensors, caches(KVCacheLayout.LBHNC, "token", expected)):
        assert torch.equal(ours, theirs)


def test_what_is_missing_is_told_by_page_and_touches_nothing(module_daemon):
    mine = random_values(4)
    reader, tensors = worker(module_daemon, KVCacheLayout.LBNHC, "token", mine)
    assert loaded(reader, transfer("never", range(16), skip=3)) == set(range(3, 16))
    stored(module_daemon, reader, "half")
    blocks = reader._store.chain([b"half0", b"half1"])
    assert reader._store._connected().remove(blocks[1:2]) == 1
    assert loaded(reader, transfer("half", [0, 1, 2, 3, 20, 21, 22, 23, *range(8, 16)])) == set(range(8, 16))
    # More pages than blocks cover: the rest is missing, not forgotten.
    assert loaded(reader, transfer("half", range(10), blocks=1)) == {8, 9}
    values = mine.clone()
    values[:, :, [0, 1, 2, 3, 20, 21, 22, 23]] = mine[:, :, 4:12]
    values[:, :, range(8)] = mine[:, :, 4:12]
    for ours, theirs in zip(tensors, caches(KVCacheLayout.LBNHC, "token", values)):
        assert torch.equal(ours, theirs)


def test_a_load_that_raises_still_ends(module_daemon):
    side, _ = worker(module_daemon, KVCacheLayout.LBHNC, "token", random_values())
    side._store.load = lambda *args: 1 / 0
    assert loaded(side, transfer("raises", range(16))) == set(range(16))


def test_saves_that_wait_are_bounded(module_daemon):
    import threading

    side, _ = worker(module_daemon, KVCacheLayout.LBHNC, "token", random_values())
    side._saves._max_bytes = 2 * 16 * side._pages.page_bytes
    go, saved = threading.Event(), []
    side._store.save = lambda blocks, view: (go.wait(30), saved.append(1))
    side.start_saves([transfer(f"s{i}", range(16)) for i in range(4)])
    assert side.dropped_saves == 2
    go.set()
    assert side.drain(30) and len(saved) == 2


def cache_config(spec, groups=1):
    return KVCacheConfig(num_blocks=PAGES, kv_cache_tensors=[],
                         kv_cache_groups=[KVCacheGroupSpec([f"layer{i}"], spec) for i in range(groups)])


@pytest.mark.parametrize(("spec", "groups", "what"), [
    (lambda: MLAAttentionSpec(block_size=PAGE, num_kv_heads=1, head_size=576, dtype=torch.bfloat16), 1, "MLAAttentionSpec"),
    (lambda: SlidingWindowSpec(block_size=PAGE, num_kv_heads=HEADS, head_size=DIM, dtype=torch.bfloat16, sliding_window=128),
     1, "SlidingWindowSpec"),
    (attention, 2, "several kinds"),
    (lambda: attention(head_size_v=128), 1, "different sizes"),
    (lambda: attention(block_size=48), 1, "does not divide"),
    (lambda: attention(dtype=torch.uint8), 1, "uint8"),
])
def test_caches_that_are_not_plain_k_and_v_are_refused(spec, groups, what):
    from kvtier_adapters.vllm import attention_spec

    assert attention_spec(cache_config(attention())) == attention()
    with pytest.raises(ValueError, match=what):
        attention_spec(cache_config(spec(), groups))


def test_tensors_of_another_shape_are_refused():
    from kvtier_adapters.vllm import Pages

    values, spec = random_values(), attention()
    good = caches(KVCacheLayout.LBHNC, "token", values)
    Pages(good, spec, "token", PAGES)
    for tensors, content, pages in ((good, "heads", PAGES), (good, "token", PAGES + 1), ([good[0].half()], "token", PAGES),
                                    (caches(KVCacheLayout.LBHNC, "heads", values), "token", PAGES)):
        with pytest.raises(ValueError, match="a layer's cache"):
            Pages(tensors, spec, content, pages)


def vllm_config(**other):
    config = {"pipeline": 1, "dcp": 1, "pcp": 1, "tp": 1, "speculative": None, "hash": "sha256", "policy": "recompute",
              "model": "hub/model", "revision": None, "rope": 10000.0, "dtype": torch.bfloat16, "quantization": None,
              "cache_dtype": "auto", "commit": None} | other
    from transformers import LlamaConfig

    hf = LlamaConfig(num_hidden_layers=LAYERS, rope_parameters={"rope_type": "default", "rope_theta": config["rope"]})
    hf._commit_hash = config["commit"]
    simple = types.SimpleNamespace
    return simple(
        parallel_config=simple(pipeline_parallel_size=config["pipeline"], decode_context_parallel_size=config["dcp"],
                               prefill_context_parallel_size=config["pcp"], tensor_parallel_size=config["tp"]),
        kv_transfer_config=simple(kv_load_failure_policy=config["policy"]), speculative_config=config["speculative"],
        cache_config=simple(prefix_caching_hash_algo=config["hash"], cache_dtype=config["cache_dtype"]),
        model_config=simple(model=config["model"], revision=config["revision"], hf_config=hf, dtype=config["dtype"],
                            quantization=config["quantization"]))


@pytest.mark.parametrize(("other", "what"), [
    ({"pipeline": 2}, "pipeline"), ({"dcp": 2}, "context"), ({"pcp": 2}, "context"), ({"hash": "xxhash"}, "collide"),
    ({"policy": "fail"}, "recompute"), ({"speculative": types.SimpleNamespace(method="eagle")}, "speculative")])
def test_configurations_that_would_be_wrong_are_refused(other, what):
    from kvtier_adapters.vllm import check_config

    check_config(vllm_config())
    check_config(vllm_config(speculative=types.SimpleNamespace(method="ngram"), hash="sha256_cbor", tp=4))
    with pytest.raises(ValueError, match=what):
        check_config(vllm_config(**other))


def test_what_changes_k_and_v_changes_the_namespace(module_daemon):
    from kvtier_adapters.blocks import Settings, Store
    from kvtier_adapters.vllm import model_spec

    def namespace(rank=0, settings=None, spec=None, layers=("a", "b", "c"), **other):
        options = {"socket": module_daemon.socket, "timeout_ms": 20000} | (settings or {})
        model = model_spec(vllm_config(**other), spec or attention(), layers, rank, Settings.of(options))
        return Store(model, Settings.of(options))._connected().namespace()
    first = namespace()
    assert first == namespace()  # from the same facts, in any process
    others = [namespace(**other) for other in (
        {"tp": 2}, {"tp": 2, "rank": 1}, {"settings": {"revision": "r"}}, {"revision": "r1"}, {"commit": "c"},
        {"model": "hub/other"}, {"rope": 500000.0}, {"quantization": "awq"}, {"cache_dtype": "bfloat16"},
        {"spec": attention(dtype=torch.float16), "dtype": torch.float16}, {"layers": ("a", "c", "b")}, {"hash": "sha256_cbor"},
        {"spec": attention(num_kv_heads=1)}, {"spec": attention(head_size=128)})]
    assert len({first, *others}) == len(others) + 1


def test_the_connector_is_whole():
    from kvtier_adapters.vllm import KvtierConnector

    assert issubclass(KvtierConnector, KVConnectorBase_V1) and not KvtierConnector.__abstractmethods__
