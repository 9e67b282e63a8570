"""The package against the real daemon, with arrays of numpy and of a DLPack producer."""

import select
import subprocess
import time

import numpy as np
import pytest

from conftest import BUILD

LAYERS, HEADS, DIM, TOKENS = 3, 2, 64, 300  # two blocks of 128 and a tail of 44


@pytest.fixture
def model(daemon):
    import kvtier

    with kvtier.Client(daemon.socket, name="pytest", timeout_ms=20000, fetch_threads=2) as client:
        yield client.register_model(kvtier.ModelSpec("py", layers=LAYERS, kv_heads=HEADS, k_dim=DIM, v_dim=DIM))


def random_kv(seed=1, tokens=TOKENS):
    """[layer][K, V][head][token][channel]"""
    return np.random.default_rng(seed).standard_normal((LAYERS, 2, HEADS, tokens, DIM)).astype(np.float16)


def put(model, kv, tokens=TOKENS):
    import kvtier

    blocks = model.keys(range(tokens))
    results = model.put(blocks, kvtier.View(kv, "lchtd")).wait(20000)
    assert len(results) == len(blocks) and all(result.stored for result in results)
    return blocks


def test_what_was_put_comes_back_bit_for_bit(model):
    import kvtier

    kv, out = random_kv(), np.zeros((LAYERS, 2, HEADS, TOKENS, DIM), np.float16)
    assert model.acquire(model.keys(range(TOKENS))) is None
    blocks = put(model, kv)
    found = model.lookup(blocks)
    assert (found.tokens, found.tail_tokens, len(found.blocks)) == (300, 44, 2)
    assert found.blocks[0].precision == kvtier.Precision.BITS16
    with model.acquire(blocks) as lease:
        assert (len(lease), lease.tokens) == (3, TOKENS)
        assert [block.position for block in lease.blocks()] == [0, 128, 256]
        results = lease.fetch(kvtier.View(out, "lchtd"))
    assert all(result.ok and result.k_error == 0 for result in results)
    assert np.array_equal(kv, out)
    assert model.lookup(blocks, before_last_token=True).tokens < TOKENS


