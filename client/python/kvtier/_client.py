"""Client, model, lease and tickets over the C ABI. Threads: any may call anything; calls release the GIL."""

from __future__ import annotations

import array
import ctypes
import os
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any

from . import _abi
from ._abi import Code, DType, Durability, Precision, text, whole
from ._view import View

_lib = _abi.load()

# A daemon that is away, late or full is a miss, like a block that is not there.
MISSES = frozenset({Code.NOT_FOUND, Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.RESOURCE_EXHAUSTED, Code.PENDING,
                    Code.STALE})


class Error(Exception):
    """A call that failed. `code` says why; a caller that can compute treats those of MISSES as a miss."""

    def __init__(self, code: int, text: str) -> None:
        try:
            self.code = Code(code)
        except ValueError:
            self.code = Code.INTERNAL
        super().__init__(f"{self.code.name}: {text.removeprefix(self.code.name).removeprefix(': ')}".removesuffix(": "))


def _last_error() -> str:
    return (_lib.kvtier_last_error() or b"").decode(errors="replace")


def _check(code: int) -> None:
    if code != Code.OK:
        raise Error(code, _last_error())


def _u32(value: Any, what: str) -> int:
    return whole(value, ctypes.c_uint32, what)


def library_version() -> str:
    return str(_lib.kvtier_version().decode())


@dataclass(frozen=True)
class ModelSpec:
    """What a model's K and V depend on and how they are shaped; kvtier_model_spec says what each field means. Errors:
    TypeError, and ValueError for texts with a NUL and numbers that do not fit."""

    model_id: str
    layers: int
    kv_heads: int
    k_dim: int
    v_dim: int
    dtype: DType = DType.FP16
    tokens_per_block: int = 128
    revision: str | None = None
    lora: str | None = None
    config_digest: str | None = None
    kv_scales: str | None = None
    layout_id: str | None = None
    layer_group: int = 0
    tp: tuple[int, int] = (0, 1)  # rank, size
    pp: tuple[int, int] = (0, 1)
    cp: tuple[int, int] = (0, 1)
    first_raw_rows: int = 0
    boost_channels: int = -1
    floor: Precision = Precision.ANY
    k_scales: SequenceOf[float] | None = None
    v_scales: SequenceOf[float] | None = None

    def __post_init__(self) -> None:
        if self.model_id is None:
            raise TypeError("model_id is a str")
        self._to_c()

    def _to_c(self) -> _abi.ModelSpec:
        def scales(values: SequenceOf[float] | None) -> ctypes.Array[ctypes.c_float] | None:
            if values is None:
                return None
            if len(values) != self.layers:
                raise ValueError("scales are one a layer")
            return (ctypes.c_float * len(values))(*values)

        names = ("model_id", "revision", "lora", "config_digest", "kv_scales", "layout_id")
        counts = ("layer_group", "layers", "kv_heads", "k_dim", "v_dim", "dtype", "tokens_per_block", "first_raw_rows",
                  "boost_channels", "floor")
        ranks = {f"{kind}_{what}": value for kind in ("tp", "pp", "cp")
                 for what, value in zip(("rank", "size"), getattr(self, kind), strict=True)}
        return _abi.sized(_abi.ModelSpec, **{name: text(getattr(self, name), name) for name in names},
                          **{name: getattr(self, name) for name in counts}, **ranks,
                          k_scales=scales(self.k_scales), v_scales=scales(self.v_scales))


@dataclass(frozen=True)
class Match:
    precision: Precision
    tier: int


@dataclass(frozen=True)
class Lookup:
    """An unbroken run of full blocks, and the tokens of a tail block after it."""

    tokens: int
    tail_tokens: int
    blocks: tuple[Match, ...]


@dataclass(frozen=True)
class BlockInfo:
    key: bytes
    position: int
    tokens: int
    precision: Precision
    served_from: int
    image_bytes: int
    k_error: float
    v_error: float


@dataclass(frozen=True)
class BlockResult:
    """Of one block of a fetch. Its destination bytes are invalid unless `ok`."""

    code: Code
    precision: Precision
    k_error: float
    v_error: float

    @property
    def ok(self) -> bool:
        return self.code == Code.OK


@dataclass(frozen=True)
class PutResult:
    code: Code
    precision: Precision
    tier: int

    @property
    def stored(self) -> bool:
        return self.code in (Code.OK, Code.PRESENT)


