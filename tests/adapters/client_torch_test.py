"""The Python package with torch tensors: no copy is made, in every type and whatever the strides."""

import pytest

from conftest import needs

needs("torch")
import torch

LAYERS, HEADS, DIM, TOKENS = 2, 2, 64, 300


@pytest.fixture
def register(module_daemon):
    import kvtier

    with kvtier.Client(module_daemon.socket, timeout_ms=20000) as client:
        def make(name, dtype):
            return client.register_model(
                kvtier.ModelSpec(name, layers=LAYERS, kv_heads=HEADS, k_dim=DIM, v_dim=DIM, dtype=dtype))
        yield make


def random_kv(dtype):
    return torch.randn((LAYERS, 2, HEADS, TOKENS, DIM), generator=torch.Generator().manual_seed(1)).to(dtype)


def test_a_view_has_the_tensor_s_own_memory():
    import kvtier

    big = torch.zeros((LAYERS, HEADS, TOKENS + 5, 2, DIM + 8), dtype=torch.bfloat16)
    part = big[:, :, 3:TOKENS, :, 4:DIM]
    view = kvtier.View(part, "lhtcd")
    assert view.struct.bases[0] == part.data_ptr() != big.data_ptr()
    assert view.struct.token_stride == part.stride(2) * 2 and view.struct.channel_stride == 2
    keys = [torch.zeros((1, HEADS, TOKENS, DIM), dtype=torch.float16, requires_grad=True) for _ in range(LAYERS)]
    values = [torch.zeros((1, HEADS, TOKENS, DIM), dtype=torch.float16) for _ in range(LAYERS)]
    view = kvtier.View(keys, "1htd", v=values)
    assert [view.struct.bases[i] for i in range(LAYERS)] == [key.data_ptr() for key in keys]
    assert [view.struct.v_bases[i] for i in range(LAYERS)] == [value.data_ptr() for value in values]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_what_was_put_comes_back_bit_for_bit(register, dtype):
    import kvtier

    types = {"float16": kvtier.DType.FP16, "bfloat16": kvtier.DType.BF16, "float8_e4m3fn": kvtier.DType.FP8_E4M3,
             "float8_e5m2": kvtier.DType.FP8_E5M2}
    model, kv = register(dtype, types[dtype]), random_kv(getattr(torch, dtype))
    source, out = kv.clone(), torch.zeros_like(kv)
    blocks = model.keys(range(TOKENS))
    ticket = model.put(blocks, kvtier.View(source, "lchtd"))
    source.view(torch.uint8).fill_(3)
    assert all(result.stored for result in ticket.wait(20000))
    with model.acquire(blocks) as lease:
        assert all(result.ok for result in lease.fetch(kvtier.View(out, "lchtd")))
        turned = torch.zeros((LAYERS, TOKENS, HEADS, 2, DIM), dtype=kv.dtype)
        lease.fetch(kvtier.View(turned, "lthcd"))
    assert torch.equal(out.view(torch.uint8), kv.view(torch.uint8))
    assert torch.equal(turned.permute(0, 3, 2, 1, 4).contiguous().view(torch.uint8), kv.view(torch.uint8))


def test_bf16_is_read_as_fp32(register):
    import kvtier

    model, kv = register("wide", kvtier.DType.BF16), random_kv(torch.bfloat16)
    blocks, wide = model.keys(range(TOKENS)), torch.zeros((LAYERS, 2, HEADS, TOKENS, DIM))
    model.put(blocks, kvtier.View(kv, "lchtd")).wait(20000)
    with model.acquire(blocks) as lease:
        lease.fetch(kvtier.View(wide, "lchtd"))
    assert torch.equal(wide, kv.float())


def test_tensors_that_cannot_be(register):
    import kvtier

    with pytest.raises(ValueError, match="none of FP16"):
        kvtier.View(torch.zeros((LAYERS, 2, HEADS, TOKENS, DIM), dtype=torch.float64), "lchtd")
    with pytest.raises((ValueError, NotImplementedError, RuntimeError, BufferError)):
        kvtier.View(torch.zeros((LAYERS, 2, HEADS, TOKENS, DIM), dtype=torch.float16, device="meta"), "lchtd")
    for lazy in (torch._neg_view(random_kv(torch.float16)), torch.view_as_complex(torch.zeros((2, 2))).conj().imag,
                 torch._efficientzerotensor((LAYERS, 2, HEADS, TOKENS, DIM), dtype=torch.float16)):
        with pytest.raises(ValueError, match="lazy"):
            kvtier.View(lazy, "lchtd")
    for other in ("bfloat16", "float8_e4m3fnuz", "bool"):
        with pytest.raises(ValueError, match="type of their own"):
            kvtier.View(random_kv(getattr(torch, other)), "lchtd", dtype=kvtier.DType.FP16)
    assert kvtier.View(random_kv(torch.int16), "lchtd", dtype=kvtier.DType.BF16).struct.dtype == kvtier.DType.BF16
