"""What the package refuses, since the library cannot: what ctypes would cut, and what has another meaning in C."""

import array
import pathlib

import numpy as np
import pytest

from client_test import DIM, HEADS, LAYERS, TOKENS, model, put, random_kv  # noqa: F401, the fixture among them


@pytest.mark.parametrize(("make", "what"), [
    (lambda kvtier, kv: kvtier.View(kv, "lchd"), "no axis t"),
    (lambda kvtier, kv: kvtier.View(kv, "lcxtd"), "unknown axis"),
    (lambda kvtier, kv: kvtier.View(kv, "lhttd"), "twice"),
    (lambda kvtier, kv: kvtier.View([kv[0]], "lchtd"), "one array has an axis"),
    (lambda kvtier, kv: kvtier.View(kv, "chtd"), "one array has an axis"),
    (lambda kvtier, kv: kvtier.View(kv[:, 0], "lhtd"), "either the axes"),
    (lambda kvtier, kv: kvtier.View(kv, "lcptd"), "no axis h"),
    (lambda kvtier, kv: kvtier.View(kv[:, :1], "lchtd"), "not 2"),
    (lambda kvtier, kv: kvtier.View([kv[0], kv[1][:, :, :9]], "chtd"), "differ"),
    (lambda kvtier, kv: kvtier.View(kv.astype(np.float64), "lchtd"), "none of FP16"),
    (lambda kvtier, kv: kvtier.View([], "chtd"), "no array"),
    (lambda kvtier, kv: kvtier.View(kv[:, 0], "lhtd", v=kv[:, 1].view(np.uint16)), "differ"),
    (lambda kvtier, kv: kvtier.View(kv[:, 0], "lhtd", v=kv[:, 1].swapaxes(1, 2).copy().swapaxes(1, 2)), "differ"),
    (lambda kvtier, kv: kvtier.View(kv.view(np.uint8), "lchtd", dtype=kvtier.DType.BF16), "have 1 bytes, BF16 has 2"),
    (lambda kvtier, kv: kvtier.View(kv, "lchtd", dtype=kvtier.DType.BF16), "type of their own, which is not BF16"),
    (lambda kvtier, kv: kvtier.View(kv.astype(">f2"), "lchtd", dtype=kvtier.DType.FP16), "type of their own"),
    (lambda kvtier, kv: kvtier.View(kv.astype(">u2"), "lchtd", dtype=kvtier.DType.FP16), "type of their own"),
    (lambda kvtier, kv: kvtier.View(kv.astype(np.int32), "lchtd", dtype=kvtier.DType.FP16), "have 4 bytes"),
    (lambda kvtier, kv: kvtier.View(np.broadcast_to(kv[..., :1], kv.shape), "lchtd"), "one element"),
    (lambda kvtier, kv: kvtier.View(kv.reshape(LAYERS, 2, HEADS, 20, 15, DIM), "lchptd", page_table=[20]), "outside"),
])
def test_views_that_cannot_be(make, what):
    import kvtier

    with pytest.raises(ValueError, match=what):
        make(kvtier, random_kv())


def test_a_type_is_said_of_what_has_none():
    import kvtier

    kv = random_kv()
    for untyped in (np.uint16, np.int16, "V2"):
        assert kvtier.View(kv.view(untyped), "lchtd", dtype=kvtier.DType.BF16).struct.dtype == kvtier.DType.BF16
    assert kvtier.View(kv, "lchtd", dtype=kvtier.DType.FP16).struct.dtype == kvtier.DType.FP16


TEXTS = ["model_id", "revision", "lora", "config_digest", "kv_scales", "layout_id"]


@pytest.mark.parametrize("field", TEXTS)
def test_a_text_that_c_would_cut_or_take_as_an_address_is_refused(field):
    import kvtier

    def spec(value):
        return kvtier.ModelSpec(**{"model_id": "m", "layers": 1, "kv_heads": 1, "k_dim": 64, "v_dim": 64} | {field: value})
    with pytest.raises(ValueError, match=f"{field} has a NUL"):
        spec("a\0b")
    for value in (5, b"text", b"\0", pathlib.Path("text"), ["text"], True):
        with pytest.raises(TypeError, match=f"{field} is a str"):
            spec(value)
    with pytest.raises(ValueError):
        spec("\ud800")  # no character
    assert getattr(spec("text"), field) == "text"


def test_a_client_s_texts_are_texts(daemon):
    import kvtier

    for value in (5, b"text", True):
        with pytest.raises(TypeError, match="socket is a str"):
            kvtier.Client(value)
        with pytest.raises(TypeError, match="name is a str"):
            kvtier.Client(daemon.socket, name=value)
    with pytest.raises(ValueError, match="socket has a NUL"):
        kvtier.Client(daemon.socket + "\0")
    with pytest.raises(ValueError, match="name has a NUL"):
        kvtier.Client(daemon.socket, name="a\0b")
    with kvtier.Client(pathlib.Path(daemon.socket)) as client:
        assert client.stats().sessions == 1


@pytest.mark.parametrize("field", ["layers", "kv_heads", "k_dim", "tokens_per_block", "layer_group", "dtype", "floor", "tp"])
def test_a_number_that_c_would_cut_is_refused(field):
    import kvtier

    def spec(value):
        return kvtier.ModelSpec(**{"model_id": "m", "layers": 1, "kv_heads": 1, "k_dim": 64, "v_dim": 64} | {field: value})
    for value in ((1 << 32) + 1, -(1 << 32) + 1):  # 1 in 32 bits
        with pytest.raises(ValueError, match="not within"):
            spec((0, value) if field == "tp" else value)
    with pytest.raises(TypeError, match="whole number"):
        spec((0, 1.5) if field == "tp" else 1.5)
    with pytest.raises(ValueError):
        kvtier.ModelSpec("m", layers=1, kv_heads=1, k_dim=64, v_dim=64, tp=(0,))