@dataclass(frozen=True)
class Tier:
    name: str
    medium: str
    codec: str
    capacity_bytes: int
    used_bytes: int
    blocks: dict[Precision, int]
    accepts_writes: bool


@dataclass(frozen=True)
class Stats:
    tiers: tuple[Tier, ...]
    blocks: int
    leases: int
    sessions: int
    models: int
    boot_id: tuple[int, int]


class Blocks:
    """Consecutive blocks of a token sequence, by their keys: what lookup, acquire and put ask about."""

    def __init__(self, refs: ctypes.Array[_abi.BlockRef], tokens: ctypes.Array[ctypes.c_int32]) -> None:
        self._refs, self._tokens = refs, tokens

    def __len__(self) -> int:
        return len(self._refs)

    @property
    def tokens(self) -> int:
        return sum(ref.tokens for ref in self._refs)

    def keys(self) -> list[bytes]:
        return [bytes(ref.key) for ref in self._refs]

    def _query(self, before_last_token: bool = False) -> _abi.Query:
        return _abi.sized(_abi.Query, refs=self._refs, count=len(self._refs), tokens=self._tokens,
                          n_tokens=len(self._tokens), before_last_token=int(before_last_token))

    def full(self) -> Blocks:
        """Without a tail block."""
        count = len(self._refs)
        if count > 1 and self._refs[count - 1].tokens < self._refs[0].tokens:
            count -= 1
        return self[:count]

    def __getitem__(self, part: slice) -> Blocks:
        if not isinstance(part, slice):
            raise TypeError("blocks are taken as a run: blocks[i:i + 1] is one")
        first, last, step = part.indices(len(self._refs))
        if step != 1 or last <= first:
            raise ValueError("blocks are taken as a run of at least one")
        refs = (_abi.BlockRef * (last - first))(*self._refs[first:last])
        return Blocks(refs, self._tokens)


class Ticket:
    """A put or prefetch under way. It ends by itself, whether it is waited for or not."""

    def __init__(self, client: Client, number: int, blocks: int) -> None:
        self._client, self.number, self._blocks = client, number, blocks

    def wait(self, timeout_ms: int = 0) -> list[PutResult]:
        """Of a put by block; empty for a prefetch. Raises Error when it has not ended in time, or its session has
        ended; what became of each block is in the results, not raised."""
        results = (_abi.PutResult * max(self._blocks, 1))()
        for result in results:
            result.code = -1  # told from a block's own outcome below
        code = _lib.kvtier_wait(self._client._open(), self.number, results if self._blocks else None, self._blocks,
                                _u32(timeout_ms, "timeout_ms"))
        if not self._blocks or results[0].code == -1:
            _check(code)
        return [PutResult(Code(r.code), Precision(r.precision), r.tier) for r in results[:self._blocks]]

    def cancel(self) -> None:
        _check(_lib.kvtier_cancel(self._client._open(), self.number))


class Fetch:
    """An asynchronous fetch. The view's arrays must not be used for anything else until it has ended."""

    def __init__(self, client: Client, number: int, count: int, view: View) -> None:
        self._client, self.number, self._count, self._view = client, number, count, view
        self._ended = False

    def __del__(self) -> None:
        if not self._ended and self._client._handle is not None:
            _lib.kvtier_cancel(self._client._handle, self.number)  # before the view's arrays may go

    def wait_layer(self, layer: int, timeout_ms: int = 0) -> list[BlockResult]:
        """Until this layer and those before it are decoded: each block's result as of that layer. Raises Error when
        it has not ended in time; a block's failure is in its result."""
        results = (_abi.BlockResult * self._count)()
        for result in results:
            result.code = -1
        code = _lib.kvtier_wait_layer(self._client._open(), self.number, _u32(layer, "layer"), results, self._count,
                                      _u32(timeout_ms, "timeout_ms"))
        if results[0].code == -1:
            _check(code)
        return _block_results(results)

    def wait(self, timeout_ms: int = 0) -> None:
        """Until all layers are decoded. Raises Error for the first block that failed, too."""
        code = _lib.kvtier_wait(self._client._open(), self.number, None, 0, _u32(timeout_ms, "timeout_ms"))
        self._ended = code != Code.DEADLINE_EXCEEDED
        _check(code)

    def cancel(self) -> None:
        """Nothing writes to the view any more when this returns."""
        _check(_lib.kvtier_cancel(self._client._open(), self.number))


