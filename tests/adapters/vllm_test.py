"""vLLM's own engine, in its CPU build, on kvtier: a small model of random weights, a cache small enough to preempt."""

import os
import threading
import time

import pytest

from conftest import needs, suspended

needs("vllm")
os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="ERROR")
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from vllm import LLM, SamplingParams
from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.sampling_params import RequestOutputKind

PAGES, PAGE = 48, 32  # 1536 tokens
PROMPT = list(range(3, 403))
tickets = []  # of what was saved


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("model"))
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(
        vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, bos_token_id=1, eos_token_id=2)).bfloat16().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def engine(folder, module_daemon):
    import kvtier

    llm = LLM(folder, skip_tokenizer_init=True, enforce_eager=True, max_model_len=1024, dtype="bfloat16", block_size=PAGE,
              num_gpu_blocks_override=PAGES, max_num_seqs=8, kv_transfer_config={
                  "kv_connector": "KvtierConnector", "kv_connector_module_path": "kvtier_adapters.vllm", "kv_role": "kv_both",
                  "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {"kvtier": {
                      "socket": module_daemon.socket, "timeout_ms": 2000, "transfer_timeout_ms": 5000, "retry_ms": 50}}})
    original = kvtier.Model.put
    kvtier.Model.put = lambda *args, **kwargs: (ticket := original(*args, **kwargs), tickets.append(ticket))[0]
    yield llm
    kvtier.Model.put = original
    get_kv_transfer_group().shutdown()


def scheduler(engine):
    return engine.llm_engine.engine_core.engine_core.scheduler


def generate(engine, prompts, tokens=8):
    outputs = engine.generate([{"prompt_token_ids": prompt} for prompt in prompts], SamplingParams(
        max_tokens=tokens, temperature=0, detokenize=False, ignore_eos=True, logprobs=3), use_tqdm=False)
    return [(output.outputs[0].token_ids,
             [{token: info.logprob for token, info in step.items()} for step in output.outputs[0].logprobs],
             output.num_cached_tokens) for output in outputs]


def settle(engine):
    """Saves are in the daemon, and vLLM's own prefix cache is empty."""
    assert get_kv_transfer_group()._worker.drain(30)
    while tickets:
        assert all(result.stored for result in tickets.pop().wait(20000))
    assert engine.reset_prefix_cache()


def free_pages(engine):
    return scheduler(engine).kv_cache_manager.block_pool.get_num_free_blocks()


def test_a_prompt_comes_back_and_gives_what_vllm_s_own_cache_gives(engine):
    prompt = [7] + PROMPT[1:]
    (cold,) = generate(engine, [prompt])
    (own,) = generate(engine, [prompt])
    assert (cold[2], own[2]) == (0, 384)
    settle(engine)
    (ours,) = generate(engine, [prompt])
    assert ours == own  # tokens, log probabilities to the last bit, and 384 tokens not computed
    assert ours[0] == cold[0]


def test_new_tokens_of_an_answer_are_saved_too(engine):
    prompt = [8] + PROMPT[1:240]
    (first,) = generate(engine, [prompt], tokens=40)
    settle(engine)
    (second,) = generate(engine, [prompt + list(first[0]) + [9] * 20])
    assert second[2] == 256


def test_pages_that_vllm_has_itself_are_not_loaded_over(engine):
    prompt = [10] + PROMPT[1:]
    generate(engine, [prompt])
    settle(engine)
    generate(engine, [prompt[:170]])  # vLLM's own 160 tokens, in the middle of a block of ours
    calls = []
    worker = get_kv_transfer_group()._worker
    original = worker._pages.copy_in
    worker._pages.copy_in = lambda staged, rows, into, fence: (calls.append((list(rows), list(into))),
                                                               original(staged, rows, into, fence))
    try:
        (output,) = generate(engine, [prompt])
    finally:
        del worker._pages.copy_in
    assert output[2] == 384
    ((rows, into),) = calls
    assert len(into) == 7 and rows == list(range(1, 8))  # tokens 128 to 384 are 8 pages, the first of them vLLM's


def test_many_at_once_answer_as_each_alone(engine):
    prompts = [[20 + i] + PROMPT[1:150 + 40 * i] for i in range(6)]
    alone = []
    for prompt in prompts:
        alone += generate(engine, [prompt])
    settle(engine)
    together = generate(engine, prompts)
    assert [output[0] for output in together] == [output[0] for output in alone]
    assert all(output[2] >= 128 for output in together)


def test_preemption_changes_no_answer(engine):
    prompts = [[40 + i] + PROMPT[1:300] for i in range(6)]
    alone = [generate(engine, [prompt], tokens=100)[0][0] for prompt in prompts]
    settle(engine)
    preempted = []
    original = scheduler(engine)._preempt_request
    scheduler(engine)._preempt_request = lambda request, *args, **kwargs: (preempted.append(request.request_id),
                                                                           original(request, *args, **kwargs))[1]
    try:
        together = [output[0] for output in generate(engine, prompts, tokens=100)]
    finally:
        del scheduler(engine)._preempt_request
    assert preempted, "the cache was large enough for all"
    assert together == alone
    settle(engine)
    assert free_pages(engine) == PAGES - 1  # vLLM keeps one for itself


