"""What the adapters share, against the real daemon: every failure is a miss, in time."""

import dataclasses
import os
import subprocess
import threading
import time

import numpy as np
import pytest

from conftest import BUILD, Daemon, suspended

LAYERS, HEADS, DIM = 3, 2, 64
GENEROUS = {"timeout_ms": 20000, "transfer_timeout_ms": 20000}


def spec(**other):
    import kvtier

    return kvtier.ModelSpec(**{"model_id": "m", "layers": LAYERS, "kv_heads": HEADS, "k_dim": DIM, "v_dim": DIM} | other)


def store(socket, model=None, clock=time.monotonic, **options):
    from kvtier_adapters.blocks import Settings, Store

    return Store(model or spec(), Settings.of(GENEROUS | {"socket": socket} | options), clock)


def random_kv(seed, tokens=256):
    return np.random.default_rng(seed).standard_normal((LAYERS, 2, HEADS, tokens, DIM)).astype(np.float16)


def view(array):
    import kvtier

    return kvtier.View(array, "lchtd")


def until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


def saved(stored, name, kv, blocks=2):
    assert stored.save(stored.chunk(name, blocks), view(kv))
    until(lambda: stored.lookup(stored.chunk(name, blocks)) == 128 * blocks)


def test_a_chunk_comes_back_bit_for_bit(daemon):
    a, kv, out = store(daemon.socket), random_kv(1), np.zeros((LAYERS, 2, HEADS, 256, DIM), np.float16)
    assert a.load(a.chunk(b"one", 2), view(out)) == [False, False]
    saved(a, b"one", kv)
    assert store(daemon.socket).load(a.chunk(b"one", 2), view(out)) == [True, True]
    assert np.array_equal(kv, out)
    assert a.lookup(a.chunk(b"two", 2)) == 0


@pytest.mark.parametrize("other", [
    {"model_id": "n"}, {"revision": "2"}, {"lora": "l@1"}, {"config_digest": "rope"}, {"layout_id": "other"},
    {"kv_scales": "s"}, {"layer_group": 1}, {"tp": (1, 2)}, {"pp": (1, 2)}, {"cp": (1, 2)}, {"tokens_per_block": 64}])
