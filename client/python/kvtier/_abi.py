"""The C ABI of libkvtier (kvtier/kvtier.h) as ctypes: structs, codes and prototypes, nothing more."""

from __future__ import annotations

import ctypes
import enum
import operator
import os
from ctypes import POINTER, c_char, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from typing import Any, TypeVar

KEY_BYTES = 32
VIEW_ROTATED_V = 1


class Code(enum.IntEnum):
    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PRESENT = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNSUPPORTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    CORRUPT = 15
    UNAUTHENTICATED = 16
    STALE = 100
    PENDING = 101


class Precision(enum.IntEnum):
    ANY = 0
    INT2 = 1
    K4V2 = 2
    INT4 = 3
    BITS8 = 4
    BITS16 = 5


class DType(enum.IntEnum):
    FP16 = 1
    BF16 = 2
    FP8_E4M3 = 3
    FP8_E5M2 = 4
    FP32 = 5


class Durability(enum.IntEnum):
    MEMORY = 0
    DURABLE = 1


Key = c_uint8 * KEY_BYTES


class Options(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("socket", c_char_p),
        ("client_name", c_char_p),
        ("timeout_ms", c_uint32),
        ("fetch_threads", c_uint32),
    ]


class ModelSpec(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("model_id", c_char_p),
        ("revision", c_char_p),
        ("lora", c_char_p),
        ("config_digest", c_char_p),
        ("kv_scales", c_char_p),
        ("layout_id", c_char_p),
        ("layer_group", c_uint32),
        ("layers", c_uint32),
        ("kv_heads", c_uint32),
        ("k_dim", c_uint32),
        ("v_dim", c_uint32),
        ("dtype", c_int),
        ("tokens_per_block", c_uint32),
        ("tp_rank", c_uint32),
        ("tp_size", c_uint32),
        ("pp_rank", c_uint32),
        ("pp_size", c_uint32),
        ("cp_rank", c_uint32),
        ("cp_size", c_uint32),
        ("first_raw_rows", c_uint32),
        ("boost_channels", c_int32),
        ("floor", c_int),
        ("k_scales", POINTER(c_float)),
        ("v_scales", POINTER(c_float)),
    ]


class BlockRef(ctypes.Structure):
    _fields_ = [("key", Key), ("parent", Key), ("position", c_uint64), ("tokens", c_uint32)]


class Query(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("refs", POINTER(BlockRef)),
        ("count", c_size_t),
        ("tokens", POINTER(c_int32)),
        ("n_tokens", c_size_t),
        ("before_last_token", c_int),
    ]


class Match(ctypes.Structure):
    _fields_ = [("precision", c_int), ("tier", c_uint32)]


class LookupResult(ctypes.Structure):
    _fields_ = [("blocks", c_size_t), ("tail_tokens", c_uint32), ("tokens", c_size_t)]


class AcquireOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("min_precision", c_int),
        ("ttl_ms", c_uint32),
        ("timeout_ms", c_uint32),
        ("max_block_bytes", c_uint64),
    ]


class BlockInfo(ctypes.Structure):
    _fields_ = [
        ("key", Key),
        ("position", c_uint64),
        ("tokens", c_uint32),
        ("precision", c_int),
        ("served_from", c_uint32),
        ("image_bytes", c_uint64),
        ("k_error", c_float),
        ("v_error", c_float),
    ]


class View(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("bases", POINTER(c_void_p)),
        ("n_bases", c_size_t),
        ("layer_stride", c_int64),
        ("v_offset", c_int64),
        ("head_stride", c_int64),
        ("token_stride", c_int64),
        ("channel_stride", c_int64),
        ("page_table", POINTER(c_int32)),
        ("n_pages", c_size_t),
        ("page_tokens", c_uint32),
        ("page_stride", c_int64),
        ("dtype", c_int),
        ("flags", c_uint64),
        ("v_bases", POINTER(c_void_p)),
    ]


class BlockResult(ctypes.Structure):
    _fields_ = [("code", c_int), ("precision", c_int), ("k_error", c_float), ("v_error", c_float)]


class Attention(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("q", POINTER(c_float)),
        ("query_heads", c_uint32),
        ("scale", c_float),
        ("o", POINTER(c_float)),
        ("m", POINTER(c_float)),
        ("l", POINTER(c_float)),
        ("mass", POINTER(c_float)),
    ]


class PutOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("durability", c_int),
        ("floor", c_int),
        ("priority", c_uint32),
        ("ttl_ms", c_uint32),
        ("timeout_ms", c_uint32),
    ]


class PutResult(ctypes.Structure):
    _fields_ = [("code", c_int), ("precision", c_int), ("tier", c_uint32)]


class TierStats(ctypes.Structure):
    _fields_ = [
        ("name", c_char * 16),
        ("medium", c_char * 16),
        ("codec", c_char * 16),
        ("capacity_bytes", c_uint64),
        ("used_bytes", c_uint64),
        ("blocks", c_uint64 * 6),
        ("accepts_writes", c_int),
    ]


