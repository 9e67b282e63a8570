"""Parts of the vLLM connector with vLLM's own classes and tensors of its layouts, without an engine."""

import itertools
import types

import pytest

from conftest import leaves_no_session, needs

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


def stored(daemon, side, name, pages=range(4, 20), blocks=BLOCKS):
    tickets, model = [], side._store._connected()
    original = model.put
    model.put = lambda *args, **kwargs: tickets.append(original(*args, **kwargs)) or tickets[-1]
    side.start_saves([transfer(name, pages, blocks)])
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


def test_a_load_that_finds_no_room_ends_with_all_of_its_pages_missing(module_daemon):
    side, _ = worker(module_daemon, KVCacheLayout.LBHNC, "token", random_values())
    side._loads.submit = lambda *args: False
    assert loaded(side, transfer("full", range(16), skip=3)) == set(range(3, 16))


def test_errors_of_loads_that_end_together_are_all_told_and_once(module_daemon):
    side, _ = worker(module_daemon, KVCacheLayout.LBHNC, "token", random_values())
    side.start_loads([transfer("none", range(8), 1), transfer("neither", range(8, 16), 1)])
    assert side.drain(30) and side.take_ended() == {"none", "neither"}
    assert side.take_errors() == set(range(16)) and side.take_errors() == set() and side.take_ended() == set()


@pytest.mark.parametrize(("came", "blocks"), [([False, True], 0), ([True, False], 1), ([False], 0), ([], 0)])
def test_what_came_after_a_block_that_did_not_is_missing_too(module_daemon, came, blocks):
    values = random_values(6)
    side, tensors = worker(module_daemon, KVCacheLayout.LBHNC, "token", values)
    calls = []

    def partly(of_blocks, view):
        calls.append(len(of_blocks))
        return came if len(calls) == 1 else [False] * len(of_blocks)
    side._store.load = partly
    assert loaded(side, transfer("holes", range(16))) == set(range(blocks * PER_BLOCK, 16))
    for ours, theirs in zip(tensors, caches(KVCacheLayout.LBHNC, "token", values)):
        assert torch.equal(ours[blocks * PER_BLOCK:], theirs[blocks * PER_BLOCK:])


def test_parts_of_a_sequence_have_the_names_of_the_whole(module_daemon, monkeypatch):
    import kvtier_adapters.vllm

    monkeypatch.setattr(kvtier_adapters.vllm, "MAX_BLOCKS_AT_ONCE", 1)
    side, _ = worker(module_daemon, KVCacheLayout.LBHNC, "token", random_values())
    whole = side._store.chain([b"x", b"y", b"z"])
    asked = []
    side._store.load = lambda blocks, view: (asked.append(bytes(blocks._refs)), [True] * len(blocks))[1]
    side._store.save = lambda blocks, view: asked.append(bytes(blocks._refs))
    part = kvtier_adapters.vllm.Transfer("r", 1, [b"y", b"z"], b"x", list(range(16)))
    assert loaded(side, part) == set()
    side.start_saves([part])
    assert side.drain(30)
    assert asked == [bytes(whole[1:2]._refs), bytes(whole[2:3]._refs), bytes(whole[1:]._refs)]


def test_a_shutdown_leaves_nothing_behind(daemon):
    from kvtier_adapters.vllm import KvtierConnector

    side, _ = worker(daemon, KVCacheLayout.LBHNC, "token", random_values())
    stored(daemon, side, "end")
    connector = KvtierConnector.__new__(KvtierConnector)
    connector._worker, connector._scheduler = side, None
    with leaves_no_session(daemon):
        connector.shutdown()
    assert not any(thread.is_alive() for thread in side._loads._threads + side._saves._threads)
    side.start_loads([transfer("late", range(16))])
    assert side.take_ended() == {"late"} and side.take_errors() == set(range(16))


