"""The HiCache storage by SGLang's own factory, with its host pools and page hashes."""

import threading
import time
from array import array

import pytest

from conftest import leaves_no_session, needs

needs("sglang")
import torch
from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, HiCacheStorageConfig, PoolName, PoolTransfer
from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory
from sglang.srt.mem_cache import utils
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.utils import get_hash_str, get_storage_hash_str

LAYERS, HEADS, DIM, PAGES = 3, 2, 64, 8
LAYOUTS = ["layer_first", "page_first", "page_first_direct", "page_head"]


def host_pool(layout="layer_first", page=64, dtype=torch.bfloat16, **other):
    device = tuple(torch.zeros((PAGES * page, HEADS, DIM), dtype=dtype) for _ in range(2 * LAYERS))
    pointers = [torch.tensor([part.data_ptr() for part in device[i * LAYERS:(i + 1) * LAYERS]], dtype=torch.uint64) for i in (0, 1)]
    info = MHABufferInfo(
        buffers=KVBuffers(k=device[:LAYERS], v=device[LAYERS:], k_data_ptrs=pointers[0], v_data_ptrs=pointers[1],
                          layout=KVBufferLayout.NHD),
        page_size=page, head_num=HEADS, head_dim=DIM, v_head_dim=DIM, dtype=dtype, device=torch.device("cpu"))
    with host_memory_budget_scope(1 << 30):
        pool = MHATokenToKVPoolHost(
            info, host_to_device_ratio=2, host_size=0, page_size=page, layout=layout, pin_memory=False,
            device_capacity_tokens=PAGES * page, start_layer=0, end_layer=LAYERS, **other)
    pool.kv_buffer.zero_()
    return pool


def config(extra=None, **other):
    return HiCacheStorageConfig(**{
        "tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0, "attn_cp_size": 1, "is_mla_model": False,
        "enable_storage_metrics": False, "is_page_first_layout": False, "model_name": "m", "extra_config": extra} | other)


def extra(daemon, **options):
    return {"backend_name": "kvtier", "module_path": "kvtier_adapters.sglang", "class_name": "KvtierStorage", "interface_v1": 1,
            "kvtier": {"socket": daemon.socket, "revision": "1", "timeout_ms": 20000, "transfer_timeout_ms": 20000} | options}


def storage(daemon, pool, options=None, **other):
    made = StorageBackendFactory.create_backend("dynamic", config(extra(daemon, **(options or {})), **other), pool)
    made.register_mem_pool_host(pool)
    assert isinstance(made, HiCacheStorage)
    return made


def hashes(first, pages, page=64):
    """SGLang's own, chained."""
    keys, last = [], None
    for i in range(pages):
        last = get_hash_str(list(range(first + i * page, first + (i + 1) * page)), last)
        keys.append(last)
    return keys


def indices(pages, page=64):
    return torch.cat([torch.arange(number * page, (number + 1) * page) for number in pages])


def random_page(seed, page=64, dtype=torch.bfloat16):
    return torch.randn((2 * LAYERS * page * HEADS * DIM,), generator=torch.Generator().manual_seed(seed)).to(dtype)


def fill(pool, pages, seed):
    for number in pages:
        pool.set_from_flat_data_page(number * pool.page_size, random_page(seed + number, pool.page_size, pool.dtype))


def until_there(made, keys):
    end = time.monotonic() + 20
    while made.batch_exists(keys) < len(keys) and time.monotonic() < end:
        time.sleep(0.01)
    assert made.batch_exists(keys) == len(keys)


def stored_pages(daemon, first, options=None):
    """A storage that has pages 0 and 1 of its pool, and their keys."""
    pool, keys = host_pool(), hashes(first, 2)
    fill(pool, range(2), first)
    made = storage(daemon, pool, options)
    made.batch_set_v1(keys, indices(range(2)))
    until_there(made, keys)
    return made, pool, keys


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("page", [64, 128])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_pages_come_back_in_every_host_layout(module_daemon, layout, page, dtype):
    first = 1000 * LAYOUTS.index(layout)
    pool, keys = host_pool(layout, page, dtype), hashes(first, 4, page)
    fill(pool, range(2, 6), 7)
    made = storage(module_daemon, pool)
    assert made.batch_exists(keys) == 0
    assert made.batch_set_v1(keys, indices(range(2, 6), page)) == [True] * 4
    before = pool.kv_buffer.clone()
    until_there(made, keys)
    assert torch.equal(pool.kv_buffer, before)  # a source is read alone
    for other_layout in {layout, "layer_first", "page_head"}:
        target = host_pool(other_layout, page, dtype)
        reader = storage(module_daemon, target)
        assert reader.batch_exists([*keys, "f" * 64]) == 4
        assert reader.batch_get_v1([*keys, "f" * 64], indices([5, 3, 1, 7, 0], page)) == [True] * 4 + [False]
        for number, source in zip([5, 3, 1, 7], range(2, 6)):
            # Pages of layouts are permuted: what is compared is K and V by meaning.
            assert torch.equal(meaning(target, number), meaning(pool, source))
        for number in (0, 2, 4, 6):
            assert not meaning(target, number).any()


