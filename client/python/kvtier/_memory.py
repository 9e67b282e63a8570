"""Memory of arrays without copies: numpy and others by __array_interface__, torch and others by DLPack, on the CPU."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from ._abi import DType

_NUMPY_TYPES = {"<f2": DType.FP16, "<f4": DType.FP32}
# (DLPack type code, bits); codes of dlpack.h.
_DLPACK_TYPES = {
    (2, 16): DType.FP16,
    (2, 32): DType.FP32,
    (4, 16): DType.BF16,
    (10, 8): DType.FP8_E4M3,  # kDLFloat8_e4m3fn
    (12, 8): DType.FP8_E5M2,  # kDLFloat8_e5m2
}
# What says nothing but its size: integers, and numpy's raw bytes, as ml_dtypes' types are.
_NUMPY_UNTYPED = ("<i", "<u", "<V", "|i", "|u", "|V")
_DLPACK_UNTYPED = (0, 1)  # kDLInt, kDLUInt
_DLPACK_HOST_DEVICES = (1, 3)  # kDLCPU, kDLCUDAHost (pinned)


@dataclass(frozen=True)
class Memory:
    """Strides in bytes. `owner` keeps the memory alive."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType | None  # None: none that is known here
    untyped: bool  # integers or raw bytes: what they are can be said
    item_bytes: int
    writable: bool
    owner: Any


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("type_code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


def _packed_strides(shape: tuple[int, ...], item_bytes: int) -> tuple[int, ...]:
    strides, step = [], item_bytes
    for count in reversed(shape):
        strides.append(step)
        step *= count
    return tuple(reversed(strides))


def _from_array_interface(array: Any) -> Memory:
    interface = array.__array_interface__
    address, read_only = interface["data"]
    shape = tuple(interface["shape"])
    item_bytes = int(interface["typestr"][2:])
    strides = interface.get("strides") or _packed_strides(shape, item_bytes)
    kind = interface["typestr"]
    return Memory(address, shape, tuple(strides), _NUMPY_TYPES.get(kind), kind[:2] in _NUMPY_UNTYPED, item_bytes, not read_only,
                  array)


def _from_dlpack(array: Any) -> Memory:
    # Such tensors of torch have other values than their memory.
    if any(getattr(array, name, bool)() for name in ("is_neg", "is_conj", "_is_zerotensor")):
        raise ValueError("the tensor is a lazy negative, conjugate or zero: its memory holds other values than it")
    capsule = array.detach().__dlpack__() if hasattr(array, "detach") else array.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = _DLTensor.from_address(pointer(capsule, b"dltensor"))  # the capsule stays ours, and frees it
    if tensor.device_type not in _DLPACK_HOST_DEVICES:
        raise ValueError("the array is not in host memory")
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    item_bytes = tensor.bits * tensor.lanes // 8
    if tensor.strides:
        strides = tuple(tensor.strides[i] * item_bytes for i in range(tensor.ndim))
    else:
        strides = _packed_strides(shape, item_bytes)
    dtype = _DLPACK_TYPES.get((tensor.type_code, tensor.bits)) if tensor.lanes == 1 else None
    return Memory((tensor.data or 0) + tensor.byte_offset, shape, strides, dtype,
                  tensor.type_code in _DLPACK_UNTYPED, item_bytes, True, (array, capsule))


def memory_of(array: Any) -> Memory:
    """Errors: TypeError for what offers neither protocol, ValueError for memory that is not the host's."""
    if hasattr(array, "__array_interface__"):
        return _from_array_interface(array)
    if hasattr(array, "__dlpack__"):
        return _from_dlpack(array)
    raise TypeError(f"{type(array).__name__} has neither __array_interface__ nor __dlpack__")