def test_saves_that_wait_are_bounded(module_daemon):
    import threading

    side, _ = worker(module_daemon, KVCacheLayout.LBHNC, "token", random_values())
    side._saves._max_bytes = 2 * 16 * side._pages.page_bytes
    go, saved = threading.Event(), []
    side._store.save = lambda blocks, view: (go.wait(30), saved.append(1))
    copies, original = [], side._pages.copy_out
    side._pages.copy_out = lambda pages: copies.append(pages) or original(pages)
    side.start_saves([transfer(f"s{i}", range(16)) for i in range(4)])
    assert side.dropped_saves == 2 and len(copies) == 2  # what is dropped was not copied
    go.set()
    assert side.drain(30) and len(saved) == 2


@pytest.mark.parametrize("error", [MemoryError, RuntimeError])
def test_a_save_without_memory_is_dropped(module_daemon, error):
    side, _ = worker(module_daemon, KVCacheLayout.LBHNC, "token", random_values())

    def no_memory(pages):
        raise error("no memory")
    side._pages.copy_out = no_memory
    side.start_saves([transfer("no memory", range(16))])
    assert side.dropped_saves == 1


@pytest.mark.parametrize(("at_once", "granted"), [(1, 1), (2, 2), (16, 1)])
def test_loads_go_in_pieces_each_with_a_lease_of_its_own(module_daemon, monkeypatch, at_once, granted):
    import kvtier_adapters.vllm

    monkeypatch.setattr(kvtier_adapters.vllm, "MAX_BLOCKS_AT_ONCE", at_once)
    values, blank, name = random_values(5), torch.zeros((LAYERS, 2, PAGES, HEADS, PAGE, DIM)).bfloat16(), f"piece{at_once}/"
    writer, _ = worker(module_daemon, KVCacheLayout.LBHNC, "plane", values)
    stored(module_daemon, writer, name, range(PAGES), 3)
    reader, tensors = worker(module_daemon, KVCacheLayout.LBHNC, "plane", blank)
    asked, staged, load, staging = [], [], reader._store.load, reader._pages.staging
    # The daemon grants a lease for so many blocks at most.
    reader._store.load = lambda blocks, view: (asked.append(len(blocks)), load(blocks[:granted], view))[1] + [False]
    reader._pages.staging = lambda pages: staged.append(pages) or staging(pages)
    pages = list(reversed(range(PAGES)))
    assert loaded(reader, transfer(name, pages, 3, skip=3)) == set()
    assert asked == {1: [1, 1, 1], 2: [2, 1], 16: [3, 2, 1]}[at_once] and staged == [min(at_once, 3) * PER_BLOCK]
    expected = blank.clone()
    expected[:, :, pages[3:]] = values[:, :, 3:]
    for ours, theirs in zip(tensors, caches(KVCacheLayout.LBHNC, "plane", expected)):
        assert torch.equal(ours, theirs)


class Rank:
    """A rank's store that answers after a time on a clock of the test."""

    def __init__(self, now=None, seconds=0.0, blocks=0):
        self.now, self.seconds, self.blocks, self.time_left, self.asked = now or [0.0], seconds, blocks, [], []

    def chain(self, hashes):
        self.asked.append(hashes)
        return hashes

    def lookup(self, blocks, timeout_ms=None):
        self.now[0] += self.seconds
        self.time_left.append(timeout_ms)
        return self.blocks * 128


@pytest.mark.parametrize(("found", "seconds", "matched", "time_left"), [
    ([3, 2, 3], 0.0, 2, [[20], [20], [20]]), ([3, 0, 3], 0.0, 0, [[20], [20], []]),
    ([3, 3, 3], 0.005, 3, [[20], [15], [10]]), ([3, 3, 3], 0.0125, 0, [[20], [8], []])])
def test_ranks_share_a_lookup_s_time_and_the_first_miss_ends_it(found, seconds, matched, time_left):
    from kvtier_adapters.vllm import Scheduler

    now = [0.0]
    ranks = [Rank(now, seconds, blocks) for blocks in found]
    side = Scheduler(ranks, PAGE, PAGE, 20, lambda: now[0])
    assert side.matched(request(), 0) == ((matched * 128, True) if matched else (0, False))
    assert [rank.time_left for rank in ranks] == time_left