def layouts():
    """(name, make) where make() gives (view, where): where(layer, k_or_v) is [head][token][channel]."""
    import kvtier

    def separate():
        keys = [np.zeros((1, HEADS, TOKENS, DIM), np.float16) for _ in range(LAYERS)]
        values = [np.zeros((1, HEADS, TOKENS, DIM), np.float16) for _ in range(LAYERS)]
        return kvtier.View(keys, "1htd", v=values), lambda layer, c: (values if c else keys)[layer][0]

    def paged():
        pages, page = 40, 16
        caches = [np.zeros((2, pages, page, HEADS, DIM), np.float16) for _ in range(LAYERS)]
        table = list(np.random.default_rng(3).permutation(pages)[: -(-TOKENS // page)])
        view = kvtier.View(caches, "cpthd", page_table=table)
        flat = lambda layer, c: caches[layer][c][table].reshape(-1, HEADS, DIM)[:TOKENS].transpose(1, 0, 2)
        return view, flat

    def strided():
        big = np.zeros((LAYERS, HEADS, TOKENS + 5, 2, DIM + 8), np.float16)
        return kvtier.View(big[:, :, :TOKENS, :, :DIM], "lhtcd"), lambda layer, c: big[layer, :, :TOKENS, c, :DIM]

    return {"separate K and V": separate, "vLLM pages": paged, "a part of larger arrays": strided}


@pytest.mark.parametrize("name", ["separate K and V", "vLLM pages", "a part of larger arrays"])
def test_fetches_into_every_layout(model, name):
    kv = random_kv()
    blocks = put(model, kv)
    view, where = layouts()[name]()
    with model.acquire(blocks) as lease:
        assert all(result.ok for result in lease.fetch(view))
    for layer in range(LAYERS):
        for c in range(2):
            assert np.array_equal(where(layer, c), kv[layer, c]), (layer, c)


def test_puts_from_pages(model):
    import kvtier

    kv = random_kv()
    page, count = 16, -(-TOKENS // 16)
    cache = np.zeros((LAYERS, 2, count, page, HEADS, DIM), np.float16)
    flat = cache.reshape(LAYERS, 2, count * page, HEADS, DIM)
    flat[:, :, :TOKENS] = kv.transpose(0, 1, 3, 2, 4)
    blocks = model.keys(range(TOKENS))
    model.put(blocks, kvtier.View(cache, "lcpthd", page_table=range(count))).wait(20000)
    out = np.zeros_like(kv)
    with model.acquire(blocks) as lease:
        lease.fetch(kvtier.View(out, "lchtd"))
    assert np.array_equal(kv, out)


def test_layers_come_one_by_one(model):
    import kvtier

    kv, out = random_kv(), np.zeros((LAYERS, 2, HEADS, TOKENS, DIM), np.float16)
    blocks = put(model, kv)
    with model.acquire(blocks) as lease:
        fetch = lease.fetch_async(kvtier.View(out, "lchtd"))
        for layer in range(LAYERS):
            assert all(result.ok for result in fetch.wait_layer(layer, 20000))
            assert np.array_equal(out[layer], kv[layer])
        fetch.wait(20000)
        for _ in range(20):  # dropped while they run: the arrays may go
            lease.fetch_async(kvtier.View(np.zeros_like(kv), "lchtd"))
        cancelled = lease.fetch_async(kvtier.View(out, "lchtd"))
        cancelled.cancel()
        codes = {result.code for result in cancelled.wait_layer(LAYERS - 1)}
        assert codes <= {kvtier.Code.OK, kvtier.Code.CANCELLED}


def test_completions_are_told_by_a_descriptor(model):
    import kvtier

    client = model._client
    fd = client.completion_fd()
    ticket = model.put(model.keys(range(TOKENS)), kvtier.View(random_kv(), "lchtd"))
    assert select.select([fd], [], [], 20)[0] == [fd]
    assert client.completed() == [ticket.number]
    assert select.select([fd], [], [], 0)[0] == []
    assert all(result.stored for result in ticket.wait(1))
    with pytest.raises(kvtier.Error) as stale:
        ticket.wait(1)
    assert stale.value.code == kvtier.Code.STALE


class Dlpack:
    """An array that offers DLPack alone."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self):
        return self._array.__dlpack__()


def test_arrays_of_dlpack(model):
    import kvtier

    kv, out = random_kv(), np.zeros((LAYERS, 2, HEADS, TOKENS, DIM), np.float16)
    blocks = model.keys(range(TOKENS))
    model.put(blocks, kvtier.View(Dlpack(kv), "lchtd")).wait(20000)
    turned = np.zeros((LAYERS, TOKENS, HEADS, 2, DIM), np.float16)
    with model.acquire(blocks) as lease:
        lease.fetch(kvtier.View(Dlpack(out), "lchtd"))
        lease.fetch(kvtier.View(Dlpack(turned), "lthcd"))
    assert np.array_equal(kv, out)
    assert np.array_equal(kv, turned.transpose(0, 3, 2, 1, 4))


def test_bf16_that_comes_as_integers(daemon):
    import kvtier

    with kvtier.Client(daemon.socket, timeout_ms=20000) as client:
        model = client.register_model(
            kvtier.ModelSpec("bf", layers=1, kv_heads=1, k_dim=64, v_dim=64, dtype=kvtier.DType.BF16))
        kv = (random_kv(2)[:1, :, :1].astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        blocks = model.keys(range(TOKENS))
        with pytest.raises(ValueError, match="dtype says"):
            kvtier.View(kv, "lchtd")
        model.put(blocks, kvtier.View(kv, "lchtd", dtype=kvtier.DType.BF16)).wait(20000)
        wide = np.zeros(kv.shape, np.float32)
        with model.acquire(blocks) as lease:
            lease.fetch(kvtier.View(wide, "lchtd"))
        assert np.array_equal(wide.view(np.uint32) >> 16, kv)


def test_blocks_can_be_cut_removed_and_made_durable(model, daemon):
    import kvtier

    kv = random_kv()
    blocks = model.keys(range(TOKENS))
    durable = model.put(blocks.full(), kvtier.View(kv, "lchtd"), durability=kvtier.Durability.DURABLE).wait(60000)
    assert all(result.stored for result in durable)
    daemon.kill()
    assert model.acquire(blocks) is None and model.lookup(blocks).tokens == 0
    daemon.start()
    until = time.monotonic() + 20
    while time.monotonic() < until and model.lookup(blocks).tokens == 0:
        time.sleep(0.02)  # the library connects again by itself
    assert model.lookup(blocks).tokens == 256
    assert model.remove(blocks[1:2]) == 1
    assert model.lookup(blocks).tokens == 128
    assert model.clear() == 1
    stats = model._client.stats()
    assert [tier.name for tier in stats.tiers] == ["hot", "warm", "cold"] and stats.blocks == 0


def test_foreign_hashes(model):
    import kvtier

    kv = random_kv(tokens=256)
    hashes = [b"first", b"second"]
    blocks = model.foreign_blocks(hashes)
    model.put(blocks, kvtier.View(kv, "lchtd")).wait(20000)
    assert model.lookup(model.foreign_blocks(hashes)).tokens == 256
    assert model.lookup(model.foreign_blocks([b"second"], b"first", 1)).tokens == 128
    assert model.lookup(model.foreign_blocks([b"other"])).tokens == 0
    # Parents and positions of a later part are those of the whole.
    part, whole = model.foreign_blocks([b"second"], b"first", 1), blocks[1:]
    assert bytes(part._refs) == bytes(whole._refs) != bytes(blocks[:1]._refs)
    assert [bytes(ref.parent) for ref in blocks._refs] == [model.namespace(), model.foreign_key(b"first")]


def test_what_does_not_fit_is_refused_before_memory_is_touched(model):
    import kvtier

    kv = random_kv()
    blocks = put(model, kv)
    with model.acquire(blocks) as lease:
        for small in (np.zeros((LAYERS, 2, HEADS, TOKENS - 1, DIM), np.float16),
                      np.zeros((LAYERS - 1, 2, HEADS, TOKENS, DIM), np.float16),
                      np.zeros((LAYERS, 2, HEADS - 1, TOKENS, DIM), np.float16),
                      np.zeros((LAYERS, 2, HEADS, TOKENS, DIM - 1), np.float16)):
            with pytest.raises(ValueError, match="the blocks need"):
                lease.fetch(kvtier.View(small, "lchtd"))
        frozen = np.zeros_like(kv)
        frozen.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            lease.fetch(kvtier.View(frozen, "lchtd"))
        with pytest.raises(ValueError, match="not in the lease"):
            lease.fetch(kvtier.View(np.zeros_like(kv), "lchtd"), first=3)
    with pytest.raises(ValueError, match="the blocks need"):
        model.put(blocks, kvtier.View(kv[:, :, :, :100], "lchtd"))


def test_room_is_for_k_and_v(model):
    import kvtier

    for k_dim, v_dim in ((64, 128), (128, 64)):
        wide = model._client.register_model(kvtier.ModelSpec("wide", layers=LAYERS, kv_heads=HEADS, k_dim=k_dim, v_dim=v_dim))
        with pytest.raises(ValueError, match="have 64 channels, the blocks need 128"):
            wide.put(wide.keys(range(TOKENS)), kvtier.View(random_kv(), "lchtd"))


def test_a_part_of_the_blocks_and_of_the_layers_is_fetched(model):
    import kvtier

    kv, out = random_kv(), np.zeros((LAYERS, 2, HEADS, TOKENS, DIM), np.float16)
    with model.acquire(put(model, kv)) as lease:
        for count, tokens in ((1, 128), (2, 172)):
            out[:] = 0
            results = lease.fetch(kvtier.View(out[:, :, :, :tokens], "lchtd"), first=1, count=count, layers=range(1, 2))
            assert [result.ok for result in results] == [True] * count
            assert np.array_equal(out[1, :, :, :tokens], kv[1, :, :, 128:128 + tokens])
            assert not out[[0, 2]].any() and not out[:, :, :, tokens:].any()


def test_a_tail_can_be_left_for_the_last_token(model):
    blocks = put(model, random_kv(tokens=256), 256)
    assert model.lookup(blocks).tokens == 256 and model.lookup(blocks, before_last_token=True).tokens == 128
    with model.acquire(blocks, before_last_token=True) as lease:
        assert lease.tokens == 128


def test_numbers_in_fp8_are_scaled_by_layer(model):
    import kvtier

    scaled = model._client.register_model(kvtier.ModelSpec(
        "scaled", layers=LAYERS, kv_heads=HEADS, k_dim=DIM, v_dim=DIM, k_scales=[1, 2, 4], v_scales=[8, 16, 32]))
    kv, out = np.full((LAYERS, 2, HEADS, 128, DIM), 64, np.float16), np.zeros((LAYERS, 2, HEADS, 128, DIM), np.uint8)
    blocks = put(scaled, kv, 128)
    with scaled.acquire(blocks) as lease:
        assert lease.fetch(kvtier.View(out, "lchtd", dtype=kvtier.DType.FP8_E4M3))[0].ok
    # 64 / scale is a power of two: E4M3 has exponent + 7 in bits 3 to 6.
    assert [[set(part.flat) for part in layer] for layer in out] == [
        [{(exponent + 7) << 3} for exponent in layer] for layer in ((6, 3), (5, 2), (4, 1))]
    with pytest.raises(ValueError, match="one a layer"):
        model._client.register_model(kvtier.ModelSpec("m", layers=2, kv_heads=1, k_dim=64, v_dim=64, k_scales=[1]))


@pytest.mark.parametrize("of", ["nothing", "model", "put"])
def test_blocks_go_down_to_their_floor_alone(model, daemon, of):
    import kvtier

    exact = kvtier.Precision.BITS16
    mine = model._client.register_model(kvtier.ModelSpec(
        "floor", layers=LAYERS, kv_heads=HEADS, k_dim=DIM, v_dim=DIM, floor=exact if of == "model" else kvtier.Precision.ANY))
    blocks = mine.keys(range(256))
    mine.put(blocks, kvtier.View(random_kv(tokens=256), "lchtd"),
             floor=exact if of == "put" else kvtier.Precision.ANY).wait(20000)
    other = put(model, random_kv())  # goes down whatever the floor of the first is
    subprocess.run([BUILD / "bin/kvtierctl", "--socket", daemon.socket, "demote", "hot"], check=True, timeout=60)

    def lowest(one, of_blocks):
        return min((match.precision for match in one.lookup(of_blocks).blocks), default=exact)
    until = time.monotonic() + 20
    while time.monotonic() < until and not (lowest(model, other) < exact and (of != "nothing" or lowest(mine, blocks) < exact)):
        time.sleep(0.02)
    assert lowest(model, other) < exact and (lowest(mine, blocks) < exact) == (of == "nothing")


def test_few_codes_mean_that_a_block_is_there():
    import kvtier

    codes, exact = set(kvtier.Code), kvtier.Precision.BITS16
    assert {code for code in codes if kvtier.BlockResult(code, exact, 0, 0).ok} == {kvtier.Code.OK}
    assert {code for code in codes if kvtier.PutResult(code, exact, 0).stored} == {kvtier.Code.OK, kvtier.Code.PRESENT}


def test_wrong_arguments_are_no_misses(model):
    import kvtier

    nothing = kvtier.Blocks((kvtier._abi.BlockRef * 1)(), model.keys(range(1))._tokens)
    nothing._refs[0].tokens = 4096
    for call in (model.acquire, model.lookup):
        with pytest.raises(kvtier.Error) as error:
            call(nothing)
        assert error.value.code not in kvtier.MISSES


def test_no_daemon_is_an_error_with_a_reason(tmp_path):
    import kvtier

    with pytest.raises(kvtier.Error, match="UNAVAILABLE") as error:
        kvtier.Client(str(tmp_path / "none.sock"))
    assert error.value.code == kvtier.Code.UNAVAILABLE