def _block_results(results: ctypes.Array[_abi.BlockResult]) -> list[BlockResult]:
    return [BlockResult(Code(r.code), Precision(r.precision), r.k_error, r.v_error) for r in results]


class Lease:
    """Pinned blocks; `with` releases them."""

    def __init__(self, model: Model, handle: ctypes.c_void_p) -> None:
        self._model = model
        self._handle: ctypes.c_void_p | None = handle

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()

    def release(self) -> None:
        """Never raises: a lease that has ended is released."""
        handle, self._handle = getattr(self, "_handle", None), None
        if handle is not None:
            _lib.kvtier_release(handle)

    def __len__(self) -> int:
        return int(_lib.kvtier_lease_count(self._handle))

    @property
    def tokens(self) -> int:
        return int(_lib.kvtier_lease_tokens(self._handle))

    def blocks(self) -> list[BlockInfo]:
        infos = []
        for i in range(len(self)):
            info = _abi.BlockInfo()
            _check(_lib.kvtier_lease_block(self._handle, i, ctypes.byref(info)))
            infos.append(BlockInfo(bytes(info.key), info.position, info.tokens, Precision(info.precision),
                                   info.served_from, info.image_bytes, info.k_error, info.v_error))
        return infos

    def fetch(self, view: View, first: int = 0, count: int | None = None, layers: range | None = None) -> list[BlockResult]:
        """Decodes blocks into the view, token 0 of block `first` at its first token. `layers` is a run of at least one, None
        is all. A block that fails has its own result; only bad arguments raise."""
        count = self._range(view, first, count)
        chosen = range(self._model.spec.layers) if layers is None else layers
        if not isinstance(chosen, range):
            raise TypeError(f"layers is a range, not {type(chosen).__name__}")
        if chosen.step != 1 or not 0 <= chosen.start < chosen.stop <= self._model.spec.layers:
            raise ValueError(f"{chosen} is no run of at least one of the {self._model.spec.layers} layers")
        results = (_abi.BlockResult * count)()
        for result in results:
            result.code = -1
        code = _lib.kvtier_fetch(self._handle, first, count, chosen.start, len(chosen), ctypes.byref(view.struct), results)
        if results[0].code == -1 or code == Code.INVALID_ARGUMENT:
            _check(code)
        if code in MISSES:
            self._model._client._open()  # else it was no miss
        return _block_results(results)

    def fetch_async(self, view: View, first: int = 0, count: int | None = None) -> Fetch:
        count = self._range(view, first, count)
        number = ctypes.c_uint64()
        _check(_lib.kvtier_fetch_async(self._handle, first, count, 0, 0, ctypes.byref(view.struct), ctypes.byref(number)))
        return Fetch(self._model._client, number.value, count, view)

    def _range(self, view: View, first: int, count: int | None) -> int:
        if self._handle is None:
            raise ValueError("the lease is released")
        self._model._client._open()
        if not view.writable:
            raise ValueError("the view's arrays are read-only")
        held = self.blocks()
        count = len(held) - first if count is None else count
        if first < 0 or count < 1 or first + count > len(held):
            raise ValueError(f"blocks [{first}, {first + count}) are not in the lease, which has {len(held)}")
        tokens = sum(block.tokens for block in held[first:first + count])
        self._model._check_room(view, tokens)
        view.check_pages_differ(tokens)
        return count