def test_another_model_is_a_miss_on_data_that_exists(module_daemon, other):
    a, b = store(module_daemon.socket), store(module_daemon.socket, spec(**other))
    saved(a, b"namespaces", random_kv(1))
    out = np.zeros((LAYERS, 2, HEADS, 256, DIM), np.float16)
    tokens_per_block = other.get("tokens_per_block", 128)
    blocks = b.chunk(b"namespaces", 256 // tokens_per_block)
    assert b.lookup(blocks) == 0
    assert not any(b.load(blocks, view(out))) and not out.any()


@pytest.mark.parametrize("kind", ["tp", "pp", "cp"])
def test_another_rank_is_a_miss_on_data_that_exists(module_daemon, kind):
    a, b = (store(module_daemon.socket, spec(**{kind: (rank, 2)})) for rank in (0, 1))
    saved(a, b"ranks", random_kv(1))
    assert b.lookup(b.chunk(b"ranks", 2)) == 0


def test_a_chain_in_parts_is_the_chain(module_daemon):
    a, hashes = store(module_daemon.socket), [b"one", b"two", b"three"]
    whole, part = a.chain(hashes), a.chain(hashes[1:], hashes[0], 1)
    assert bytes(part._refs) == bytes(whole[1:]._refs) and len({*whole.keys()}) == 3
    assert len({*a.chunk(b"one", 3).keys(), *a.chunk(b"two", 3).keys()}) == 6


def test_a_store_that_is_closed_leaves_no_session(daemon):
    import kvtier

    a = store(daemon.socket)
    saved(a, b"open", random_kv(9))
    with kvtier.Client(daemon.socket, timeout_ms=20000) as client:
        open_sessions = client.stats().sessions
        a.close()
        until(lambda: client.stats().sessions == open_sessions - 1)


def test_a_part_that_is_gone_is_told_as_missing(daemon):
    a, kv = store(daemon.socket), random_kv(2)
    saved(a, b"part", kv)
    blocks = a.chunk(b"part", 2)
    assert a._connected().remove(blocks[1:2]) == 1
    out = np.zeros_like(kv)
    assert a.load(blocks, view(out)) == [True, False]
    assert np.array_equal(kv[:, :, :, :128], out[:, :, :, :128])


def test_no_daemon_is_a_miss_and_one_that_comes_is_found(tmp_path):
    now = [0.0]
    a = store(str(tmp_path / "d.sock"), clock=lambda: now[0], timeout_ms=1000)
    assert a.chunk(b"x", 2) is None
    assert a.lookup(None) == 0 and a.load(None, None) == [] and not a.save(None, None) and a.acquire(None) is None
    daemon = Daemon(tmp_path)
    assert a.chunk(b"x", 2) is None  # asked just before
    now[0] += 1.0
    until(lambda: (now.__setitem__(0, now[0] + 1.0), a.chunk(b"x", 2) is not None)[1])
    now[0] += 1.0
    assert a.save(a.chunk(b"x", 2), view(random_kv(3)))
    daemon.stop()


def test_a_daemon_that_dies_is_a_miss_and_is_found_again(daemon):
    a, kv, out = store(daemon.socket, timeout_ms=200, transfer_timeout_ms=200, retry_ms=1), random_kv(4), None
    saved(a, b"gone", kv)
    blocks, out = a.chunk(b"gone", 2), np.zeros_like(kv)
    daemon.kill()
    start = time.monotonic()
    assert a.load(blocks, view(out)) == [False, False] and not out.any() and a.lookup(blocks) == 0
    assert time.monotonic() - start < 10
    a.save(blocks, view(kv))  # taken or dropped, and no exception
    daemon.start()

    def comes_back():
        a.save(blocks, view(kv))
        return a.load(blocks, view(out)) == [True, True]
    until(comes_back)
    assert np.array_equal(kv, out)


@pytest.mark.parametrize("code", ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "INTERNAL"])
def test_a_save_that_fails_is_told_so(module_daemon, monkeypatch, code):
    import kvtier

    a = store(module_daemon.socket)

    def put(*args, **kwargs):
        raise kvtier.Error(kvtier.Code[code], "as told")
    monkeypatch.setattr(a._connected(), "put", put)
    assert a.save(a.chunk(b"fails", 2), view(random_kv(1))) is False


def test_connecting_takes_no_longer_than_its_thread_can_wait(daemon):
    from kvtier_adapters.blocks import Settings, Store

    settings = Settings(socket=daemon.socket, transfer_timeout_ms=1500)
    with suspended(daemon):
        for least, most, connect_timeout_ms in ((0.05, 1.2, 100), (1.2, 10, None)):
            start = time.monotonic()
            assert Store(spec(), settings, connect_timeout_ms=connect_timeout_ms).chunk(b"x", 1) is None
            assert least < time.monotonic() - start < most


def test_a_daemon_that_hangs_costs_one_deadline(daemon):
    a = store(daemon.socket, timeout_ms=300, retry_ms=600000)
    saved(a, b"hang", random_kv(5))
    blocks = a.chunk(b"hang", 2)
    with suspended(daemon):
        start = time.monotonic()
        assert a.lookup(blocks) == 0
        first = time.monotonic() - start
        assert not a._breaker.allows()
        start = time.monotonic()
        for _ in range(1000):
            assert a.lookup(blocks) == 0 and a.acquire(blocks) is None
        assert 0.2 < first < 5 and time.monotonic() - start < 1  # a thousand deadlines are 300 s