def request(name="r", **other):
    """Of 400 tokens."""
    return types.SimpleNamespace(**{"request_id": name, "num_tokens": 400, "num_computed_tokens": 0, "mm_features": [],
                                    "block_hashes": [b"%d" % i for i in range(25)], "skip_reading_prefix_cache": False} | other)


def planned(side, *requests):
    """First block and names of what is to be saved when all of the requests is computed in one step."""
    pages = {one.request_id: list(range(25 * i, 25 * i + 25)) for i, one in enumerate(requests)}
    output = types.SimpleNamespace(num_scheduled_tokens=dict.fromkeys(pages, 400),
                                   kv_connector_block_state=types.SimpleNamespace(get_block_ids=lambda name: [pages[name]]))
    return [(save.request_id, save.first_block, save.hashes) for save in side.plan(output).saves]


def test_blocks_are_saved_in_the_step_that_fills_them():
    from kvtier_adapters.vllm import Scheduler

    side, one, saves = Scheduler([Rank()], PAGE, PAGE, 20), request(), []
    side.matched(one, 0)
    state = types.SimpleNamespace(get_block_ids=lambda name: [list(range(25))])
    for tokens in (100, 27, 1, 200, 55, 16, 1):  # a prompt in parts: all of its hashes are there from the beginning
        output = types.SimpleNamespace(num_scheduled_tokens={"r": tokens}, kv_connector_block_state=state)
        saves.append([(save.first_block, save.hashes, save.pages) for save in side.plan(output).saves])
        one.num_computed_tokens += tokens
    assert saves == [[], [], [(0, [b"7"], list(range(8)))], [(1, [b"15"], list(range(8, 16)))], [],
                     [(2, [b"23"], list(range(16, 24)))], []]


@pytest.mark.parametrize(("offsets", "blocks"), [([], 3), ([384], 3), ([383], 2), ([300, 130], 1), ([0], 0)])
def test_blocks_from_the_first_multimodal_item_on_are_neither_looked_up_nor_saved(offsets, blocks):
    from kvtier_adapters.vllm import Scheduler

    rank = Rank(blocks=0)
    side = Scheduler([rank], PAGE, PAGE, 20)
    items = [types.SimpleNamespace(mm_position=types.SimpleNamespace(offset=offset, length=10)) for offset in offsets]
    mixed = request(mm_features=items)
    assert side.matched(mixed, 0) == (0, False)
    names = [b"7", b"15", b"23"][:blocks]
    assert rank.asked == ([names] if blocks else [])
    assert planned(side, mixed) == ([("r", 0, names)] if blocks else [])


def test_a_request_that_wants_each_token_computed_is_not_looked_up():
    from kvtier_adapters.vllm import Scheduler

    rank = Rank(blocks=3)
    side = Scheduler([rank], PAGE, PAGE, 20)
    assert side.matched(request(skip_reading_prefix_cache=True), 0) == (0, False) and not rank.asked
    assert side.matched(request(), 0) == (384, True) and len(rank.asked) == 1


def test_after_a_reset_all_names_are_new_and_what_had_begun_is_not_saved():
    from kvtier_adapters.vllm import Scheduler

    rank = Rank(blocks=0)
    side = Scheduler([rank], PAGE, PAGE, 20)
    asked = set()
    for number in range(3):
        begun, new = request(f"begun{number}"), request(f"new{number}")
        side.matched(begun, 0)
        side.matched(new, 0)
        if number > 0:
            side.reset()
            side.matched(new, 0)
        saves = planned(side, begun, new)
        assert [save[0] for save in saves] == (["begun0", "new0"] if number == 0 else [f"new{number}"])
        (names,) = {tuple(save[2]) for save in saves}
        assert list(names) == rank.asked[-1] and asked.isdisjoint(names)
        asked.update(names)