class Model:
    """A registered model."""

    def __init__(self, client: Client, handle: ctypes.c_void_p, spec: ModelSpec) -> None:
        self._client, self._handle, self.spec = client, handle, spec

    def namespace(self) -> bytes:
        digest = _abi.Key()
        _check(_lib.kvtier_model_namespace(self._handle, digest))
        return bytes(digest)

    def keys(self, tokens: Any) -> Blocks:
        """Of the sequence from its first token: full blocks, then a tail block for the rest. Pure hashing. Errors: TypeError for
        what are no whole numbers, bytes among them; ValueError for several sequences."""
        if isinstance(tokens, (bytes, bytearray)):
            raise TypeError("tokens are whole numbers, and bytes might be numbers of any size: array.array says which")
        if getattr(tokens, "ndim", 1) != 1:
            raise ValueError(f"tokens are one sequence, not an array of {tokens.ndim} axes")
        ids = array.array("i", tokens)
        values = (ctypes.c_int32 * len(ids)).from_buffer(ids) if ids else (ctypes.c_int32 * 0)()
        capacity = -(-len(ids) // (self.spec.tokens_per_block or 128))
        refs = (_abi.BlockRef * capacity)()
        count = ctypes.c_size_t()
        _check(_lib.kvtier_keys(self._handle, values, len(ids), refs, capacity, ctypes.byref(count)))
        return Blocks(refs, values)

    def foreign_key(self, engine_hash: bytes) -> bytes:
        """The key of a full block for engines with chained hashes of their own."""
        if not isinstance(engine_hash, bytes):
            raise TypeError(f"an engine's hash is bytes, not {type(engine_hash).__name__}")
        key = _abi.Key()
        _check(_lib.kvtier_foreign_key(self._handle, engine_hash, len(engine_hash), key))
        return bytes(key)

    def foreign_blocks(self, engine_hashes: SequenceOf[bytes], parent_hash: bytes | None = None,
                       first_block: int = 0) -> Blocks:
        """Full blocks by an engine's own chained hashes; `parent_hash` is that of the block before them."""
        size = self.spec.tokens_per_block or 128
        whole((first_block + len(engine_hashes)) * size, ctypes.c_uint64, "the position of the last block")
        whole(first_block, ctypes.c_uint64, "first_block")
        parent = self.namespace() if parent_hash is None else self.foreign_key(parent_hash)
        refs = (_abi.BlockRef * len(engine_hashes))()
        for i, engine_hash in enumerate(engine_hashes):
            key = self.foreign_key(engine_hash)
            refs[i] = _abi.BlockRef(key=_abi.Key(*key), parent=_abi.Key(*parent), position=(first_block + i) * size,
                                    tokens=size)
            parent = key
        return Blocks(refs, (ctypes.c_int32 * 0)())

    def lookup(self, blocks: Blocks, timeout_ms: int = 0, before_last_token: bool = False) -> Lookup:
        """Never pins, never moves. A miss, which a daemon that is away is too, has 0 tokens."""
        matches = (_abi.Match * len(blocks))()
        result = _abi.LookupResult()
        code = _lib.kvtier_lookup(self._handle, ctypes.byref(blocks._query(before_last_token)), matches,
                                  ctypes.byref(result), _u32(timeout_ms, "timeout_ms"))
        if code in MISSES:
            self._client._open()  # else it was no miss
            return Lookup(0, 0, ())
        _check(code)
        found = tuple(Match(Precision(match.precision), match.tier) for match in matches[:result.blocks])
        return Lookup(result.tokens, result.tail_tokens, found)

    def acquire(self, blocks: Blocks, *, min_precision: Precision = Precision.ANY, ttl_ms: int = 0, timeout_ms: int = 0,
                before_last_token: bool = False, max_block_bytes: int = 0) -> Lease | None:
        """Pins what hits, which may be a shorter run. None is a miss, which a daemon that is away is too."""
        options = _abi.sized(_abi.AcquireOptions, min_precision=int(min_precision), ttl_ms=ttl_ms, timeout_ms=timeout_ms,
                             max_block_bytes=max_block_bytes)
        handle = ctypes.c_void_p()
        code = _lib.kvtier_acquire(self._handle, ctypes.byref(blocks._query(before_last_token)), ctypes.byref(options),
                                   ctypes.byref(handle))
        if code in MISSES:
            self._client._open()  # else it was no miss
            return None
        _check(code)
        return Lease(self, handle)

    def put(self, blocks: Blocks, view: View, *, durability: Durability = Durability.MEMORY,
            floor: Precision = Precision.ANY, priority: int = 0, ttl_ms: int = 0, timeout_ms: int = 0) -> Ticket:
        """Copies the blocks out of the view, token 0 of the first at its first token; when it returns the arrays may be
        overwritten."""
        self._check_room(view, blocks.tokens)
        options = _abi.sized(_abi.PutOptions, durability=int(durability), floor=int(floor), priority=priority,
                             ttl_ms=ttl_ms, timeout_ms=timeout_ms)
        number = ctypes.c_uint64()
        _check(_lib.kvtier_put(self._handle, ctypes.byref(blocks._query()), ctypes.byref(view.struct),
                               ctypes.byref(options), ctypes.byref(number)))
        return Ticket(self._client, number.value, len(blocks))

    def prefetch(self, blocks: Blocks, tier: int, timeout_ms: int = 0) -> Ticket:
        """Starts moving blocks up to `tier`."""
        number, started = ctypes.c_uint64(), ctypes.c_uint32()
        _check(_lib.kvtier_prefetch(self._handle, ctypes.byref(blocks._query()), _u32(tier, "tier"),
                                    _u32(timeout_ms, "timeout_ms"), ctypes.byref(number), ctypes.byref(started)))
        return Ticket(self._client, number.value, 0)

    def remove(self, blocks: Blocks, timeout_ms: int = 0) -> int:
        """Forgets blocks; how many there were."""
        removed = ctypes.c_uint64()
        _check(_lib.kvtier_remove(self._handle, ctypes.byref(blocks._query()), ctypes.byref(removed),
                                  _u32(timeout_ms, "timeout_ms")))
        return removed.value

    def clear(self, timeout_ms: int = 0) -> int:
        removed = ctypes.c_uint64()
        _check(_lib.kvtier_clear(self._handle, ctypes.byref(removed), _u32(timeout_ms, "timeout_ms")))
        return removed.value

    def _check_room(self, view: View, tokens: int) -> None:
        view.check_room(layers=self.spec.layers, kv_heads=self.spec.kv_heads, k_dim=self.spec.k_dim,
                        v_dim=self.spec.v_dim, tokens=tokens)


class Client:
    """A connection to kvtierd; `with` closes it."""

    _MAX_COMPLETIONS = 256

    def __init__(self, socket: str | os.PathLike[str] | None = None, *, name: str | None = None, timeout_ms: int = 0,
                 fetch_threads: int = 0) -> None:
        """`socket`: None is $KVTIER_SOCKET, else /run/kvtier/kvtierd.sock. Raises Error when no daemon answers."""
        self._handle: ctypes.c_void_p | None = None
        path = os.fspath(socket) if isinstance(socket, os.PathLike) else socket
        options = _abi.sized(_abi.Options, socket=text(path, "socket"), client_name=text(name, "name"),
                             timeout_ms=timeout_ms, fetch_threads=fetch_threads)
        handle = ctypes.c_void_p()
        _check(_lib.kvtier_open(ctypes.byref(options), ctypes.byref(handle)))
        self._handle = handle

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        handle, self._handle = getattr(self, "_handle", None), None
        if handle is not None:
            _lib.kvtier_close(handle)

    def _open(self) -> ctypes.c_void_p:
        """Errors: Error after close, which is no miss: nothing would ever hit again."""
        if self._handle is None:
            raise Error(Code.FAILED_PRECONDITION, "the client is closed")
        return self._handle

    def register_model(self, spec: ModelSpec) -> Model:
        handle = ctypes.c_void_p()
        _check(_lib.kvtier_register_model(self._open(), ctypes.byref(spec._to_c()), ctypes.byref(handle)))
        return Model(self, handle, spec)

    def completion_fd(self) -> int:
        """An eventfd that is readable while `completed` has something to tell; for select and event loops."""
        fd = ctypes.c_int()
        _check(_lib.kvtier_completion_fd(self._open(), ctypes.byref(fd)))
        return fd.value

    def completed(self) -> list[int]:
        """Numbers of tickets and fetches that have ended since; each is told once."""
        numbers, count = (ctypes.c_uint64 * self._MAX_COMPLETIONS)(), ctypes.c_size_t()
        _check(_lib.kvtier_completed(self._open(), numbers, len(numbers), ctypes.byref(count)))
        return list(numbers[:count.value])

    def stats(self, timeout_ms: int = 0) -> Stats:
        out = _abi.sized(_abi.Stats)
        _check(_lib.kvtier_get_stats(self._open(), ctypes.byref(out), _u32(timeout_ms, "timeout_ms")))
        tiers = tuple(
            Tier(tier.name.decode(), tier.medium.decode(), tier.codec.decode(), tier.capacity_bytes, tier.used_bytes,
                 {precision: tier.blocks[precision] for precision in Precision if precision}, bool(tier.accepts_writes))
            for tier in out.tier[:out.tiers])
        return Stats(tiers, out.blocks, out.leases, out.sessions, out.models, tuple(out.boot_id))