def test_an_aborted_request_leaves_nothing_behind(engine):
    prompt = [60] + PROMPT[1:]
    generate(engine, [prompt])
    settle(engine)
    core, worker = engine.llm_engine, get_kv_transfer_group()._worker
    original, go = worker._store.load, threading.Event()
    worker._store.load = lambda blocks, view: (go.wait(30), original(blocks, view))[1]
    try:
        core.add_request("gone", {"prompt_token_ids": prompt}, SamplingParams(
            max_tokens=8, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY))
        core.step()  # the load begins
        core.abort_request(["gone"])
        core.step()
        assert free_pages(engine) < PAGES - 1  # they are being written to
        go.set()
        end = time.monotonic() + 20
        while free_pages(engine) < PAGES - 1 and time.monotonic() < end:
            core.step()
            generate(engine, [[61, 62, 63]], tokens=1)  # keeps the engine stepping
            engine.reset_prefix_cache()
    finally:
        go.set()
        del worker._store.load
    assert free_pages(engine) == PAGES - 1
    assert not scheduler(engine).connector._scheduler._known


def test_a_reset_of_the_connector_forgets_what_is_stored(engine):
    prompt = [63] + PROMPT[1:]
    (cold,) = generate(engine, [prompt])
    for _ in range(2):
        settle(engine)
        (back,) = generate(engine, [prompt])
        assert back[2] == 384
        assert engine.reset_prefix_cache(reset_connector=True)
        (again,) = generate(engine, [prompt])
        assert again[2] == 0 and again[0] == cold[0]


def test_a_request_for_the_log_probabilities_of_its_prompt_computes_all_of_it(engine):
    prompt = [64] + PROMPT[1:]
    generate(engine, [prompt])
    settle(engine)
    (store,) = scheduler(engine).connector._scheduler._stores
    asked, original = [], store.lookup
    store.lookup = lambda blocks, **other: (asked.append(len(blocks)), original(blocks, **other))[1]
    try:
        (output,) = engine.generate([{"prompt_token_ids": prompt}], SamplingParams(
            max_tokens=1, temperature=0, detokenize=False, prompt_logprobs=1), use_tqdm=False)
        assert len(output.prompt_logprobs) == len(prompt) and output.num_cached_tokens == 0
        assert not asked  # vLLM would leave what is found alone
        assert engine.reset_prefix_cache()
        (back,) = generate(engine, [prompt])
        assert asked == [3] and back[2] == 384
    finally:
        del store.lookup


def put_again(engine, prompt, tokens=8):
    """The output, and the first and last block of each run that is saved meanwhile."""
    worker, runs = get_kv_transfer_group()._worker, []
    original = worker._save
    worker._save = lambda save, staged: (runs.append((save.first_block, save.first_block + len(save.hashes) - 1)),
                                         original(save, staged))
    try:
        (output,) = generate(engine, [prompt], tokens)
        assert worker.drain(30)
    finally:
        del worker._save
    return output, runs


def test_pages_that_were_loaded_are_not_stored_again_when_the_daemon_has_forgotten_them(engine):
    prompt = [65] + PROMPT[1:]
    (first,) = generate(engine, [prompt])
    settle(engine)
    output, runs = put_again(engine, prompt)
    assert output[2] == 384 and runs == []
    get_kv_transfer_group()._worker._store._connected().clear()
    # vLLM has them still, and they are the beginning of other prompts: one ends within a block.
    output, runs = put_again(engine, prompt + list(range(5, 205)))
    assert output[2] == 384 and runs == [(3, 3)]
    output, runs = put_again(engine, prompt[:170] + [11] * 300)
    assert output[2] == 160 and runs == [(2, 2)]
    # Once they are computed they are stored.
    tickets.clear()
    assert engine.reset_prefix_cache()
    output, runs = put_again(engine, prompt)
    assert output[2] == 0 and output[0] == first[0] and runs == [(0, 2)]
    settle(engine)
    (back,) = generate(engine, [prompt])
    assert back[2] == 384


@pytest.mark.parametrize("loaded", [[False, False, False], [True, False, True], [True, True, False]])
def test_blocks_that_do_not_come_are_computed(engine, loaded):
    prompt = [70 + sum(2 ** i for i, one in enumerate(loaded) if one)] + PROMPT[1:]
    (expected,) = generate(engine, [prompt])
    settle(engine)
    worker, asked = get_kv_transfer_group()._worker, []
    original = worker._store.load

    def partly(blocks, view):
        asked.append(len(blocks))
        assert all(original(blocks, view))
        return loaded[-len(blocks):]
    worker._store.load = partly
    try:
        output, runs = put_again(engine, prompt)
    finally:
        del worker._store.load
    run = loaded.index(False)
    assert output[0] == expected[0]
    assert asked == ([3, 3 - run] if run else [3])  # until a try brings nothing, then it computes
    assert runs == [(run, 2)]  # what was computed is stored, and not what was loaded


def test_a_daemon_that_hangs_or_dies_costs_time_and_no_answer(engine, module_daemon):
    prompt = [90] + PROMPT[1:]
    (expected,) = generate(engine, [prompt])
    settle(engine)
    with suspended(module_daemon):
        start = time.monotonic()
        (hung,) = generate(engine, [prompt])
        assert hung[0] == expected[0] and hung[2] == 0 and time.monotonic() - start < 30
    module_daemon.kill()
    assert engine.reset_prefix_cache()
    (dead,) = generate(engine, [prompt])
    assert dead[0] == expected[0] and dead[2] == 0
    module_daemon.start()
    end = time.monotonic() + 30
    tickets.clear()  # those of the daemon that died are stale
    while time.monotonic() < end:
        settle(engine)
        (back,) = generate(engine, [prompt])
        if back[2] == 384:
            break
    assert back[2] == 384 and back[0] == expected[0]
