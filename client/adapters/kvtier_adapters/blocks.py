"""What the adapters share: names of models, chunks of an engine as blocks, and a daemon that may be away.

An engine must go on whatever happens here: every call ends by its deadline, and what cannot be had is a miss."""

from __future__ import annotations

import hashlib
import json
import logging
import pathlib
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import kvtier

logger = logging.getLogger("kvtier")

HASH_BYTES = 32  # of an engine's hash of tokens, at least: what is shorter may collide
DTYPES = {"float16": kvtier.DType.FP16, "bfloat16": kvtier.DType.BF16}


@dataclass(frozen=True)
class Settings:
    """Options of every adapter, under "kvtier" in the engine's own configuration."""

    socket: str | None = None  # None: $KVTIER_SOCKET, else /run/kvtier/kvtierd.sock
    revision: str = ""  # of the weights, for models that are not from a hub
    timeout_ms: int = 20  # of a lookup, which may be on an engine's scheduler thread
    transfer_timeout_ms: int = 2000  # of a load or a save, on threads of the adapter
    retry_ms: int = 1000  # pause after a call that found no daemon or had no answer in time
    min_precision: str = "ANY"  # lowest that a load accepts: ANY, INT2, K4V2, INT4, BITS8, BITS16
    floor: str = "ANY"  # lowest that blocks of this model go down to
    max_staged_mib: int = 512  # of saves that wait; beyond that they are dropped

    @classmethod
    def of(cls, options: Mapping[str, Any] | None) -> Settings:
        """Errors: ValueError for an option that there is not, or of a wrong kind."""
        known = {field.name: field for field in fields(cls)}
        require(options is None or isinstance(options, Mapping),
                f"options are names with values, not a {type(options).__name__}")
        for name, value in (options or {}).items():
            if name not in known:
                raise ValueError(f"kvtier: unknown option {name!r}; there are: {', '.join(known)}")
            if name in ("min_precision", "floor"):
                if not isinstance(value, str) or value not in kvtier.Precision.__members__:
                    raise ValueError(f"kvtier: {name} is one of {', '.join(kvtier.Precision.__members__)}")
            elif known[name].type == "int":
                require(is_count(value), f"{name} is a whole number of at least 1")
            elif not (name == "socket" and value is None):
                require(is_text(value), f"{name} is a text")
        return cls(**(options or {}))


def require(condition: bool, what: str) -> None:
    """Errors: ValueError when it does not hold."""
    if not condition:
        raise ValueError(f"kvtier: {what}")


def is_count(value: Any) -> bool:
    """A whole number that is one in C, too."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 1 << 31


def is_text(value: Any) -> bool:
    """A text that is one in C, too."""
    return isinstance(value, str) and "\0" not in value


def dtype_of(name: Any) -> kvtier.DType:
    """Of a torch dtype or its name. Errors: ValueError for what is neither FP16 nor BF16."""
    plain = str(name).removeprefix("torch.")
    if plain not in DTYPES:
        raise ValueError(f"kvtier: a KV cache of {plain} is not supported by this adapter, only of {' and '.join(DTYPES)}")
    return DTYPES[plain]


def digest_of(facts: Mapping[str, Any]) -> str:
    """Of everything that changes K and V besides model id, revision, shape and tokens. Errors: TypeError for a value that
    is not plain data, whose text might differ from process to process."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def model_config_facts(config: Any) -> dict[str, Any]:
    """Of a transformers model configuration: all of it but what says where it came from. `config` has to_json_string."""
    facts = json.loads(config.to_json_string(use_diff=False))
    for name in ("_name_or_path", "_commit_hash", "transformers_version"):
        facts.pop(name, None)
    return facts


