"""What a cache saw of the computations in it: K and V of anything else than plain ids are never saved, nor mixed with a hit."""

import copy
import pickle

import pytest

from conftest import needs

needs("transformers")
import torch
from transformers import AutoModelForCausalLM, DynamicCache, GemmaConfig, GPT2Config, OPTConfig, Qwen3Config

from transformers_test import GREEDY, PROMPT, generate, make, store, until_restored

SMALL = {"vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 1024}


@pytest.fixture(scope="module")
def model():
    return make(seed=20)


@pytest.fixture
def prefixes(model, module_daemon, request):
    made = store(model, module_daemon, revision=request.node.name)
    yield made
    made.close()


def hidden(ids, first=40):
    mask = torch.ones_like(ids)
    mask[:, :first] = 0
    return mask


def masked(model, ids, cache):
    return model.generate(ids, past_key_values=cache, attention_mask=hidden(ids), **GREEDY).sequences


def padded_by_generate(model, ids, cache):
    """generate() makes a mask of its own where the prompt has the token of padding."""
    return model.generate(ids, past_key_values=cache, pad_token_id=int(ids[0, 0]), **GREEDY).sequences


def four_axes(model, ids, cache):
    model(ids, past_key_values=cache, attention_mask=torch.ones((1, 1, ids.shape[1], ids.shape[1]), dtype=torch.bool))
    return ids


def short_mask(model, ids, cache):
    """The model takes what is not in a mask as hidden."""
    model(ids, past_key_values=cache, attention_mask=torch.ones((1, ids.shape[1] - 9), dtype=torch.long))
    return ids


def positions(model, ids, cache):
    model(ids, past_key_values=cache, position_ids=torch.arange(50, 50 + ids.shape[1])[None])
    return ids


def by_position(model, ids, cache):
    """Arguments without names."""
    model(ids, None, torch.arange(50, 50 + ids.shape[1])[None], cache)
    return ids


def embeddings(model, ids, cache):
    model(inputs_embeds=torch.randn((1, ids.shape[1], 256), dtype=torch.bfloat16), past_key_values=cache)
    return ids


def unknown_argument(model, ids, cache):
    model(ids, past_key_values=cache, token_type_ids=torch.ones_like(ids))
    return ids


NOT_PLAIN = [(masked, "hides tokens"), (padded_by_generate, "hides tokens"), (four_axes, "not of shape"),
             (short_mask, "not of shape"), (positions, "count from 0"), (by_position, "count from 0"), (embeddings, "embeddings"),
             (unknown_argument, "token_type_ids")]


@torch.no_grad()
@pytest.mark.parametrize(("compute", "why"), NOT_PLAIN)
def test_what_is_no_plain_computation_of_ids_is_not_saved(model, prefixes, compute, why):
    cache = prefixes.cache(PROMPT)
    output = compute(model, PROMPT, cache)
    assert cache.get_seq_length() >= 400
    for _ in range(2):
        with pytest.raises(ValueError, match=f"cannot be saved: .*{why}"):
            prefixes.save(cache, output)
        model(PROMPT[:, :1], past_key_values=cache)  # what comes after does not mend it
    blocks = prefixes._store.keys(PROMPT[0].tolist())
    assert prefixes._store.lookup(blocks) == 0


@torch.no_grad()
@pytest.mark.parametrize(("compute", "why"), NOT_PLAIN[:1] + NOT_PLAIN[2:])
def test_on_a_hit_it_is_an_error_and_the_cache_stays_as_it_was(model, prefixes, compute, why):
    cold = prefixes.cache(PROMPT)
    first = generate(model, PROMPT, cold)
    assert prefixes.save(cold, first.sequences)
    warm = until_restored(prefixes, PROMPT, 384)
    ids = PROMPT if compute is masked else PROMPT[:, 384:]
    with pytest.raises(ValueError, match=f"{why}.*restored K and V"):
        compute(model, ids, warm)
    again = generate(model, PROMPT, warm).sequences
    assert again.shape == first.sequences.shape and prefixes.save(warm, again)


def beams(model, ids, cache):
    return model.generate(ids, past_key_values=cache, **(GREEDY | {"num_beams": 3})).sequences


def several_answers(model, ids, cache):
    return model.generate(ids, past_key_values=cache, **(GREEDY | {"do_sample": True, "num_return_sequences": 2})).sequences[:1]


def other_model(model, ids, cache):
    make(seed=21)(ids, past_key_values=cache)
    return ids


def copied_model(model, ids, cache):
    copy.deepcopy(model)(ids, past_key_values=cache)
    return ids


def by_hand(model, ids, cache):
    for layer in range(3):
        cache.update(torch.zeros((1, 2, 400, 64), dtype=torch.bfloat16), torch.zeros((1, 2, 400, 64), dtype=torch.bfloat16), layer)
    return ids


def overwritten(model, ids, cache):
    model(ids, past_key_values=cache)
    cache.layers[1].values[:, :, 3] += 1
    return ids


def replaced(model, ids, cache):
    model(ids, past_key_values=cache)
    cache.layers[1].keys = cache.layers[1].keys.clone()
    return ids


def one_layer_cropped(model, ids, cache):
    model(ids, past_key_values=cache)
    cache.layers[0].crop(-1)
    return ids


def interrupted(model, ids, cache):
    def fail(*_):
        raise RuntimeError("no memory")
    handle = model.model.layers[2].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="no memory"):
        model(ids, past_key_values=cache)
    handle.remove()
    return ids