def test_a_lookup_that_had_less_time_tells_nothing_of_the_daemon(daemon):
    a = store(daemon.socket, timeout_ms=2000, retry_ms=600000)
    saved(a, b"short", random_kv(8))
    blocks = a.chunk(b"short", 2)
    with suspended(daemon):
        start = time.monotonic()
        assert a.lookup(blocks, timeout_ms=100) == 0 and 0.05 < time.monotonic() - start < 1.5
        assert a._breaker.allows()
    until(lambda: a.lookup(blocks) == 256)


def test_a_store_that_is_closed_has_no_blocks(daemon):
    a = store(daemon.socket)
    model = a._connected()
    a.close()
    assert a.chunk(b"x", 1) is None and a.keys(range(300)) is None
    a._connected = lambda: model  # of a thread that had it before
    assert a.chunk(b"x", 1) is None and a.keys(range(300)) is None


def test_the_source_may_be_overwritten_when_save_returns(daemon):
    a, kv = store(daemon.socket), random_kv(6)
    source, out = kv.copy(), np.zeros_like(kv)
    assert a.save(a.chunk(b"reused", 2), view(source))
    source[:] = 7
    until(lambda: all(a.load(a.chunk(b"reused", 2), view(out))))
    assert np.array_equal(kv, out)


def test_many_threads_get_their_own_bytes(module_daemon):
    a, wrong, hits = store(module_daemon.socket), [], []

    def run(owner):
        kv, out = np.full((LAYERS, 2, HEADS, 128, DIM), owner, np.float16), np.zeros((LAYERS, 2, HEADS, 128, DIM), np.float16)
        for i in range(12):
            name = b"%d/%d" % (owner, i % 4)
            a.save(a.chunk(name, 1), view(kv))
            if a.load(a.chunk(name, 1), view(out)) == [True]:
                hits.append(owner)
                if not (out == owner).all():
                    wrong.append(owner)
    threads = [threading.Thread(target=run, args=(owner,)) for owner in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads) and not wrong and len(set(hits)) == 8


def test_a_lower_precision_than_asked_for_is_a_miss(daemon):
    import kvtier

    a, fussy, kv = store(daemon.socket), store(daemon.socket, min_precision="BITS16"), random_kv(7)
    saved(a, b"low", kv)
    out = np.zeros_like(kv)
    assert fussy.load(fussy.chunk(b"low", 2), view(out)) == [True, True]
    subprocess.run([BUILD / "bin/kvtierctl", "--socket", daemon.socket, "demote", "hot"], check=True, timeout=60)

    def demoted():
        with a.acquire(a.chunk(b"low", 2)) as lease:
            return {block.precision for block in lease.blocks()} == {kvtier.Precision.INT4}
    until(demoted)
    assert fussy.load(fussy.chunk(b"low", 2), view(out)) == [False, False]
    assert a.load(a.chunk(b"low", 2), view(out)) == [True, True]


class TestBackground:
    def test_full_means_refused(self):
        from kvtier_adapters.blocks import Background

        go, done = threading.Event(), []
        jobs = Background("test", capacity=2)
        assert jobs.submit(go.wait)
        until(lambda: jobs._jobs.empty())  # the thread has it
        assert jobs.submit(lambda: done.append(1)) and jobs.submit(lambda: done.append(2))
        assert not jobs.submit(lambda: done.append(3))
        assert not jobs.drain(0.01)
        go.set()
        assert jobs.drain(20) and done == [1, 2]
        jobs.stop()
        assert not jobs.submit(lambda: done.append(4))

    def test_bytes_are_bounded(self):
        from kvtier_adapters.blocks import Background

        go = threading.Event()
        jobs = Background("test", max_bytes=100)
        assert jobs.submit(go.wait, 1000)  # alone, whatever its size
        assert not jobs.has_room(1) and not jobs.submit(go.wait, 1)
        go.set()
        assert jobs.drain(20) and jobs.has_room(60) and jobs.submit(go.wait, 60) and jobs.submit(go.wait, 40)
        jobs.stop()
        assert not jobs.has_room(1)

    def test_a_job_that_raises_does_not_end_the_thread(self):
        from kvtier_adapters.blocks import Background

        done, jobs = [], Background("test")
        assert jobs.submit(lambda: 1 / 0) and jobs.submit(lambda: done.append(1))
        assert jobs.drain(20) and done == [1]
        jobs.stop()


