"""transformers: prefix reuse in generate(). A cache begins with what kvtier has of a prompt, and leaves its blocks there.

    store = PrefixStore(model)                         # options as keywords: socket, revision, min_precision, ...
    cache = store.cache(input_ids)                     # the prefix that is there, and room for the rest
    output = model.generate(input_ids, past_key_values=cache)
    store.save(cache, output)                          # True: all was taken; the copy is made when it returns

For one sequence at a time, without padding, and models whose layers are all of full attention: a cache sees what the model is
given, and `save` refuses one that holds anything else than K and V of plain ids (transformers_cache.py). What was restored is not
saved again: it may have come at a lower precision."""

from __future__ import annotations

import hashlib
import json
import weakref
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

import kvtier

from .blocks import Settings, Store, digest_of, dtype_of, model_config_facts, require
from .transformers_cache import KvtierCache, Watch

_ATTENTION = {"full_attention"}


def weights_revision(model: PreTrainedModel) -> str:
    """A digest of all weights, adapters of any kind included: seconds for billions of them."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _model_spec(model: PreTrainedModel, settings: Settings) -> kvtier.ModelSpec:
    config = model.config.get_text_config(decoder=True)
    require(set(getattr(config, "layer_types", None) or _ATTENTION) <= _ATTENTION
            and not getattr(config, "sliding_window", None), "models with other layers than full attention are not supported")
    # Images and sounds stand as the same tokens whatever they show.
    require(config is model.config, "multimodal models are not supported: a key names tokens alone")
    require(not model.config.is_encoder_decoder, "encoder-decoder models are not supported")
    require(not getattr(model, "_is_stateful", False), "recurrent states are not supported")
    require(not getattr(config, "use_bidirectional_attention", None), "K and V that depend on later tokens are not supported")
    heads = config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    require(not hasattr(config, "kv_lora_rank"), "latent (MLA) caches are not supported")
    varying = sorted(kind for kind in _rope_types(config) if "dynamic" in kind or kind in ("longrope", "su"))
    require(not varying, f"RoPE of type {', '.join(varying)} is not supported: K depends on the sequence's length")
    adapters = getattr(model, "active_adapters", None) if getattr(model, "_hf_peft_config_loaded", False) else None
    facts = {"engine": "transformers", "config": model_config_facts(config), "adapters": _adapter_facts(model),
             "quantization": bool(getattr(model, "is_quantized", False))}
    return kvtier.ModelSpec(
        model.config._name_or_path or type(model).__name__, layers=config.num_hidden_layers,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads, k_dim=dim, v_dim=dim, dtype=dtype_of(model.dtype),
        revision=settings.revision or weights_revision(model), lora=",".join(adapters()) if adapters else None,
        config_digest=digest_of(facts), layout_id="transformers", floor=kvtier.Precision[settings.floor])


def _adapter_facts(model: PreTrainedModel) -> str:
    """What neither weights nor names say of the adapters that peft puts into layers: which count, and how much."""
    # The model has a method of that name, a layer of peft a flag.
    layers = [[name, module.disable_adapters, list(module.active_adapters), getattr(module, "scaling", None)]
              for name, module in model.named_modules() if isinstance(getattr(module, "disable_adapters", None), bool)]
    configs = {name: config.to_dict() for name, config in (getattr(model, "peft_config", None) or {}).items()} if layers else {}
    return json.dumps([layers, configs], sort_keys=True,
                      default=lambda value: sorted(map(str, value)) if isinstance(value, set) else str(value))


def _rope_types(config: Any) -> set[str]:
    """Of all layers: parameters are flat or by type of layer, and had another name."""
    found = set()
    for name in ("rope_parameters", "rope_scaling"):
        parameters = getattr(config, name, None) or {}
        for part in (parameters, *(value for value in parameters.values() if isinstance(value, dict))):
            found.add(str(part.get("rope_type") or part.get("type")))
    return found


class PrefixStore:
    """Of one model, as its weights are now: made before they change it answers for other weights. Threads: any."""

    def __init__(self, model: PreTrainedModel, **options: Any) -> None:
        settings = Settings.of({"timeout_ms": 100} | options)
        require(hasattr(model, "config"), f"a {type(model).__name__} is no model of transformers")
        spec = _model_spec(model, settings)
        self._device, self._dtype = model.device, model.dtype
        self._store, self._watch = Store(spec, settings), Watch(spec.layers)
        self._detach = weakref.finalize(self, _remove, self._watch.attach(model))

    def close(self) -> None:
        self._detach()
        self._store.close()

    def cache(self, input_ids: torch.Tensor) -> KvtierCache:
        """Waits for what is there, so that a damaged block is computed and never seen."""
        tokens = _tokens(input_ids)
        blocks = self._store.keys(tokens) if tokens else None
        # generate() needs a last token to compute.
        lease = self._store.acquire(blocks, before_last_token=True)
        if lease is None:
            return KvtierCache(self._watch, tokens)
        size = self._store.tokens_per_block
        with lease:
            held = lease.blocks()
            counts = [block.tokens for block in held]
            keys, values = self._arrays(sum(counts)), self._arrays(sum(counts))
            loaded = self._store.fetch(lease, kvtier.View(keys, "1htd", v=values))
        good = loaded.index(False) if False in loaded else len(loaded)
        if good == len(held) and held[-1].tokens < size and held[-1].precision != kvtier.Precision.BITS16:
            good -= 1  # it becomes part of a block, which would be stored as an exact one
        restored = sum(counts[:good])
        layers = [(k[:, :, :restored].to(self._device), v[:, :, :restored].to(self._device)) for k, v in zip(keys, values)]
        return KvtierCache(self._watch, tokens, restored // size, layers if restored > 0 else None)

    def save(self, cache: KvtierCache, output_ids: torch.Tensor) -> bool:
        """`output_ids`: what generate() returned, the prompt and the new tokens. The last of them may have no K and V. Errors:
        ValueError for a cache that is not this store's, or holds K and V of anything else than these ids."""
        require(isinstance(cache, KvtierCache) and cache.watch is self._watch,
                f"only what cache() of this store made can be saved, and of a {type(cache).__name__} from elsewhere nothing tells "
                "which ids its K and V are of")
        tokens, known = _tokens(output_ids), cache.known_tokens
        require(tokens[:len(cache.tokens)] == cache.tokens, "the output does not begin with the prompt of the cache")
        tokens = tokens[:len(known)]
        require(tokens == known[:len(tokens)], "the output has other ids than the model was given")
        # What the daemon has forgotten since must not come back as exact.
        first = cache.restored_blocks * self._store.tokens_per_block
        if len(tokens) <= first:
            return True
        blocks = self._store.keys(tokens)
        if blocks is None:
            return False
        keys, values = ([part[:, :, first:len(tokens)].detach().cpu() for part in parts]
                        for parts in zip(*[(layer.keys, layer.values) for layer in cache.layers]))
        # Tokens that other words follow now are no tail of this sequence: the key of each block says which they are.
        return self._store.save(blocks[cache.restored_blocks:], _view(keys, values))

    def _arrays(self, tokens: int) -> list[torch.Tensor]:
        spec = self._store.spec
        return [torch.empty((1, spec.kv_heads, tokens, spec.k_dim), dtype=self._dtype) for _ in range(spec.layers)]


def _remove(handles: list[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()


def _view(keys: list[torch.Tensor], values: list[torch.Tensor]) -> kvtier.View:
    """K and V of all layers need the same strides."""
    return kvtier.View([k.contiguous() for k in keys], "1htd", v=[v.contiguous() for v in values])


def _tokens(ids: torch.Tensor) -> list[int]:
    require(isinstance(ids, torch.Tensor) and ids.dim() == 2 and ids.shape[0] == 1 and not ids.is_floating_point(),
            "one sequence at a time is supported, as a tensor of shape (1, tokens) of whole numbers")
    return ids[0].tolist()