@pytest.mark.parametrize(("tokens", "blocks"), [(384, 2), (385, 3), (128, 0), (129, 1)])
def test_a_token_stays_to_be_computed(tokens, blocks):
    from kvtier_adapters.vllm import Scheduler

    rank = Rank(blocks=blocks)
    side = Scheduler([rank], PAGE, PAGE, 20)
    whole = request(num_tokens=tokens, block_hashes=[b"%d" % i for i in range(tokens // PAGE)])
    assert side.matched(whole, 0) == ((128 * blocks, True) if blocks else (0, False))
    assert rank.asked == ([[b"7", b"15", b"23"][:blocks]] if blocks else [])


def test_what_failed_is_saved_again_and_not_asked_for_again():
    from kvtier_adapters.vllm import Scheduler

    rank = Rank(blocks=3)
    side, one = Scheduler([rank], PAGE, PAGE, 20), request()
    assert side.matched(one, 32) == (352, True)
    side.allocated(one, list(range(25)), 352)
    (load,) = side.plan(types.SimpleNamespace(num_scheduled_tokens={})).loads
    assert (load.first_block, load.hashes, load.parent, load.pages, load.skip) == (
        0, [b"7", b"15", b"23"], None, list(range(24)), 2)
    side.loads_ended({"r"}, {8})  # the first page of the second block
    assert side.matched(one, 128) == (0, False) and len(rank.asked) == 1
    one.num_computed_tokens = 128
    assert planned(side, one) == [("r", 1, [b"15", b"23"])]  # 400 tokens from there: what was loaded after it, too


def test_pages_that_were_loaded_are_not_saved_until_they_are_computed():
    from kvtier_adapters.vllm import Scheduler

    side, one = Scheduler([Rank(blocks=2)], PAGE, PAGE, 20), request()
    assert side.matched(one, 0) == (256, True)
    side.allocated(one, list(range(25)), 256)
    other = request("other", num_computed_tokens=256)  # has them as its prefix
    pages = types.SimpleNamespace(get_block_ids=lambda name: [list(range(25))])
    side.allocated(other, [], 0)
    side.matched(other, 384)  # known, and nothing more is to be had
    output = types.SimpleNamespace(num_scheduled_tokens={"other": 144}, kv_connector_block_state=pages)
    assert [(save.first_block, save.hashes) for save in side.plan(output).saves] == [(2, [b"23"])]
    fresh = request("fresh")
    side._known["fresh"] = type(side._known["r"])(fresh)
    output = types.SimpleNamespace(num_scheduled_tokens={"fresh": 400}, kv_connector_block_state=pages)
    assert [save.first_block for save in side.plan(output).saves] == [0]  # computed anew


def test_a_request_whose_load_is_under_way_at_a_reset_is_not_saved():
    from kvtier_adapters.vllm import Scheduler

    side, one = Scheduler([Rank(blocks=2)], PAGE, PAGE, 20), request()
    assert side.matched(one, 32) == (224, True)
    side.allocated(one, list(range(25)), 224)
    side.plan(types.SimpleNamespace(num_scheduled_tokens={}))
    side.reset()  # its first pages and those that come are of the weights before
    side.loads_ended({"r"}, set())
    side.allocated(one, [], 0)  # as vLLM does when the load has ended
    one.num_computed_tokens = 256
    assert planned(side, one) == []


def test_the_hashes_of_vllm_know_what_else_k_and_v_depend_on():
    from vllm.lora.request import LoRARequest
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)

    def name(**other):
        made = Request("r", prompt_token_ids=list(range(400)), sampling_params=SamplingParams(), pooling_params=None,
                       block_hasher=get_request_block_hasher(PAGE, sha256), **other)
        assert made.mm_features == [] and made.skip_reading_prefix_cache is False
        return bytes(made.block_hashes[-1])
    embeds = [torch.full((400, 8), value) for value in (0.0, 1.0)]
    others = [{}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"lora_request": LoRARequest("a", 1, "/x")},
              {"lora_request": LoRARequest("a", 1, "/y")}, {"lora_request": LoRARequest("b", 1, "/x")},
              {"prompt_embeds": embeds[0]}, {"prompt_embeds": embeds[1]}]
    names = [name(**other) for other in others]
    assert len(set(names)) == len(others) and names == [name(**other) for other in others]


def cache_config(spec, groups=1):
    return KVCacheConfig(num_blocks=PAGES, kv_cache_tensors=[],
                         kv_cache_groups=[KVCacheGroupSpec([f"layer{i}"], spec) for i in range(groups)])


@pytest.mark.parametrize(("spec", "groups", "what"), [
    (lambda: MLAAttentionSpec(block_size=PAGE, num_kv_heads=1, head_size=576, dtype=torch.bfloat16), 1, "MLAAttentionSpec"),
    (lambda: SlidingWindowSpec(block_size=PAGE, num_kv_heads=HEADS, head_size=DIM, dtype=torch.bfloat16, sliding_window=128),
     1, "SlidingWindowSpec"),
    (attention, 2, "several kinds"),
    (lambda: attention(head_size_v=128), 1, "different sizes"),
    (lambda: attention(sliding_window=128), 1, "sliding windows"),
    (lambda: attention(attention_chunk_size=128), 1, "sliding windows and chunks"),
    (lambda: attention(non_causal=True), 1, "later tokens"),
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
              "cache_dtype": "auto", "commit": None, "max_len": 1024, "load": "auto"} | other
    from transformers import LlamaConfig

    hf = LlamaConfig(num_hidden_layers=LAYERS, rope_parameters={"rope_type": "default", "rope_theta": config["rope"]})
    hf._commit_hash = config["commit"]
    simple = types.SimpleNamespace
    return simple(
        parallel_config=simple(pipeline_parallel_size=config["pipeline"], decode_context_parallel_size=config["dcp"],
                               prefill_context_parallel_size=config["pcp"], tensor_parallel_size=config["tp"]),
        kv_transfer_config=simple(kv_load_failure_policy=config["policy"]), speculative_config=config["speculative"],
        load_config=simple(load_format=config["load"]),
        cache_config=simple(prefix_caching_hash_algo=config["hash"], cache_dtype=config["cache_dtype"]),
        model_config=simple(model=config["model"], revision=config["revision"], hf_config=hf, dtype=config["dtype"],
                            quantization=config["quantization"], max_model_len=config["max_len"]))


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
    first = namespace(revision="r0")
    assert first == namespace(revision="r0")  # from the same facts, in any process
    others = [namespace(**({"revision": "r0"} | other)) for other in (
        {"tp": 2}, {"tp": 2, "rank": 1}, {"settings": {"revision": "r"}}, {"revision": "r1"}, {"revision": None, "commit": "c"},
        {"max_len": 2048}, {"load": "dummy"},
        {"model": "hub/other"}, {"rope": 500000.0}, {"quantization": "awq"}, {"cache_dtype": "bfloat16"},
        {"spec": attention(dtype=torch.float16), "dtype": torch.float16}, {"layers": ("a", "c", "b")}, {"hash": "sha256_cbor"},
        {"spec": attention(num_kv_heads=1)}, {"spec": attention(head_size=128)})]
    assert len({first, *others}) == len(others) + 1


def test_a_model_whose_weights_have_no_name_is_refused(tmp_path):
    from kvtier_adapters.blocks import Settings
    from kvtier_adapters.vllm import model_spec

    def spec(settings=None, **other):
        return model_spec(vllm_config(**other), attention(), ["a", "b", "c"], 0, Settings.of(settings))
    with pytest.raises(ValueError, match="revision"):
        spec()
    revisions = [spec({"revision": "x"}).revision, spec(revision="y").revision, spec(commit="z").revision]
    assert revisions == ["x", "y", "z"] and spec(revision="main", commit="z").revision == "z"
    assert spec(model=str(tmp_path)).revision


def test_the_connector_is_whole():
    from kvtier_adapters.vllm import KvtierConnector

    assert issubclass(KvtierConnector, KVConnectorBase_V1) and not KvtierConnector.__abstractmethods__
