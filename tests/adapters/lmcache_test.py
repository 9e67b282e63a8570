"""The L2 adapter by LMCache's own factory, with its keys, objects and event descriptors."""

import hashlib
import select
import threading
import time

import pytest

from conftest import leaves_no_session, needs

needs("lmcache")
import torch
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.l2_adapters.factory import create_l2_adapter_from_registry
from lmcache.v1.distributed.l2_adapters.plugin_l2_adapter import PluginL2AdapterConfig
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj
from lmcache.v1.platform.event_notifier import consume_fd

LAYERS, HEADS, DIM, TOKENS = 3, 2, 64, 256
SHAPE = torch.Size([2, LAYERS, TOKENS, HEADS * DIM])


def make(daemon, models=None, **options):
    params = {"socket": daemon.socket, "timeout_ms": 20000, "transfer_timeout_ms": 20000} | options
    params["models"] = models or {"m": {"kv_heads": HEADS, "revision": "1"}}
    return create_l2_adapter_from_registry(PluginL2AdapterConfig.from_dict({
        "module_path": "kvtier_adapters.lmcache", "class_name": "KvtierL2Adapter", "adapter_params": params}))


@pytest.fixture
def adapter(module_daemon):
    made = make(module_daemon)
    yield made
    made.close()


def memory(tensor):
    flat = tensor.contiguous().view(-1)
    meta = MemoryObjMetadata(shape=tensor.shape, dtype=tensor.dtype, address=0, phy_size=flat.numel() * 2, ref_count=1,
                             fmt=MemoryFormat.KV_2LTD, shapes=[tensor.shape], dtypes=[tensor.dtype])
    return TensorMemoryObj(flat.view(torch.uint8), meta, None)


