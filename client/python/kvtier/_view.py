"""Where K and V are in an engine's arrays, said by the letters of their axes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from . import _abi
from ._abi import DType
from ._memory import Memory, memory_of

_ITEM_BYTES = {DType.FP16: 2, DType.BF16: 2, DType.FP8_E4M3: 1, DType.FP8_E5M2: 1, DType.FP32: 4}
_AXES = {
    "l": "layer",
    "c": "K and V, in this order",
    "p": "page",
    "t": "token (of a page where there are pages)",
    "h": "KV head",
    "d": "channel",
    "1": "an axis of length 1",
}


class View:
    """K and V of a model in host memory, for put and fetch. Nothing is copied; the arrays are kept alive.

    `arrays` is one array for all layers (its axes have an "l"), or a list of one array a layer. `axes` names the
    axes in order: l layer, c K and V, p page, t token, h head, d channel, 1 an axis of length 1. Where K and V
    are arrays of their own there is no "c": `arrays` is K and `v` is V, of the same strides. Examples:
      View(kv, "lchtd")                          one array [layer][2][head][token][channel]
      View(caches, "cpthd", page_table=pages)    vLLM: a list of [2][page][token][head][channel]
      View(keys, "1htd", v=values)               transformers: lists of (1, head, token, channel)
    `page_table[i]` is the page of tokens [i * n, (i + 1) * n) with n the length of axis t. `dtype` is needed for
    FP8 and BF16 that come as integers of their size, and cannot be another than the arrays' own.
    `rotated_v`: see KVTIER_VIEW_ROTATED_V."""

    def __init__(self, arrays: Any, axes: str, *, v: Any = None, page_table: Sequence[int] | None = None,
                 dtype: DType | None = None, rotated_v: bool = False) -> None:
        k_memories = _memories(arrays, axes)
        v_memories = [] if v is None else _memories(v, axes)
        _check_axes(axes, v is not None, page_table is not None)
        memories = k_memories + v_memories
        first = memories[0]
        for memory in memories:
            _check_same(memory, first, axes)
        if v is not None and len(v_memories) != len(k_memories):
            raise ValueError("v has not as many arrays as K")
        self._owners = [memory.owner for memory in memories]
        self.writable = all(memory.writable for memory in memories)
        self.shape = {letter: count for letter, count in zip(axes, first.shape) if letter != "1"}
        self.layers = self.shape.get("l", len(k_memories))
        if dtype is not None and dtype != first.dtype and not first.untyped:
            raise ValueError(f"the arrays are of a type of their own, which is not {DType(dtype).name}: nothing converts them")
        self.struct = self._fill(k_memories, v_memories, axes, page_table, dtype or first.dtype, rotated_v)

    def _fill(self, k: list[Memory], v: list[Memory], axes: str, page_table: Sequence[int] | None, dtype: DType | None,
              rotated_v: bool) -> _abi.View:
        if dtype is None:
            raise ValueError("the arrays' type is none of FP16, BF16, FP32 and FP8; dtype says which one their bytes are")
        if k[0].item_bytes != _ITEM_BYTES[dtype]:
            raise ValueError(f"elements of the arrays have {k[0].item_bytes} bytes, {DType(dtype).name} has {_ITEM_BYTES[dtype]}")
        stride = dict(zip(axes, k[0].strides))
        if stride["d"] == 0:
            raise ValueError("all channels are one element")  # the library takes a stride of 0 as packed
        self._bases = (ctypes.c_void_p * len(k))(*[memory.address for memory in k])
        view = _abi.sized(_abi.View, bases=self._bases, n_bases=len(k), layer_stride=stride.get("l", 0),
                          v_offset=stride.get("c", 0), head_stride=stride["h"], token_stride=stride["t"],
                          channel_stride=stride["d"], dtype=int(dtype),
                          flags=_abi.VIEW_ROTATED_V if rotated_v else 0)
        if v:
            self._v_bases = (ctypes.c_void_p * len(v))(*[memory.address for memory in v])
            view.v_bases = self._v_bases
        if page_table is not None:
            pages = list(page_table)
            if any(not 0 <= page < self.shape["p"] for page in pages):
                raise ValueError("the page table names a page outside the arrays")
            self._pages = (ctypes.c_int32 * len(pages))(*pages)
            view.page_table, view.n_pages = self._pages, len(pages)
            view.page_tokens, view.page_stride = self.shape["t"], stride["p"]
        return view

    @property
    def tokens(self) -> int:
        """How many tokens there is room for."""
        return int(self.shape["t"] * (self.struct.n_pages if self.struct.page_table else 1))

    def check_pages_differ(self, tokens: int) -> None:
        """Of so many tokens: in a destination that has a page twice, the later one overwrites the earlier. Behind them engines
        may have one page often, which nobody reads."""
        pages = self.struct.page_table[:-(-tokens // self.shape["t"])] if self.struct.page_table else []
        if len(set(pages)) != len(pages):
            raise ValueError("the page table has a page twice, which would keep the later tokens alone")

    def check_room(self, *, layers: int, kv_heads: int, k_dim: int, v_dim: int, tokens: int) -> None:
        """The library knows addresses and strides, not where an array ends: here is the place to find out."""
        have = {"layers": self.layers, "heads": self.shape["h"], "channels": self.shape["d"], "tokens": self.tokens}
        need = {"layers": layers, "heads": kv_heads, "channels": max(k_dim, v_dim), "tokens": tokens}
        for name, count in need.items():
            if have[name] < count:
                raise ValueError(f"the arrays have {have[name]} {name}, the blocks need {count}")


def _memories(arrays: Any, axes: str) -> list[Memory]:
    one = hasattr(arrays, "__array_interface__") or hasattr(arrays, "__dlpack__")
    if one != ("l" in axes):
        raise ValueError('one array has an axis "l"; a list of arrays, one a layer, has none')
    memories = [memory_of(array) for array in ([arrays] if one else arrays)]
    if not memories:
        raise ValueError("there is no array")
    return memories


def _check_axes(axes: str, separate_v: bool, paged: bool) -> None:
    wrong = [letter for letter in axes if letter not in _AXES]
    if wrong:
        raise ValueError(f"unknown axis {wrong[0]!r}; there are: " + ", ".join(f"{a} {what}" for a, what in _AXES.items()))
    letters = axes.replace("1", "")
    if len(set(letters)) != len(letters):
        raise ValueError("an axis is there twice")
    for letter in "thd":
        if letter not in axes:
            raise ValueError(f"there is no axis {letter}, {_AXES[letter]}")
    if ("c" in axes) == separate_v:
        raise ValueError('either the axes have a "c" or v has the arrays of V')
    if ("p" in axes) != paged:
        raise ValueError('an axis "p" and a page_table belong together')


def _check_same(memory: Memory, first: Memory, axes: str) -> None:
    if len(memory.shape) != len(axes):
        raise ValueError(f"an array has {len(memory.shape)} axes, not {len(axes)}")
    if memory.strides != first.strides or memory.shape != first.shape or (memory.item_bytes, memory.dtype) != (
            first.item_bytes, first.dtype):
        raise ValueError("the arrays differ in shape, strides or type")
    for letter, count in zip(axes, memory.shape):
        if letter == "1" and count != 1:
            raise ValueError(f'axis "1" has length {count}')
        if letter == "c" and count != 2:
            raise ValueError(f'axis "c" has length {count}, not 2')
