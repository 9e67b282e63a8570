"""transformers: a cache that knows which ids its K and V are of, since it sees what the model is given.

K and V depend on more than ids: on a mask, on positions, on embeddings in the ids' place. Whatever the model was called with, by
generate() or by hand, a Watch sees it in hooks around the model's body. What is not the plain computation of one sequence makes a
cache one that cannot be saved; and where a prefix was restored, which is a plain one, it is an error at once."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

from .blocks import require

# Arguments of a model that change what it returns, and nothing in its cache.
_NO_EFFECT = {"use_cache", "output_attentions", "output_hidden_states", "output_router_logits", "return_dict", "logits_to_keep",
              "labels"}


class KvtierLayer(DynamicLayer):
    """A layer that begins with restored tokens, or with none."""

    def restore(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.lazy_initialization(keys, values)
        self.keys, self.values = keys, values


class KvtierCache(Cache):
    def __init__(self, watch: Watch, tokens: list[int], restored_blocks: int = 0,
                 layers: list[tuple[torch.Tensor, torch.Tensor]] | None = None) -> None:
        """`layers`: K and V that were restored of the first tokens, `restored_blocks` whole ones among them."""
        super().__init__(layer_class_to_replicate=KvtierLayer)
        self.watch, self.tokens, self.restored_blocks = watch, tokens, restored_blocks
        for keys, values in layers or ():
            layer = KvtierLayer()
            layer.restore(keys, values)
            self.layers.append(layer)
        self.restored_tokens = self.get_seq_length()
        self._known = tokens[:self.restored_tokens]  # whose K and V these are
        self._computing: list[int] | None = None
        self._flaw: str | None = None
        self._seal = self._state()

    @property
    def known_tokens(self) -> list[int]:
        """The ids whose K and V it holds. Errors: ValueError when it may hold others."""
        flaw = self._flaw or self._changed()
        require(flaw is None, f"the cache cannot be saved: {flaw}")
        return self._known

    def crop(self, tokens_to_remove: int) -> None:
        self._flaw = self._flaw or self._changed()
        super().crop(tokens_to_remove)
        del self._known[self.get_seq_length():]
        self._seal = self._state()

    def begin(self, call: Mapping[str, Any], training: bool) -> None:
        """The model is about to compute. Errors: ValueError when what was restored does not fit that."""
        past = self.get_seq_length()
        other = _not_plain(call, past)
        require(other is None or self.restored_tokens == 0,
                f"{other}, and the restored K and V are of plain tokens: such a prompt needs a cache of transformers' own")
        self._flaw = self._flaw or self._changed() or other or _not_alone(call, past)
        if training:
            self._flaw = self._flaw or "the model is in training mode"
        self._computing = [] if self._flaw else call["input_ids"][0].tolist()

    def end(self, layers: int) -> None:
        self._known += self._computing or []
        self._computing = None
        self._seal = self._state()
        if [layer.get_seq_length() for layer in self.layers] != [len(self._known)] * layers:
            self._flaw = self._flaw or "not every layer has K and V of every token that the model was given"

    def _changed(self) -> str | None:
        if self._computing is not None:
            return "a computation in it has not ended"
        state = self._state()
        same = len(state) == len(self._seal) and all(
            new() is not None and new() is old() and new_version == old_version
            for (new, new_version), (old, old_version) in zip(state, self._seal))
        return None if same else "it has been changed otherwise than by the store's model (beams, another model, by hand)"

    def _state(self) -> list[tuple[Callable[[], Any], int]]:
        """Of each tensor itself, which is not kept, and of its content."""
        return [(_reference(part), _version(part)) for layer in self.layers for part in (layer.keys, layer.values)]


class Watch:
    """Sees every computation of one model in the caches that are its own. A copy of the model has a copy of it, without caches."""

    def __init__(self, layers: int) -> None:
        self._layers, self._names = layers, ()

    def attach(self, model: PreTrainedModel) -> list[RemovableHandle]:
        body = model.get_decoder()  # what every way to call the model ends in
        # Those by position; others come with their names.
        self._names = tuple(name for name, parameter in inspect.signature(body.forward).parameters.items()
                            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD)
        return [body.register_forward_pre_hook(self._begin, with_kwargs=True),
                body.register_forward_hook(self._end, with_kwargs=True)]

    def _begin(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        call, cache = self._own(args, kwargs)
        if cache is not None:
            cache.begin(call, module.training)

    def _end(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        _, cache = self._own(args, kwargs)
        if cache is not None:
            cache.end(self._layers)

    def _own(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, Any], KvtierCache | None]:
        call = dict(zip(self._names, args)) | kwargs
        if len(args) > len(self._names):
            call["arguments without a name"] = args[len(self._names):]
        cache = call.pop("past_key_values", None)
        return call, cache if isinstance(cache, KvtierCache) and cache.watch is self else None


def _not_plain(call: Mapping[str, Any], past: int) -> str | None:
    """What else than ids at the positions from `past` on, all of them seen, the model is given."""
    ids = call.get("input_ids")
    if call.get("inputs_embeds") is not None or ids is None:
        return "embeddings were given, not ids"
    end = past + ids.shape[-1]
    for name, value in call.items():
        if name == "input_ids" or name in _NO_EFFECT or value is None or value is False:
            continue
        if name == "attention_mask":
            if not isinstance(value, torch.Tensor) or value.dim() != 2 or value.shape[1] != end:
                return "the attention mask is not of shape (1, tokens), for all tokens so far"
            if not bool((value != 0).all()):
                return ("the attention mask hides tokens (generate() makes one that hides pad_token_id where the prompt has it, "
                        "unless a mask of ones is given)")
        elif name in ("position_ids", "cache_position"):
            expected = torch.arange(past, end, device=value.device)
            if value.dim() > 2 or value.shape[-1] != len(expected) or not bool((value == expected).all()):
                return "positions do not count from 0"
        else:
            return f"{name} was given to the model"
    return None


def _not_alone(call: Mapping[str, Any], past: int) -> str | None:
    shape = tuple(call["input_ids"].shape)
    return None if len(shape) == 2 and shape[0] == 1 else f"several sequences were computed in it: ids of shape {shape}"


def _reference(part: torch.Tensor | None) -> Callable[[], Any]:
    return (lambda: None) if part is None else weakref.ref(part)


def _version(part: torch.Tensor | None) -> int:
    """Of its content; tensors of torch.inference_mode() have none."""
    return -1 if part is None or part.is_inference() else part._version
