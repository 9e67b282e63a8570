"""transformers' generate() on kvtier, with a small model of random weights."""

import dataclasses
import time
import types

import pytest

from conftest import needs, suspended

needs("transformers")
import torch
from transformers import (AutoModelForCausalLM, DeepseekV3Config, DynamicCache, GemmaConfig, LlamaConfig, LlamaForCausalLM,
                          LlavaConfig, MistralConfig)

PROMPT = torch.arange(3, 403).unsqueeze(0)
GREEDY = {"do_sample": False, "max_new_tokens": 20, "min_new_tokens": 20, "return_dict_in_generate": True, "output_logits": True}


def config(**other):
    return LlamaConfig(**{
        "vocab_size": 512, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 2048, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    } | other)


def make(seed=0, dtype=torch.bfloat16, **other):
    torch.manual_seed(seed)
    return LlamaForCausalLM(config(**other)).to(dtype).eval()


def store(model, daemon, **options):
    from kvtier_adapters.transformers import PrefixStore

    return PrefixStore(model, socket=daemon.socket, **({"timeout_ms": 20000, "transfer_timeout_ms": 20000} | options))


def generate(model, ids, cache):
    return model.generate(ids, past_key_values=cache, **GREEDY)


def until_restored(prefixes, ids, tokens):
    end = time.monotonic() + 20
    while (cache := prefixes.cache(ids)).restored_tokens != tokens and time.monotonic() < end:
        time.sleep(0.02)
    assert cache.restored_tokens == tokens
    return cache


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_prompt_is_restored_bit_for_bit_and_goes_on_as_from_the_engine_s_own_cache(module_daemon, dtype):
    model = make(dtype=dtype)
    prefixes = store(model, module_daemon)
    cold = prefixes.cache(PROMPT)
    assert cold.restored_tokens == 0 and cold.get_seq_length() == 0
    first = generate(model, PROMPT, cold)
    assert cold.get_seq_length() == 419 and prefixes.save(cold, first.sequences)

    warm = until_restored(prefixes, PROMPT, 384)  # of 400 tokens three blocks; the tail that is stored is longer
    own = DynamicCache()
    for layer, (restored, computed) in enumerate(zip(warm.layers, cold.layers)):
        assert torch.equal(restored.keys, computed.keys[:, :, :384])
        assert torch.equal(restored.values, computed.values[:, :, :384])
        own.update(computed.keys[:, :, :384].clone(), computed.values[:, :, :384].clone(), layer)
    second, expected = generate(model, PROMPT, warm), generate(model, PROMPT, own)
    assert torch.equal(second.sequences, expected.sequences)
    for ours, theirs in zip(second.logits, expected.logits):
        assert torch.equal(ours, theirs)


def test_a_conversation_comes_back_with_all_of_its_history(module_daemon):
    model = make(seed=5)
    prefixes, ids = store(model, module_daemon), PROMPT[:, :77]
    known = 0
    for turn in range(4):
        cache = until_restored(prefixes, ids, known)
        output = generate(model, ids, cache).sequences
        assert prefixes.save(cache, output)
        known = output.shape[1] - 1  # the last token has no K and V yet
        ids = torch.cat([output, torch.full((1, 50), 10 + turn)], dim=1)
    assert known == 77 + 4 * 20 + 3 * 50 - 1