class Stats(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("tiers", c_uint32),
        ("tier", TierStats * 4),
        ("blocks", c_uint64),
        ("leases", c_uint64),
        ("sessions", c_uint64),
        ("models", c_uint64),
        ("boot_id", c_uint64 * 2),
    ]


def whole(value: Any, c_type: Any, what: str) -> int:
    """ctypes cuts a number to its type's bits and says nothing. Errors: TypeError, ValueError."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} is a whole number, not {type(value).__name__}") from None
    bits = 8 * ctypes.sizeof(c_type)
    signed = bool(c_type(-1).value < 0)
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    if not low <= number <= high:
        raise ValueError(f"{what} is {number}, not within [{low}, {high}]")
    return number


def text(value: str | None, what: str) -> bytes | None:
    """A C string, which ends at its first NUL. ctypes would take a number as an address. Errors: TypeError, ValueError."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{what} is a str, not {type(value).__name__}")
    if "\0" in value:
        raise ValueError(f"{what} has a NUL character")
    return value.encode()


_P = POINTER
# name: (result, arguments). Handles are c_void_p.
PROTOTYPES = {
    "kvtier_open": (c_int, [_P(Options), _P(c_void_p)]),
    "kvtier_close": (None, [c_void_p]),
    "kvtier_last_error": (c_char_p, []),
    "kvtier_version": (c_char_p, []),
    "kvtier_register_model": (c_int, [c_void_p, _P(ModelSpec), _P(c_void_p)]),
    "kvtier_model_namespace": (c_int, [c_void_p, Key]),
    "kvtier_keys": (c_int, [c_void_p, _P(c_int32), c_size_t, _P(BlockRef), c_size_t, _P(c_size_t)]),
    "kvtier_foreign_key": (c_int, [c_void_p, c_char_p, c_size_t, Key]),
    "kvtier_lookup": (c_int, [c_void_p, _P(Query), _P(Match), _P(LookupResult), c_uint32]),
    "kvtier_acquire": (c_int, [c_void_p, _P(Query), _P(AcquireOptions), _P(c_void_p)]),
    "kvtier_lease_count": (c_size_t, [c_void_p]),
    "kvtier_lease_tokens": (c_size_t, [c_void_p]),
    "kvtier_lease_block": (c_int, [c_void_p, c_size_t, _P(BlockInfo)]),
    "kvtier_fetch": (c_int, [c_void_p, c_size_t, c_size_t, c_uint32, c_uint32, _P(View), _P(BlockResult)]),
    "kvtier_fetch_async": (c_int, [c_void_p, c_size_t, c_size_t, c_uint32, c_uint32, _P(View), _P(c_uint64)]),
    "kvtier_wait_layer": (c_int, [c_void_p, c_uint64, c_uint32, _P(BlockResult), c_size_t, c_uint32]),
    "kvtier_attend": (c_int, [c_void_p, c_size_t, c_size_t, c_uint32, _P(Attention), _P(BlockResult)]),
    "kvtier_release": (c_int, [c_void_p]),
    "kvtier_put": (c_int, [c_void_p, _P(Query), _P(View), _P(PutOptions), _P(c_uint64)]),
    "kvtier_wait": (c_int, [c_void_p, c_uint64, _P(PutResult), c_size_t, c_uint32]),
    "kvtier_prefetch": (c_int, [c_void_p, _P(Query), c_uint32, c_uint32, _P(c_uint64), _P(c_uint32)]),
    "kvtier_cancel": (c_int, [c_void_p, c_uint64]),
    "kvtier_completion_fd": (c_int, [c_void_p, _P(c_int)]),
    "kvtier_completed": (c_int, [c_void_p, _P(c_uint64), c_size_t, _P(c_size_t)]),
    "kvtier_remove": (c_int, [c_void_p, _P(Query), _P(c_uint64), c_uint32]),
    "kvtier_clear": (c_int, [c_void_p, _P(c_uint64), c_uint32]),
    "kvtier_get_stats": (c_int, [c_void_p, _P(Stats), c_uint32]),
}


def load() -> ctypes.CDLL:
    """$KVTIER_LIBRARY, else libkvtier.so.1 where the loader finds it."""
    path = os.environ.get("KVTIER_LIBRARY", "libkvtier.so.1")
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"libkvtier cannot be loaded ({error}); set KVTIER_LIBRARY to its path") from error
    for name, (result, arguments) in PROTOTYPES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


_WHOLE = (c_int, c_int32, c_int64, c_uint32, c_uint64)  # c_size_t is one of them
_Struct = TypeVar("_Struct", bound=ctypes.Structure)


def sized(struct_type: type[_Struct], **fields: Any) -> _Struct:
    """A struct with struct_size set and everything else zero but `fields`. Errors: TypeError and ValueError for numbers that
    do not fit; texts come as `text` makes them."""
    types = dict(struct_type._fields_)  # type: ignore[arg-type]
    for name, value in fields.items():
        if types[name] in _WHOLE:
            fields[name] = whole(value, types[name], name)
    return struct_type(struct_size=ctypes.sizeof(struct_type), **fields)