def meaning(pool, number):
    """[K, V][layer][token][head][channel] of a page."""
    size, part = pool.page_size, pool.kv_buffer
    if pool.layout == "layer_first":
        return part[:, :, number * size:(number + 1) * size]
    if pool.layout == "page_first":
        return part[:, number * size:(number + 1) * size].transpose(1, 2)
    return part[:, number] if pool.layout == "page_first_direct" else part[:, number].permute(0, 3, 2, 1, 4)


@pytest.mark.parametrize("other", [
    {"model_name": "n"}, {"tp_size": 2}, {"tp_rank": 1, "tp_size": 2}, {"pp_size": 2}, {"pp_rank": 1, "pp_size": 2},
    {"attn_cp_size": 2}, {"attn_cp_rank": 1, "attn_cp_size": 2}, {"options": {"revision": "2"}}])
def test_another_model_or_rank_is_a_miss_on_data_that_exists(module_daemon, other):
    _, _, keys = stored_pages(module_daemon, 50000)
    target = host_pool()
    reader = storage(module_daemon, target, **other)
    assert reader.batch_exists(keys) == 0 and not reader.exists(keys[0])
    assert reader.batch_get_v1(keys, indices(range(2))) == [False, False] and not target.kv_buffer.any()


@pytest.mark.parametrize("kind", ["tp", "pp", "attn_cp"])
def test_each_rank_has_its_own_pages(module_daemon, kind):
    pools = [host_pool(), host_pool()]
    ranks = [storage(module_daemon, pool, **{f"{kind}_rank": rank, f"{kind}_size": 2}) for rank, pool in enumerate(pools)]
    keys = hashes(52000, 1)
    fill(pools[0], [0], 11)
    ranks[0].batch_set_v1(keys, indices([0]))
    until_there(ranks[0], keys)
    assert ranks[1].batch_exists(keys) == 0


def test_a_run_ends_at_the_first_page_that_is_not_there(module_daemon):
    pool, keys = host_pool(), hashes(55000, 4)
    fill(pool, range(4), 12)
    made = storage(module_daemon, pool)
    made.batch_set_v1([keys[0], keys[1], keys[3]], indices([0, 1, 3]))
    until_there(made, keys[:2])
    until_there(made, keys[3:])
    assert made.batch_exists(keys) == 2 and made.batch_exists_v2(keys).kv_hit_pages == 2
    assert made.batch_get_v1(keys, indices([4, 5, 6, 7])) == [True, True, False, True]
    assert not meaning(pool, 6).any() and torch.equal(meaning(pool, 7), meaning(pool, 3))


def test_a_page_that_is_there_in_no_part_is_told_so(module_daemon, monkeypatch):
    made, pool, keys = stored_pages(module_daemon, 57000)
    monkeypatch.setattr(made._store, "fetch", lambda lease, view: [False])
    assert made.batch_get_v1(keys, indices([4, 5])) == [False, False]


@pytest.mark.parametrize(("first", "count", "what"), [(32, 128, "multiple"), (0, 127, "as many host indices")])
def test_indices_that_are_no_pages_are_refused(module_daemon, first, count, what):
    pool = host_pool()
    made = storage(module_daemon, pool)
    for call in (made.batch_set_v1, made.batch_get_v1):
        with pytest.raises(ValueError, match=what):
            call(hashes(58000, 2), torch.arange(first, first + count))


def test_another_type_or_page_size_is_a_miss(module_daemon):
    _, _, keys = stored_pages(module_daemon, 60000)
    assert storage(module_daemon, host_pool(dtype=torch.float16)).batch_exists(keys) == 0
    assert storage(module_daemon, host_pool(page=128)).batch_exists(keys) == 0


def test_page_hashes_know_lora_and_salt(monkeypatch, module_daemon):
    from sglang.srt.lora.lora_registry import LoRARef

    tokens = array("q", range(128))
    spaces = [{}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"extra_key": LoRARef.deterministic_id("a", "/x")},
              {"extra_key": LoRARef.deterministic_id("a", "/y")}, {"extra_key": "a"}]
    first, last = zip(*[get_storage_hash_str(RadixKey(tokens, **space), page_size=64) for space in spaces])
    assert len({*first, *last}) == 2 * len(spaces)
    monkeypatch.delattr(utils, "storage_namespace_seed")
    with pytest.raises(ValueError, match="neither LoRA nor salt"):
        storage(module_daemon, host_pool())