def test_numbers_of_calls_are_not_cut(model):
    import kvtier

    kv, blocks = random_kv(), put(model, random_kv())
    view, cut = kvtier.View(kv, "lchtd"), 1 << 32
    for call in (lambda: model.lookup(blocks, cut), lambda: model.acquire(blocks, timeout_ms=cut), lambda: model.remove(blocks, cut),
                 lambda: model.acquire(blocks, ttl_ms=-1), lambda: model.put(blocks, view, priority=cut), lambda: model.clear(cut),
                 lambda: model.prefetch(blocks, cut), lambda: model.put(blocks, view, durability=cut),
                 lambda: model._client.stats(cut), lambda: model.foreign_blocks([b"hash"], first_block=-1)):
        with pytest.raises(ValueError, match="not within"):
            call()
    assert model.lookup(blocks).tokens == TOKENS
    with model.acquire(blocks) as lease:
        fetch = lease.fetch_async(view)
        with pytest.raises(ValueError, match="not within"):
            fetch.wait_layer(-1)
        with pytest.raises(ValueError, match="not within"):
            fetch.wait(cut)
        fetch.wait(20000)


def test_tokens_are_one_sequence_of_whole_numbers(model):
    for wrong in (b"abcdabcd", bytearray(b"abcdabcd"), "abcd", [1.5], np.arange(3.0)):
        with pytest.raises(TypeError):
            model.keys(wrong)
    for wrong in (np.zeros((2, 3), np.int64), np.zeros((2, 1), np.int32), np.array(3)):
        with pytest.raises(ValueError, match="one sequence"):
            model.keys(wrong)
    for right in (np.arange(300), np.arange(300, dtype=np.int32), array.array("q", range(300))):
        assert model.keys(right).keys() == model.keys(range(300)).keys()
    for wrong in ("hash", 5, bytearray(b"hash")):
        with pytest.raises(TypeError, match="hash is bytes"):
            model.foreign_key(wrong)
    with pytest.raises(TypeError, match="as a run"):
        model.keys(range(300))[0]


@pytest.mark.parametrize("layers", [range(0, 3, 2), range(1, 1), range(2, 1), range(2, 0, -1), range(-1, 2), range(1, 4)])
def test_layers_that_are_no_run_are_refused_and_nothing_is_written(model, layers):
    import kvtier

    out = np.zeros((LAYERS, 2, HEADS, TOKENS, DIM), np.float16)
    with model.acquire(put(model, random_kv())) as lease:
        with pytest.raises(ValueError, match="no run"):
            lease.fetch(kvtier.View(out, "lchtd"), layers=layers)
        with pytest.raises(TypeError, match="layers is a range"):
            lease.fetch(kvtier.View(out, "lchtd"), layers=[0, 2])
        with pytest.raises(ValueError, match="not in the lease"):
            lease.fetch(kvtier.View(out, "lchtd"), count=0)
    assert not out.any()


def test_a_page_that_is_there_twice_is_no_destination(model):
    import kvtier

    page, count = 16, -(-TOKENS // 16)
    caches = [np.zeros((2, count, page, HEADS, DIM), np.float16) for _ in range(LAYERS)]
    with model.acquire(put(model, random_kv())) as lease:
        for fetch in (lease.fetch, lease.fetch_async):
            with pytest.raises(ValueError, match="a page twice"):
                fetch(kvtier.View(caches, "cpthd", page_table=[0, *range(count - 1)]))
        assert not any(cache.any() for cache in caches)
        # Behind what is fetched nobody writes.
        table = [*range(count), 0, 0]
        assert all(result.ok for result in lease.fetch(kvtier.View(caches, "cpthd", page_table=table)))


def test_after_close_a_call_is_an_error_and_no_miss(daemon):
    import kvtier

    client = kvtier.Client(daemon.socket, timeout_ms=20000)
    model = client.register_model(kvtier.ModelSpec("py", layers=LAYERS, kv_heads=HEADS, k_dim=DIM, v_dim=DIM))
    view, blocks = kvtier.View(random_kv(), "lchtd"), put(model, random_kv())
    ticket, lease = model.prefetch(blocks, 0), model.acquire(blocks)
    fetch = lease.fetch_async(view)
    client.close()
    for call in (lambda: model.acquire(blocks), lambda: model.lookup(blocks), lambda: lease.fetch(view),
                 lambda: lease.fetch_async(view), ticket.wait, ticket.cancel, fetch.wait, lambda: fetch.wait_layer(0), client.stats,
                 client.completed, client.completion_fd, lambda: client.register_model(model.spec)):
        with pytest.raises(kvtier.Error, match="the client is closed") as error:
            call()
        assert error.value.code not in kvtier.MISSES
    lease.release()
    with pytest.raises(ValueError, match="released"):
        lease.fetch(view)


def test_an_error_says_its_code_once(model):
    import kvtier

    with pytest.raises(kvtier.Error, match="multiples of 16") as error:
        model._client.register_model(kvtier.ModelSpec("m", layers=1, kv_heads=1, k_dim=63, v_dim=64))
    assert str(error.value).count("UNSUPPORTED") == 1 and str(error.value).startswith("UNSUPPORTED: ")
    assert str(kvtier.Error(kvtier.Code.STALE, "STALE")) == "STALE"
