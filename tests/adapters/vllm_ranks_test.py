"""vLLM with two workers of tensor parallelism, in processes of their own: each rank has its own blocks."""

import os
import time

import pytest

from conftest import needs

needs("vllm")
os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_LOGGING_LEVEL="ERROR",
                  VLLM_WORKER_MULTIPROC_METHOD="spawn", VLLM_ENABLE_V1_MULTIPROCESSING="1")
import torch
from transformers import LlamaConfig, LlamaForCausalLM

PROMPT = list(range(3, 403))


def generate(llm, prompt):
    from vllm import SamplingParams

    (output,) = llm.generate([{"prompt_token_ids": prompt}], SamplingParams(
        max_tokens=8, temperature=0, detokenize=False, ignore_eos=True, logprobs=3), use_tqdm=False)
    return (output.outputs[0].token_ids,
            [{token: info.logprob for token, info in step.items()} for step in output.outputs[0].logprobs],
            output.num_cached_tokens)


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(
        vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, bos_token_id=1, eos_token_id=2)).bfloat16().save_pretrained(tmp_path)
    return str(tmp_path)


def test_each_rank_gets_its_own_heads_back(folder, module_daemon):
    from vllm import LLM

    import kvtier

    llm = LLM(folder, skip_tokenizer_init=True, enforce_eager=True, max_model_len=1024, dtype="bfloat16", block_size=32,
              tensor_parallel_size=2, num_gpu_blocks_override=64, kv_transfer_config={
                  "kv_connector": "KvtierConnector", "kv_connector_module_path": "kvtier_adapters.vllm", "kv_role": "kv_both",
                  "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {"kvtier": {
                      "socket": module_daemon.socket, "timeout_ms": 20000, "transfer_timeout_ms": 20000}}})
    cold, own = generate(llm, PROMPT), generate(llm, PROMPT)
    assert (cold[2], own[2]) == (0, 384)
    end = time.monotonic() + 30
    while True:  # saves are asynchronous
        assert llm.reset_prefix_cache()
        ours = generate(llm, PROMPT)
        if ours[2] == 384 or time.monotonic() > end:
            break
    assert ours == own and ours[0] == cold[0]
    with kvtier.Client(module_daemon.socket, timeout_ms=20000) as client:
        assert (client.stats().blocks, client.stats().models) == (6, 2)