def training(model, ids, cache):
    model.train()
    model(ids, past_key_values=cache)
    model.eval()
    return ids


@torch.no_grad()
@pytest.mark.parametrize(("compute", "why"), [
    (beams, "several sequences"), (several_answers, "several sequences"), (other_model, "changed otherwise"),
    (copied_model, "changed otherwise"), (by_hand, "changed otherwise"), (overwritten, "changed otherwise"),
    (replaced, "changed otherwise"), (one_layer_cropped, "changed otherwise"), (interrupted, "has not ended"),
    (training, "training mode")])
def test_what_the_store_s_model_did_not_compute_for_one_sequence_is_not_saved(model, prefixes, compute, why):
    cache = prefixes.cache(PROMPT)
    output = compute(model, PROMPT, cache)
    with pytest.raises(ValueError, match=f"cannot be saved: .*{why}"):
        prefixes.save(cache, output)


@torch.no_grad()
def test_only_the_ids_that_the_model_was_given_can_be_saved(model, prefixes, module_daemon):
    cache = prefixes.cache(PROMPT)
    output = generate(model, PROMPT, cache).sequences
    for wrong in (405, 418):
        other = output.clone()
        other[0, wrong] ^= 1
        with pytest.raises(ValueError, match="other ids than the model was given"):
            prefixes.save(cache, other)
    own = DynamicCache()
    model(PROMPT, past_key_values=own)
    another = store(model, module_daemon, revision="another")
    for foreign in (own, another.cache(PROMPT), copy.deepcopy(cache), None):
        with pytest.raises(ValueError, match="cache\\(\\) of this store"):
            prefixes.save(foreign, output)
    for ids in (output.float(), output[0], output[0].tolist()):
        with pytest.raises(ValueError, match="one sequence"):
            prefixes.save(cache, ids)
    assert prefixes.save(cache, output[:, :410])  # a part of them
    until_restored(prefixes, torch.cat([output, output], dim=1), 410)
    another.close()


@torch.no_grad()
def test_plain_computations_are_saved_however_they_are_made(model, prefixes):
    """By the model, its body, in parts, with a mask and positions that say nothing new, and after a crop."""
    cache = prefixes.cache(PROMPT)
    model(PROMPT[:, :100], past_key_values=cache, attention_mask=torch.ones((1, 100)), position_ids=torch.arange(100)[None])
    model.model(PROMPT[:, 100:300], None, None, cache)
    model(PROMPT[:, 200:], past_key_values=cache)
    cache.crop(-200)
    with torch.inference_mode():
        model(PROMPT[:, 300:], past_key_values=cache, attention_mask=torch.ones((1, 400), dtype=torch.bool), use_cache=True)
    assert prefixes.save(cache, PROMPT)
    warm, own = until_restored(prefixes, PROMPT, 384), DynamicCache()
    model(PROMPT, past_key_values=own)
    for restored, computed in zip(warm.layers, own.layers):
        assert torch.allclose(restored.keys, computed.keys[:, :, :384], rtol=0.1, atol=0.1)


@pytest.mark.parametrize("config", [
    GPT2Config(vocab_size=512, n_embd=64, n_layer=2, n_head=2), OPTConfig(**SMALL, ffn_dim=64, word_embed_proj_dim=64),
    Qwen3Config(**SMALL, intermediate_size=64, num_key_value_heads=2, head_dim=32),
    GemmaConfig(**SMALL, intermediate_size=64, num_key_value_heads=2, head_dim=32)], ids=lambda config: config.model_type)
def test_models_of_other_bodies_are_seen_too(module_daemon, config):
    model = AutoModelForCausalLM.from_config(config).bfloat16().eval()
    prefixes = store(model, module_daemon)
    cold = prefixes.cache(PROMPT)
    first = generate(model, PROMPT, cold).sequences
    assert prefixes.save(cold, first)
    warm = until_restored(prefixes, PROMPT, 384)
    again = generate(model, PROMPT, warm).sequences
    assert prefixes.save(warm, again)
    cold = prefixes.cache(PROMPT + 1)
    with pytest.raises(ValueError, match="hides tokens"):
        prefixes.save(cold, masked(model, PROMPT + 1, cold))


def test_a_store_leaves_no_hooks_in_the_model(module_daemon):
    model = make(seed=22)
    prefixes = store(model, module_daemon)
    assert len(model.model._forward_hooks) == len(model.model._forward_pre_hooks) == 1
    pickle.loads(pickle.dumps(model))  # with them
    prefixes.close()
    other = store(model, module_daemon)
    del other
    assert not model.model._forward_hooks and not model.model._forward_pre_hooks