class TestNames:
    @pytest.mark.parametrize(("options", "what"), [
        ({"sokcet": "x"}, "unknown option"), ({"timeout_ms": 0}, "whole number"), ({"timeout_ms": True}, "whole number"),
        ({"timeout_ms": "5"}, "whole number"), ({"socket": 5}, "text"), ({"floor": "INT3"}, "floor is one of"),
        ({"revision": 1}, "revision is a text"), ({"revision": b"1"}, "revision is a text"),
        ({"revision": "a\0b"}, "revision is a text"), ({"revision": None}, "revision is a text"),
        ({"socket": "a\0b"}, "socket is a text"), ({"floor": ["INT4"]}, "floor is one of"),
        ({"max_staged_mib": 1 << 32}, "whole number"), ({"timeout_ms": (1 << 32) + 1}, "whole number"),
        ("x", "not a str"), (["socket"], "not a list"), (5, "not a int")])
    def test_wrong_options_are_refused(self, options, what):
        from kvtier_adapters.blocks import Settings

        with pytest.raises(ValueError, match=what):
            Settings.of(options)

    def test_every_option_can_be_given(self):
        from kvtier_adapters.blocks import Settings

        options = dataclasses.asdict(Settings(socket="s"))
        assert dataclasses.asdict(Settings.of(options)) == options and Settings.of(None) == Settings()

    def test_heads_that_the_daemon_would_refuse_are_refused_at_once(self):
        for dims in ((40, 64), (64, 40)):
            with pytest.raises(ValueError, match="multiples of 16"):
                store("none", dataclasses.replace(spec(), k_dim=dims[0], v_dim=dims[1]))

    def test_chunks_are_whole_blocks(self):
        from kvtier_adapters.blocks import chunk_tokens_per_block

        assert [chunk_tokens_per_block(tokens) for tokens in (64, 128, 192, 256)] == [64, 128, 64, 128]
        for tokens in (0, 16, 100, -64):
            with pytest.raises(ValueError, match="not whole blocks"):
                chunk_tokens_per_block(tokens)

    def test_types_that_are_not_stored_are_refused(self):
        from kvtier_adapters.blocks import dtype_of

        assert dtype_of("torch.bfloat16").name == "BF16" and dtype_of("float16").name == "FP16"
        for name in ("torch.float32", "fp8_e4m3", "auto", None):
            with pytest.raises(ValueError, match="not supported"):
                dtype_of(name)

    def test_what_has_no_fixed_text_is_not_digested(self):
        from kvtier_adapters.blocks import digest_of

        assert digest_of({"a": 1, "b": [None, "x"]}) == digest_of({"b": [None, "x"], "a": 1})
        assert digest_of({"a": 1}) != digest_of({"a": "1"})
        with pytest.raises(TypeError):
            digest_of({"a": object()})

    def test_a_folder_with_other_weights_has_another_revision(self, tmp_path):
        from kvtier_adapters.blocks import folder_revision

        weights = tmp_path / "model.safetensors"
        weights.write_bytes(b"one")
        first = folder_revision(str(tmp_path))
        assert first and first == folder_revision(str(tmp_path))
        weights.write_bytes(b"two!")
        second = folder_revision(str(tmp_path))
        os.utime(weights, ns=(0, 0))  # as long, written at another time
        assert len({first, second, folder_revision(str(tmp_path))}) == 3
        assert folder_revision("meta-llama/Llama-3.1-8B") == ""