def random_kv(seed, shape=SHAPE, dtype=torch.bfloat16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def key(name, **other):
    return ObjectKey(**{"chunk_hash": hashlib.sha256(name.encode()).digest(), "model_name": "m", "kv_rank": (1 << 24) | (1 << 8)} | other)


def wait(fd, take, task):
    assert select.select([fd], [], [], 30)[0] == [fd]
    consume_fd(fd)
    result = take(task)
    assert result is not None
    return result


def store(adapter, keys, tensors):
    task = adapter.submit_store_task(keys, [memory(tensor) for tensor in tensors])
    assert select.select([adapter.get_store_event_fd()], [], [], 30)[0]
    consume_fd(adapter.get_store_event_fd())
    return adapter.pop_completed_store_tasks()[task]


def found(adapter, keys, shape=SHAPE, dtype=torch.bfloat16):
    task = adapter.submit_lookup_and_lock_task(keys, {0: MemoryLayoutDesc([shape], [dtype])})
    bits = wait(adapter.get_lookup_and_lock_event_fd(), adapter.query_lookup_and_lock_result, task)
    assert adapter.query_lookup_and_lock_result(task) is None  # told once
    return [bits.test(i) for i in range(len(keys))]


def until_found(adapter, keys, **other):
    end = time.monotonic() + 20
    while not all(bits := found(adapter, keys, **other)) and time.monotonic() < end:
        adapter.submit_unlock([one for one, bit in zip(keys, bits) if bit])
    assert all(bits)


def load(adapter, keys, tensors):
    objects = [memory(tensor) for tensor in tensors]
    bits = wait(adapter.get_load_event_fd(), adapter.query_load_result, adapter.submit_load_task(keys, objects))
    return [bits.test(i) for i in range(len(keys))], [item.get_tensor(0) for item in objects]


def test_chunks_come_back_bit_for_bit(adapter, module_daemon):
    keys, kv = [key("a"), key("b")], [random_kv(1), random_kv(2)]
    assert found(adapter, keys) == [False, False]
    result = store(adapter, keys, kv)
    assert result.is_successful() and result.bytes_transferred() == 2 * SHAPE.numel() * 2
    until_found(adapter, keys)
    other = make(module_daemon)  # as after a restart
    until_found(other, keys)
    bits, out = load(other, [*keys, key("c")], [torch.zeros_like(kv[0]) for _ in range(3)])
    assert bits == [True, True, False]
    assert torch.equal(out[0], kv[0]) and torch.equal(out[1], kv[1]) and not out[2].any()
    other.close()


def test_locks_end(adapter, module_daemon):
    import kvtier

    store(adapter, [key("lock")], [random_kv(3)])
    until_found(adapter, [key("lock")])
    assert found(adapter, [key("lock")]) == [True]
    with kvtier.Client(module_daemon.socket, timeout_ms=20000) as client:
        assert client.stats().leases == 2
        adapter.submit_unlock([key("lock")])
        adapter.submit_unlock([key("lock"), key("never locked")])
        assert client.stats().leases == 0
    adapter.submit_unlock([key("lock")])
    assert load(adapter, [key("lock")], [torch.zeros_like(random_kv(3))])[0] == [True]  # without a lock, too


def test_half_a_chunk_is_a_miss(adapter, module_daemon):
    import kvtier

    name, kv = key("half"), random_kv(9)
    store(adapter, [name], [kv])
    until_found(adapter, [name])
    adapter.submit_unlock([name])
    (inner,) = [store for store in adapter._stores.values() if store is not None]
    model, blocks = inner._connected(), adapter_blocks(inner, name)
    assert len(blocks) == 2 and model.remove(blocks[1:2]) == 1
    assert found(adapter, [name]) == [False] and load(adapter, [name], [torch.zeros_like(kv)])[0] == [False]
    with kvtier.Client(module_daemon.socket, timeout_ms=20000) as client:
        assert client.stats().leases == 0


def adapter_blocks(inner, name):
    from kvtier_adapters.lmcache import _blocks

    return _blocks(inner, name, SHAPE)


def test_an_unlock_of_another_request_leaves_the_lock_that_a_load_uses(adapter, monkeypatch):
    name, kv = key("two locks"), random_kv(10)
    store(adapter, [name], [kv])
    until_found(adapter, [name])
    assert found(adapter, [name]) == [True]
    (inner,) = [store for store in adapter._stores.values() if store is not None]
    fetch, held = inner.fetch, []

    def unlocked_meanwhile(lease, view):
        adapter.submit_unlock([name])
        held.append(len(lease))
        return fetch(lease, view)
    monkeypatch.setattr(inner, "fetch", unlocked_meanwhile)
    bits, out = load(adapter, [name], [torch.zeros_like(kv)])
    assert bits == [True] and torch.equal(out[0], kv) and held == [2]
    adapter.submit_unlock([name])


def test_a_lock_lasts_longer_than_the_daemon_s_own_time(adapter, monkeypatch):
    import kvtier
    from kvtier_adapters.lmcache import _LEASE_MS

    asked, acquire = [], kvtier.Model.acquire
    monkeypatch.setattr(kvtier.Model, "acquire", lambda self, *args, **kwargs: (
        asked.append(kwargs["ttl_ms"]), acquire(self, *args, **kwargs))[1])
    assert found(adapter, [key("long")]) == [False] and asked == [_LEASE_MS]


def test_tasks_that_find_no_room_or_raise_end_as_misses(adapter, monkeypatch):
    name, kv = key("no room"), random_kv(11)
    assert store(adapter, [name], [kv]).is_successful()
    until_found(adapter, [name])
    monkeypatch.setattr(adapter, "_store_of", lambda *args: 1 / 0)
    for _ in range(2):
        assert not store(adapter, [name], [kv]).is_successful() and found(adapter, [name]) == [False]
        assert load(adapter, [name], [torch.zeros_like(kv)])[0] == [False]
        for background in (adapter._reader, adapter._writer):
            monkeypatch.setattr(background, "submit", lambda job: False)


def test_models_and_shapes_are_bounded(adapter, monkeypatch):
    import kvtier_adapters.lmcache

    kv = random_kv(12)
    assert store(adapter, [key("first")], [kv]).is_successful()
    monkeypatch.setattr(kvtier_adapters.lmcache, "_MAX_STORES", 1)
    assert not store(adapter, [key("second", object_group_id=1)], [kv]).is_successful()
    assert store(adapter, [key("third")], [kv]).is_successful()


@pytest.mark.parametrize("other", [
    {"model_name": "n"}, {"kv_rank": (2 << 24) | (1 << 16) | (2 << 8) | 1}, {"object_group_id": 1}, {"cache_salt": "user"}])
def test_another_key_is_a_miss_on_data_that_exists(module_daemon, other):
    made = make(module_daemon, {name: {"kv_heads": HEADS, "revision": "1"} for name in ("m", "n")})
    store(made, [key("same")], [random_kv(4)])
    until_found(made, [key("same")])
    task = made.submit_lookup_and_lock_task([key("same", **other)], {
        group: MemoryLayoutDesc([SHAPE], [torch.bfloat16]) for group in (0, 1)})
    assert not wait(made.get_lookup_and_lock_event_fd(), made.query_lookup_and_lock_result, task).test(0)
    assert load(made, [key("same", **other)], [torch.zeros_like(random_kv(4))])[0] == [False]
    made.close()


def test_another_revision_type_shape_or_head_count_is_a_miss(adapter, module_daemon):
    store(adapter, [key("what")], [random_kv(5)])
    until_found(adapter, [key("what")])
    assert found(adapter, [key("what")], dtype=torch.float16) == [False]
    assert found(adapter, [key("what")], shape=torch.Size([2, LAYERS, 128, HEADS * DIM])) == [False]
    assert found(adapter, [key("what")], shape=torch.Size([2, LAYERS + 1, TOKENS, HEADS * DIM])) == [False]
    for model in ({"kv_heads": HEADS, "revision": "2"}, {"kv_heads": 1, "revision": "1"}):
        other = make(module_daemon, {"m": model})
        assert found(other, [key("what")]) == [False]
        other.close()


@pytest.mark.parametrize("shape", [(1, LAYERS, TOKENS, 576), (LAYERS, TOKENS, 576), (2, LAYERS, 100, 128), (2, LAYERS, TOKENS, 127)])
def test_objects_that_are_not_plain_k_and_v_are_a_miss(adapter, shape):
    tensor = random_kv(6, shape)
    assert not store(adapter, [key("odd")], [tensor]).is_successful()
    assert found(adapter, [key("odd")], shape=torch.Size(shape)) == [False]
    assert load(adapter, [key("odd")], [torch.zeros_like(tensor)])[0] == [False]


def test_hashes_that_may_collide_are_a_miss(adapter):
    kv, short = random_kv(8), key("", chunk_hash=b"8 bytes.")
    assert not store(adapter, [short], [kv]).is_successful()
    assert found(adapter, [short]) == [False] and load(adapter, [short], [torch.zeros_like(kv)])[0] == [False]
    assert store(adapter, [key("32 bytes")], [kv]).is_successful()


@pytest.mark.parametrize("models", [{"m": {"kv_heads": 2}}, {"m": {"kv_heads": "2", "revision": "1"}},
                                    {"m": {"kv_heads": 2, "revision": ""}}, {"m": {"kv_heads": 2, "revision": "1", "x": 1}},
                                    *({"m": {"kv_heads": heads, "revision": "1"}} for heads in (0, -1, True, 2.0, 1 << 32)),
                                    *({"m": {"kv_heads": 2, "revision": name}} for name in (1, b"1", "a\0b", None, ["1"])),
                                    {"m": "x"}, {"m": None}, {"": {"kv_heads": 2, "revision": "1"}}, ["m"], "m"])
def test_wrong_parameters_are_refused(module_daemon, models):
    with pytest.raises(ValueError, match="kvtier: .*model"):
        make(module_daemon, models)


@pytest.mark.parametrize("params", [{}, {"models": {}}, {"models": None}, {"model": {"m": {"kv_heads": 2, "revision": "1"}}}])
def test_parameters_without_models_are_refused(params):
    from kvtier_adapters.lmcache import KvtierL2Adapter

    with pytest.raises(ValueError, match='need "models"'):
        KvtierL2Adapter(params)
    with pytest.raises(ValueError, match="names with values"):
        KvtierL2Adapter([params])


def test_an_adapter_that_is_closed_leaves_nothing_behind(daemon):
    made = make(daemon)
    store(made, [key("end")], [random_kv(13)])
    until_found(made, [key("end")])
    threads = made._reader._threads + made._writer._threads
    with leaves_no_session(daemon):
        made.close()
    assert not any(thread.is_alive() for thread in threads)


def test_a_daemon_that_dies_is_a_miss(daemon):
    made = make(daemon, timeout_ms=200, transfer_timeout_ms=200, retry_ms=1)
    kv = random_kv(7)
    store(made, [key("d")], [kv])
    until_found(made, [key("d")])
    daemon.kill()
    assert found(made, [key("d")]) == [False]
    assert load(made, [key("d")], [torch.zeros_like(kv)])[0] == [False]
    made.submit_unlock([key("d")])
    daemon.start()
    end = time.monotonic() + 20
    while not (store(made, [key("d")], [kv]).is_successful() and found(made, [key("d")]) == [True]):
        assert time.monotonic() < end
    bits, out = load(made, [key("d")], [torch.zeros_like(kv)])
    assert bits == [True] and torch.equal(out[0], kv)
    made.close()


def test_many_threads_get_their_own_chunks(adapter):
    wrong, done = [], []

    def run(owner):
        for i in range(8):
            name = key(f"{owner}/{i % 2}")
            adapter._save(name, memory(torch.full(SHAPE, owner, dtype=torch.bfloat16)))
            item = memory(torch.zeros(SHAPE, dtype=torch.bfloat16))
            if adapter._load(name, item):
                done.append(owner)
                if not (item.get_tensor(0) == owner).all():
                    wrong.append(owner)
    threads = [threading.Thread(target=run, args=(owner,)) for owner in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and len(set(done)) == 6
