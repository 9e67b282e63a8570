"""Client of kvtierd, the tiered KV-cache memory manager: a thin layer over the C ABI of libkvtier.

    with kvtier.Client() as client:
        model = client.register_model(kvtier.ModelSpec("my-model", layers=4, kv_heads=2, k_dim=64, v_dim=64))
        blocks = model.keys(token_ids)
        lease = model.acquire(blocks)
        if lease is None:                     # a miss: compute, then
            model.put(blocks, kvtier.View(kv, "lchtd")).wait()
        else:
            with lease:
                results = lease.fetch(kvtier.View(kv, "lchtd"))
"""

from ._abi import Code, DType, Durability, Precision
from ._client import (MISSES, BlockInfo, BlockResult, Blocks, Client, Error, Fetch, Lease, Lookup, Match, Model, ModelSpec,
                      PutResult, Stats, Ticket, Tier, library_version)
from ._view import View

__version__ = "0.1.0"
__all__ = [
    "MISSES", "BlockInfo", "BlockResult", "Blocks", "Client", "Code", "DType", "Durability", "Error", "Fetch", "Lease",
    "Lookup", "Match", "Model", "ModelSpec", "Precision", "PutResult", "Stats", "Ticket", "Tier", "View", "library_version",
]