def test_after_clear_nothing_is_found_until_it_is_stored_again(module_daemon):
    made, pool, keys = stored_pages(module_daemon, 90000)
    made.clear()
    assert made.batch_exists(keys) == 0 and made.batch_get_v1(keys, indices([4, 5])) == [False, False]
    fill(pool, range(2), 5)  # other weights
    made.batch_set_v1(keys, indices(range(2)))
    until_there(made, keys)
    assert made.batch_get_v1(keys, indices([4, 5])) == [True, True] and torch.equal(meaning(pool, 4), meaning(pool, 0))


def test_the_interface_of_several_pools(module_daemon):
    pool, keys = host_pool(), hashes(70000, 2)
    fill(pool, range(2), 3)
    made = storage(module_daemon, pool)
    kv = PoolTransfer(name=PoolName.KV, host_indices=indices(range(2)), keys=keys)
    mamba = PoolTransfer(name=PoolName.MAMBA, host_indices=indices(range(1)), keys=keys[:1])
    assert made.batch_set_v2([kv, mamba]) == {PoolName.KV: [True, True], PoolName.MAMBA: [False]}
    until_there(made, keys)
    assert made.batch_exists_v2(keys).kv_hit_pages == 2
    assert made.batch_exists_v2(keys, [mamba]).kv_hit_pages == 0  # what is not stored is not there
    assert made.batch_get_v2([kv, mamba]) == {PoolName.KV: [True, True], PoolName.MAMBA: [False]}
    assert made.get("x") is None and made.batch_get(["x"]) == [None] and not made.set("x") and not made.batch_set(["x"])


@pytest.mark.parametrize(("pool", "other", "change", "what"), [
    ({"page": 16}, {}, {}, "page-size is 16"), ({"dtype": torch.float32}, {}, {}, "float32"),
    ({}, {"is_mla_model": True}, {}, "latent"), ({}, {"should_split_heads": True}, {}, "split heads"),
    ({}, {"model_name": None}, {}, "no name"), ({}, {}, {"interface_v1": 0}, "interface_v1"),
    ({}, {}, {"kvtier": {}}, "revision"), ({}, {}, {"kvtier": "x"}, "not a str"),
    ({}, {}, {"kvtier": {"revision": 1}}, "a text"), ({}, {}, {"kvtier": {"revision": "1", "x": 1}}, "unknown option")])
def test_what_is_not_supported_is_refused(module_daemon, pool, other, change, what):
    made_pool = host_pool(**pool)
    with pytest.raises(ValueError, match=what):
        made = StorageBackendFactory.create_backend("dynamic", config(extra(module_daemon) | change, **other), made_pool)
        made.register_mem_pool_host(made_pool)


def test_a_storage_that_is_closed_leaves_no_session(daemon):
    made, _, keys = stored_pages(daemon, 95000)
    with leaves_no_session(daemon):
        made.close()
    assert made.batch_exists(keys) == 0 and made.batch_get_v1(keys, indices([4, 5])) == [False, False]


def test_a_daemon_that_dies_is_a_miss(daemon):
    made, pool, keys = stored_pages(daemon, 0, {"timeout_ms": 200, "transfer_timeout_ms": 200, "retry_ms": 1})
    daemon.kill()
    before = pool.kv_buffer.clone()
    assert made.batch_exists(keys) == 0 and made.batch_get_v1(keys, indices([4, 5])) == [False, False]
    assert torch.equal(pool.kv_buffer, before)
    daemon.start()
    end = time.monotonic() + 20
    while made.batch_exists(keys) < 2:
        made.batch_set_v1(keys, indices(range(2)))
        assert time.monotonic() < end
    assert made.batch_get_v1(keys, indices([4, 5])) == [True, True]
    assert torch.equal(meaning(pool, 4), meaning(pool, 0)) and torch.equal(meaning(pool, 5), meaning(pool, 1))


def test_prefetch_and_backup_at_the_same_time(module_daemon):
    pool = host_pool()
    made, wrong, done = storage(module_daemon, pool), [], []

    def run(number):
        page = random_page(number)
        pool.set_from_flat_data_page(number * 64, page)
        mine, (key,) = meaning(pool, number).clone(), hashes(80000 + 64 * number, 1)
        for _ in range(10):
            made.batch_set_v1([key], indices([number]))
            if made.batch_get_v1([key], indices([number + PAGES])) == [True]:
                done.append(number)
                if not torch.equal(meaning(pool, number + PAGES), mine):
                    wrong.append(number)
    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and len(set(done)) == 6