@pytest.mark.parametrize("tokens", [100, 380])
def test_a_tail_of_lower_precision_is_computed(module_daemon, monkeypatch, tokens):
    import kvtier

    model, ids = make(seed=6), PROMPT[:, :tokens]
    prefixes = store(model, module_daemon)
    cache = prefixes.cache(ids)
    output = generate(model, ids, cache).sequences
    assert prefixes.save(cache, output)
    longer = torch.cat([output, output], dim=1)
    until_restored(prefixes, longer, tokens + 19)
    blocks = kvtier.Lease.blocks
    monkeypatch.setattr(kvtier.Lease, "blocks", lambda self: [
        dataclasses.replace(info, precision=kvtier.Precision.BITS8) for info in blocks(self)])
    cache = prefixes.cache(longer)  # the rest of a block would be stored as exact with it
    assert (cache.restored_tokens, cache.restored_blocks) == ((tokens + 19) // 128 * 128, (tokens + 19) // 128)


def test_what_was_restored_is_not_stored_again(module_daemon):
    model = make(seed=9)
    prefixes = store(model, module_daemon)
    cache = prefixes.cache(PROMPT)
    assert prefixes.save(cache, generate(model, PROMPT, cache).sequences)
    warm, idle = until_restored(prefixes, PROMPT, 384), prefixes.cache(PROMPT)
    blocks, client = prefixes._store.keys(PROMPT[0].tolist()), prefixes._store._connected()
    client.clear()
    output = generate(model, PROMPT, warm).sequences
    tickets, original = [], client.put
    client.put = lambda *args, **kwargs: tickets.append(original(*args, **kwargs)) or tickets[-1]
    assert prefixes.save(warm, output)
    assert [result.stored for ticket in tickets for result in ticket.wait(20000)] == [True]  # the tail alone
    assert prefixes._store.lookup(blocks) == 0
    assert prefixes.save(idle, PROMPT) and len(tickets) == 1  # nothing was computed in it


@pytest.mark.parametrize(("came", "tokens"), [([False, True, True], 0), ([True, False, True], 128), ([True, True, False], 256)])
def test_blocks_that_do_not_come_are_computed(module_daemon, monkeypatch, came, tokens):
    model = make(seed=10)
    prefixes = store(model, module_daemon)
    cache = prefixes.cache(PROMPT)
    first = generate(model, PROMPT, cache)
    assert prefixes.save(cache, first.sequences)
    until_restored(prefixes, PROMPT, 384)
    fetch = prefixes._store.fetch

    def partly(lease, view):
        assert fetch(lease, view) == [True] * 3
        return came
    monkeypatch.setattr(prefixes._store, "fetch", partly)
    warm = prefixes.cache(PROMPT)
    assert (warm.restored_tokens, warm.restored_blocks, warm.get_seq_length()) == (tokens, tokens // 128, tokens)
    assert torch.equal(generate(model, PROMPT, warm).sequences, first.sequences)
    monkeypatch.setattr(prefixes._store, "fetch", lambda lease, view: [])  # no answer
    assert prefixes.cache(PROMPT).restored_tokens == 0


@pytest.mark.parametrize("tokens", [128, 200])
def test_a_prompt_that_is_stored_to_its_last_token_leaves_that_one_to_compute(module_daemon, tokens):
    model, ids = make(seed=11), PROMPT[:, :tokens]
    prefixes = store(model, module_daemon)
    cache = prefixes.cache(ids)
    output = generate(model, ids, cache).sequences
    cache.crop(tokens)  # the answer is taken back
    assert prefixes.save(cache, ids)
    until_restored(prefixes, torch.cat([ids, ids], dim=1), tokens)
    warm = until_restored(prefixes, ids, (tokens - 1) // 128 * 128)
    assert torch.equal(generate(model, ids, warm).sequences, output)


def test_adapters_and_their_state_are_part_of_the_name():
    from kvtier_adapters.blocks import Settings
    from kvtier_adapters.transformers import _model_spec

    class Layer(torch.nn.Module):
        """What peft makes of a projection."""

        disable_adapters, active_adapters = False, ("a",)

        def __init__(self, alpha):
            super().__init__()
            self.scaling = {"a": alpha / 4}

    def name(alpha=8, disabled=False, active=("a",), config=None):
        model = make()
        model.model.layers[0].self_attn.k_proj.tuner = layer = Layer(alpha)
        layer.disable_adapters, layer.active_adapters = disabled, active
        model._hf_peft_config_loaded, model.active_adapters = True, lambda: list(active)
        model.peft_config = {"a": types.SimpleNamespace(to_dict=lambda: config or {"target_modules": {"q", "k"}})}
        spec = _model_spec(model, Settings(revision="1"))
        return spec.config_digest, spec.lora
    names = [name(), name(alpha=16), name(disabled=True), name(active=("b",)), name(config={"target_modules": {"q"}})]
    assert len(set(names)) == len(names) and names[0] == name()
    assert [lora for _, lora in names] == ["a", "a", "a", "b", "a"]
    assert _model_spec(make(), Settings(revision="1")).lora is None


@pytest.mark.parametrize("what", ["weights", "one weight", "rope", "dtype", "revision"])
def test_another_model_is_a_miss_on_data_that_exists(module_daemon, what):
    model = make(seed=7)
    prefixes = store(model, module_daemon)
    cache = prefixes.cache(PROMPT)
    prefixes.save(cache, generate(model, PROMPT, cache).sequences)
    until_restored(prefixes, PROMPT, 384)
    options = {}
    if what == "weights":
        model = make(seed=8)
    elif what == "one weight":
        with torch.no_grad():
            model.model.layers[1].self_attn.k_proj.weight[0, 0] += 1
    elif what == "rope":
        model = make(seed=7, rope_parameters={"rope_type": "default", "rope_theta": 500000.0})
    elif what == "dtype":
        model = make(seed=7, dtype=torch.float16)
    else:
        options = {"revision": "another"}
    other = store(model, module_daemon, **options)
    assert other.cache(PROMPT).restored_tokens == 0


def test_without_a_daemon_generate_goes_on_alone(daemon):
    model = make()
    prefixes = store(model, daemon, timeout_ms=200, transfer_timeout_ms=200)
    cache = prefixes.cache(PROMPT)
    expected = generate(model, PROMPT, cache)
    assert prefixes.save(cache, expected.sequences)
    until_restored(prefixes, PROMPT, 384)
    with suspended(daemon):
        start = time.monotonic()
        hung = prefixes.cache(PROMPT)
        assert hung.restored_tokens == 0 and time.monotonic() - start < 5
    daemon.kill()
    alone = prefixes.cache(PROMPT)
    assert alone.restored_tokens == 0
    output = generate(model, PROMPT, alone)
    assert torch.equal(output.sequences, expected.sequences)
    assert not prefixes.save(alone, output.sequences)
    daemon.start()


def test_what_is_not_supported_is_refused(module_daemon):
    model = make()
    prefixes = store(model, module_daemon)
    with pytest.raises(ValueError, match="one sequence"):
        prefixes.cache(PROMPT.repeat(2, 1))
    with pytest.raises(ValueError, match="does not begin with"):
        prefixes.save(prefixes.cache(PROMPT), PROMPT + 1)
    with pytest.raises(ValueError, match="float32"):
        store(make(dtype=torch.float32), module_daemon)
    with pytest.raises(ValueError, match="heads of 40 and 40 channels"):
        store(make(hidden_size=160), module_daemon)
    with pytest.raises(ValueError, match="no model"):
        store(None, module_daemon)
    small = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1,
             "num_key_value_heads": 1}
    with pytest.raises(ValueError, match="full attention"):
        store(AutoModelForCausalLM.from_config(MistralConfig(**small, sliding_window=64)).bfloat16(), module_daemon)
    with pytest.raises(ValueError, match="multimodal"):
        store(types.SimpleNamespace(config=LlavaConfig(), device="cpu", dtype=torch.bfloat16), module_daemon)
    longrope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 32, "long_factor": [2.0] * 32,
                "original_max_position_embeddings": 1024}
    for rope in ({"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}, longrope):
        with pytest.raises(ValueError, match=f"RoPE of type {rope['rope_type']}"):
            store(make(rope_parameters=rope), module_daemon)
    store(make(rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}), module_daemon)
    recurrent = make()
    recurrent._is_stateful = True  # as a class of such models says
    with pytest.raises(ValueError, match="recurrent"):
        store(recurrent, module_daemon)
    with pytest.raises(ValueError, match="later tokens"):
        store(AutoModelForCausalLM.from_config(GemmaConfig(**small, use_bidirectional_attention=True)).bfloat16(), module_daemon)
    latent = DeepseekV3Config(**small, moe_intermediate_size=64, n_routed_experts=2, num_experts_per_tok=1, n_group=1,
                              topk_group=1, first_k_dense_replace=1)
    with pytest.raises(ValueError, match="latent"):
        store(AutoModelForCausalLM.from_config(latent).bfloat16(), module_daemon)


def test_types_of_rope_are_found_in_every_form_of_a_configuration():
    from kvtier_adapters.transformers import _rope_types

    for form, types_of_rope in (
            ({"rope_parameters": {"rope_type": "yarn", "long_factor": [1.0]}}, {"yarn", "None"}),
            ({"rope_parameters": {"full_attention": {"rope_type": "longrope"}, "other": {"rope_type": "default"}}},
             {"longrope", "default", "None"}),
            ({"rope_parameters": None, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, {"dynamic", "None"}),
            ({}, {"None"})):
        assert _rope_types(types.SimpleNamespace(**form)) == types_of_rope