def folder_revision(path: str) -> str:
    """A revision for a model in a local folder, which has no other: names, sizes and times of its files. "" for what is no
    folder. A copy of the folder is another revision, which costs misses and never a wrong hit."""
    folder = pathlib.Path(path)
    if not folder.is_dir():
        return ""
    files = sorted((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in folder.iterdir() if file.is_file())
    return digest_of({"files": files})


def chunk_tokens_per_block(tokens: int) -> int:
    """tokens_per_block for an engine's chunks of `tokens`. Errors: ValueError for sizes that are no whole blocks."""
    for tokens_per_block in (128, 64):
        if tokens > 0 and tokens % tokens_per_block == 0:
            return tokens_per_block
    raise ValueError(f"kvtier: chunks of {tokens} tokens are not whole blocks of 64 or 128 tokens")


class Breaker:
    """Keeps calls away from a daemon that has just not answered. Any thread."""

    def __init__(self, retry_ms: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._retry_s, self._clock, self._closed_until = retry_ms / 1000, clock, float("-inf")

    def allows(self) -> bool:
        return self._clock() >= self._closed_until

    def trip(self) -> None:
        self._closed_until = self._clock() + self._retry_s


class Store:
    """The blocks of one model, for an engine that computes what is not here. Nothing raises but a wrong use: no daemon, a
    late, full or restarted one, and blocks that are gone or damaged are all misses. Threads: any. The connection is made
    at the first use, so that a process may fork before, and may take `connect_timeout_ms`, else as long as a transfer."""

    def __init__(self, spec: kvtier.ModelSpec, settings: Settings, clock: Callable[[], float] = time.monotonic,
                 connect_timeout_ms: int | None = None) -> None:
        # Else the daemon would refuse each registration, and all would be misses.
        require(spec.k_dim % 16 == 0 and spec.v_dim % 16 == 0,
                f"heads of {spec.k_dim} and {spec.v_dim} channels are not supported, only of multiples of 16")
        self.spec, self._settings, self._clock = spec, settings, clock
        self._connect_timeout_ms = connect_timeout_ms or settings.transfer_timeout_ms
        self._min_precision = kvtier.Precision[settings.min_precision]
        self._breaker = Breaker(settings.retry_ms, clock)
        self._lock = threading.Lock()
        self._client: kvtier.Client | None = None
        self._model: kvtier.Model | None = None
        self._closed = False

    @property
    def tokens_per_block(self) -> int:
        return self.spec.tokens_per_block

    def close(self) -> None:
        with self._lock:
            client, self._client, self._model, self._closed = self._client, None, None, True
        if client is not None:
            client.close()

    def chain(self, hashes: Sequence[bytes], parent: bytes | None = None, first_block: int = 0) -> kvtier.Blocks | None:
        """Full blocks of a sequence by the engine's own chained hashes. None: no daemon has been seen yet, or closed."""
        return self._named(lambda model: model.foreign_blocks(list(hashes), parent, first_block))

    def chunk(self, name: bytes, blocks: int) -> kvtier.Blocks | None:
        """The blocks of one chunk, named by the engine's hash of it and all before it. Each chunk is a chain of its own,
        since an engine that asks for one does not say which came before."""
        return self.chain([name + i.to_bytes(4, "big") for i in range(blocks)])

    def keys(self, tokens: Sequence[int]) -> kvtier.Blocks | None:
        """Blocks of a sequence by its tokens. None: as of chain."""
        return self._named(lambda model: model.keys(tokens))

    def lookup(self, blocks: kvtier.Blocks | None, before_last_token: bool = False, timeout_ms: int | None = None) -> int:
        """Tokens of the unbroken run that hits. `timeout_ms`: where less is left than the option says."""
        def ask(model: kvtier.Model) -> int:
            return model.lookup(blocks, timeout_ms or self._settings.timeout_ms, before_last_token).tokens
        # A call that had less than the option's time says nothing of the daemon when it has none left.
        return 0 if blocks is None else self._call(ask, self._settings.timeout_ms, 0)

    def acquire(self, blocks: kvtier.Blocks | None, before_last_token: bool = False, ttl_ms: int = 0) -> kvtier.Lease | None:
        def ask(model: kvtier.Model) -> kvtier.Lease | None:
            return model.acquire(blocks, min_precision=self._min_precision, ttl_ms=ttl_ms,
                                 timeout_ms=self._settings.transfer_timeout_ms, before_last_token=before_last_token)
        return None if blocks is None else self._call(ask, self._settings.transfer_timeout_ms, None)

    def load(self, blocks: kvtier.Blocks | None, view: kvtier.View) -> list[bool]:
        """Fetches into the view; for each block whether it is there. The bytes of others are invalid."""
        if blocks is None:
            return []
        loaded: list[bool] = []
        lease = self.acquire(blocks)
        if lease is not None:
            with lease:
                loaded = self.fetch(lease, view)
        return (loaded + [False] * len(blocks))[:len(blocks)]

    def fetch(self, lease: kvtier.Lease, view: kvtier.View) -> list[bool]:
        def ask(model: kvtier.Model) -> list[bool]:
            return [result.ok for result in lease.fetch(view)]
        # Decoding is the caller's own work: its time says nothing of the daemon.
        return self._call(ask, None, [])

    def save(self, blocks: kvtier.Blocks | None, view: kvtier.View) -> bool:
        """Copies the blocks out of the view and lets the daemon store them; when it returns the arrays may be
        overwritten. True: all were taken, False: dropped, at least in part."""
        def ask(model: kvtier.Model) -> bool:
            model.put(blocks, view, timeout_ms=self._settings.transfer_timeout_ms)
            return True
        return False if blocks is None else self._call(ask, self._settings.transfer_timeout_ms, False)

    def _connected(self) -> kvtier.Model | None:
        model = self._model
        if model is not None or not self._breaker.allows():
            return model
        with self._lock:
            if self._model is None and not self._closed and self._breaker.allows():
                try:
                    if self._client is None:
                        self._client = kvtier.Client(self._settings.socket, name="kvtier-adapters",
                                                     timeout_ms=self._connect_timeout_ms)
                    self._model = self._client.register_model(self.spec)
                    logger.info("kvtier: connected, model %s", self.spec.model_id)
                except kvtier.Error as error:
                    self._breaker.trip()
                    log = logger.debug if error.code in kvtier.MISSES else logger.error
                    log("kvtier: no connection: %s", error)
            return self._model

    def _named(self, name: Callable[[kvtier.Model], kvtier.Blocks]) -> kvtier.Blocks | None:
        model = self._connected()
        try:
            return None if model is None else name(model)
        except kvtier.Error:
            if not self._closed:
                raise
            return None  # closed since it was asked for

    def _call(self, ask: Callable[[kvtier.Model], Any], timeout_ms: int | None, miss: Any) -> Any:
        model = self._connected()
        if model is None or not self._breaker.allows():
            return miss
        start = self._clock()
        try:
            return ask(model)
        except kvtier.Error as error:
            log = logger.debug if error.code in kvtier.MISSES else logger.warning
            log("kvtier: a miss: %s", error)
            return miss
        finally:
            # A miss for want of an answer looks like any other but for the time that it took.
            if timeout_ms is not None and (self._clock() - start) * 1000 >= 0.9 * timeout_ms:
                self._breaker.trip()


class Background:
    """Threads of an adapter with a bounded queue of jobs. Threads: any may submit."""

    def __init__(self, name: str, threads: int = 1, capacity: int = 1024, max_bytes: int = 1 << 62) -> None:
        self._jobs: queue.Queue[tuple[Callable[[], None], int] | None] = queue.Queue(capacity)
        self._max_bytes, self._bytes, self._pending = max_bytes, 0, 0
        self._idle = threading.Condition()
        self._threads = [threading.Thread(target=self._run, name=f"kvtier-{name}-{i}", daemon=True) for i in range(threads)]
        self._stopped = False
        for thread in self._threads:
            thread.start()

    def submit(self, job: Callable[[], None], job_bytes: int = 0) -> bool:
        """False: full or stopped; the job is not done. A job may be larger than all of the room when nothing waits."""
        with self._idle:
            if not self._takes(job_bytes):
                return False
            self._jobs.put_nowait((job, job_bytes))
            self._bytes += job_bytes
            self._pending += 1
            return True

    def has_room(self, job_bytes: int) -> bool:
        """Whether submit would take such a job now; where one thread submits, also when it does."""
        with self._idle:
            return self._takes(job_bytes)

    def _takes(self, job_bytes: int) -> bool:
        return not (self._stopped or self._jobs.full() or (self._bytes > 0 and self._bytes + job_bytes > self._max_bytes))

    def drain(self, timeout_s: float | None = None) -> bool:
        """Until what was submitted is done."""
        with self._idle:
            return self._idle.wait_for(lambda: self._pending == 0, timeout_s)

    def stop(self, timeout_s: float = 5) -> None:
        """Ends when the jobs have, or in time."""
        with self._idle:
            if self._stopped:
                return
            self._stopped = True
        self.drain(timeout_s)
        for _ in self._threads:
            try:
                self._jobs.put_nowait(None)
            except queue.Full:
                return  # they are daemon threads, and one hangs
        for thread in self._threads:
            thread.join(timeout_s)

    def _run(self) -> None:
        while (entry := self._jobs.get()) is not None:
            job, job_bytes = entry
            try:
                job()
            except Exception:
                logger.exception("kvtier: a job of an adapter failed")
            finally:
                del job, entry
                with self._idle:
                    self._bytes -= job_bytes
                    self._pending -= 1
                    self._idle.notify_all()
