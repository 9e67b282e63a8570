"""The plane family of codecs and kv8 (codecs/FORMAT.md) in numpy: the independent check of the C++ code.

Written from the format alone, for clarity and not for speed. One layer at a time: K is [heads, tokens, k_dim] and V is
[heads, tokens, v_dim], both float16. Products and sums that the format rounds once are formed in float64, where they
are exact, and rounded to float32 then.
"""

from dataclasses import dataclass, field

import numpy as np

CODECS = ("raw16", "kv8", "kv4p", "kv42", "kv2p")
F16_MAX = np.float32(65504)


def default_nb(k_dim):
    """Half of the channels, in multiples of four."""
    return 4 * (k_dim // 8)


def up16(x):
    """float32 to float16 toward +infinity."""
    half = x.astype(np.float16)
    below = half.astype(np.float32) < x
    with np.errstate(over="ignore"):  # beyond the largest comes infinity
        return np.where(below, np.nextafter(half, np.float16(np.inf)), half)


def out16(x):
    return np.clip(x.astype(np.float32), -F16_MAX, F16_MAX).astype(np.float16)


def fma32(a, b, c):
    """One rounding: exact in float64 for these operands, then to float32."""
    return (np.float64(a) * np.float64(b) + np.float64(c)).astype(np.float32)


def rotate(v):
    """H64 v / 8 over the last axis, fp32 butterflies at distances 1, 2, 4 .. 32."""
    y = v.astype(np.float32)
    shape = y.shape
    h = 1
    while h < 64:
        pairs = y.reshape(shape[:-1] + (64 // (2 * h), 2, h))
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        y = np.stack([a + b, a - b], axis=-2).reshape(shape)
        h *= 2
    return y * np.float32(0.125)


def sylvester(n):
    h = np.array([[1]], dtype=np.int64)
    while h.shape[0] < n:
        h = np.block([[h, h], [h, -h]])
    return h


H64 = sylvester(64)


def pack_plane(codes, shift):
    """[..., n] codes to [..., n / 4] bytes: tiles of 64, the last one smaller."""
    parts = []
    for first in range(0, codes.shape[-1], 64):
        tile = codes[..., first:first + 64] >> shift & 3
        quarter = tile.shape[-1] // 4
        quarters = tile.reshape(tile.shape[:-1] + (4, quarter))
        parts.append(sum(quarters[..., k, :] << 2 * k for k in range(4)))
    return np.concatenate(parts, axis=-1).astype(np.uint8)


def unpack_plane(plane, n, shift):
    parts = []
    for first in range(0, n, 64):
        quarter = min(64, n - first) // 4
        tile = plane[..., first // 4:first // 4 + quarter].astype(np.int64)
        parts.append(np.concatenate([(tile >> 2 * k & 3) << shift for k in range(4)], axis=-1))
    return np.concatenate(parts, axis=-1)


@dataclass
class Layer:
    """One layer in the plane family with everything kept; `sections` picks what a codec stores."""
    tokens: int
    nraw: int
    nb: int
    k_scale: np.ndarray  # float16 [heads, k_dim]
    k_min: np.ndarray
    v_scale: np.ndarray  # uint8 [heads, padded tokens, groups]
    k_raw: np.ndarray    # float16 [heads, nraw, k_dim]
    v_raw: np.ndarray
    k_codes: np.ndarray  # 0..15 [heads, padded tokens, k_dim]
    v_codes: np.ndarray
    boost: np.ndarray = field(default=None)  # [heads, nb], ascending

    def sections(self, codec):
        """The bytes of all sections that `codec` stores, in order, without padding."""
        out = [self.k_scale, self.k_min, self.v_scale, self.k_raw, self.v_raw,
               pack_plane(self.k_codes, 2), pack_plane(self.v_codes, 2)]
        if codec == "kv2p" and self.nb > 0:
            gathered = np.take_along_axis(self.k_codes, self.boost[:, None, :], axis=2)
            out += [self.boost.astype(np.uint8), pack_plane(gathered, 0)]
        if codec in ("kv4p", "kv42"):
            out.append(pack_plane(self.k_codes, 0))
        if codec == "kv4p":
            out.append(pack_plane(self.v_codes, 0))
        return b"".join(a.tobytes() for a in out)


def encode_k(k, nraw, steps=15):
    """Scales, minima and codes of K per (head, channel) over tokens >= nraw."""
    heads, tokens, k_dim = k.shape
    codes = np.zeros(k.shape, dtype=np.int64)
    zeros = np.zeros((heads, k_dim), dtype=np.float16)
    x = k[:, nraw:].astype(np.float32)
    if x.shape[1] == 0:
        return zeros, zeros, codes
    low, high = x.min(axis=1), x.max(axis=1)
    minimum = low.astype(np.float16)
    minimum[minimum == 0] = 0  # also -0
    scale = ((high - low) / np.float32(steps)).astype(np.float16)
    scale[scale == 0] = 0
    s = scale.astype(np.float32)[:, None]
    with np.errstate(divide="ignore"):
        inverse = np.where(s > 0, np.float32(1) / s, np.float32(0)).astype(np.float32)
    quotient = (x - minimum.astype(np.float32)[:, None]) * inverse
    codes[:, nraw:] = np.clip(np.rint(quotient), 0, steps).astype(np.int64)
    return scale, minimum, codes


def encode_v(v, nraw):
    """Scale bytes and codes of V per (head, token, group of 64 channels)."""
    heads, tokens, v_dim = v.shape
    groups = (v_dim + 63) // 64
    scale_bytes = np.zeros((heads, tokens, groups), dtype=np.uint8)
    codes = np.zeros(v.shape, dtype=np.int64)
    for group in range(groups):
        channels = slice(64 * group, min(64 * group + 64, v_dim))
        x = v[:, nraw:, channels].astype(np.float32)
        y = rotate(x) if x.shape[-1] == 64 else x
        largest = np.abs(y).max(axis=-1)
        bits = up16(largest / np.float32(8)).view(np.uint16).astype(np.int64)
        e = np.minimum(247, (bits + 127) >> 7)
        s = (e << 7).astype(np.uint16).view(np.float16).astype(np.float32)
        with np.errstate(divide="ignore"):
            inverse = np.where(s > 0, np.float32(1) / s, np.float32(0)).astype(np.float32)
        scale_bytes[:, nraw:, group] = e
        codes[:, nraw:, channels] = np.clip(np.floor(y * inverse[..., None]) + 8, 0, 15).astype(np.int64)
    return scale_bytes, codes


def choose_boost(scale, nb):
    """The nb channels of each head with the largest scales, ties to the lower channel, ascending."""
    order = np.argsort(-scale.astype(np.float64), axis=1, kind="stable")
    return np.sort(order[:, :nb], axis=1)


def encode(k, v, nraw, nb):
    tokens = k.shape[1]
    padding = -tokens % 4
    if padding:
        k = np.concatenate([k] + [k[:, -1:]] * padding, axis=1)
        v = np.concatenate([v] + [v[:, -1:]] * padding, axis=1)
    k_scale, k_min, k_codes = encode_k(k, nraw)
    v_scale, v_codes = encode_v(v, nraw)
    return Layer(tokens, nraw, nb, k_scale, k_min, v_scale, k[:, :nraw].copy(), v[:, :nraw].copy(), k_codes, v_codes,
                 choose_boost(k_scale, nb))


def decode_k(layer, codec):
    s = layer.k_scale.astype(np.float32)[:, None]
    m = layer.k_min.astype(np.float32)[:, None]
    int4 = out16(fma32(layer.k_codes, s, m))
    if codec != "kv2p":
        return int4
    int2 = out16(fma32(layer.k_codes >> 2, np.float32(4) * s, fma32(np.float32(1.5), s, m)))
    boosted = np.zeros(layer.k_scale.shape, dtype=bool)
    np.put_along_axis(boosted, layer.boost, True, axis=1)
    return np.where(boosted[:, None], int4, int2)


def decode_v(layer, codec):
    z = 2 * layer.v_codes - 15 if codec == "kv4p" else 8 * (layer.v_codes >> 2) - 12
    out = np.zeros(z.shape, dtype=np.float16)
    for group in range(layer.v_scale.shape[-1]):
        channels = slice(64 * group, min(64 * group + 64, z.shape[-1]))
        s = (layer.v_scale[..., group].astype(np.uint16) << 7).view(np.float16).astype(np.float32)[..., None]
        part = z[..., channels]
        if part.shape[-1] == 64:
            value = ((part @ H64).astype(np.float64) * (s / np.float32(16))).astype(np.float32)
        else:
            value = (part * np.float64(s / np.float32(2))).astype(np.float32)
        out[..., channels] = np.where(s > 0, out16(value), np.float16(0))
    return out


def decode(layer, codec):
    """K and V as float16, without the padding tokens."""
    k, v = decode_k(layer, codec), decode_v(layer, codec)
    k[:, :layer.nraw], v[:, :layer.nraw] = layer.k_raw, layer.v_raw
    return k[:, :layer.tokens], v[:, :layer.tokens]


# kv8: K in 255 steps per channel, V in E4M3 per token.

def e4m3_values():
    """Values of the 127 finite E4M3 magnitudes, ascending, in float64."""
    codes = np.arange(127)
    exponent, mantissa = codes >> 3, codes & 7
    return np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0**(exponent - 10.0))


E4M3 = e4m3_values()


def e4m3_encode(x):
    """float32 to E4M3 codes: nearest, ties to the even code, saturating."""
    magnitude = np.minimum(np.abs(x.astype(np.float64)), E4M3[-1])
    upper = np.searchsorted(E4M3, magnitude)
    lower = np.maximum(upper - 1, 0)
    below, above = magnitude - E4M3[lower], E4M3[upper] - magnitude
    take_upper = (above < below) | ((above == below) & (upper % 2 == 0))
    return np.where(take_upper, upper, lower).astype(np.uint8) | (np.signbit(x).astype(np.uint8) << 7)


def e4m3_decode(codes):
    value = E4M3[codes & 127]
    return np.where(codes >= 128, -value, value).astype(np.float32)


@dataclass
class Kv8Layer:
    nraw: int
    k_scale: np.ndarray  # float16 [heads, k_dim]
    k_min: np.ndarray
    v_scale: np.ndarray  # float16 [heads, tokens]
    k_raw: np.ndarray    # float16 [heads, nraw, k_dim]
    v_raw: np.ndarray
    k_codes: np.ndarray  # uint8 [heads, tokens, k_dim]
    v_codes: np.ndarray  # E4M3 [heads, tokens, v_dim]

    def sections(self):
        parts = (self.k_scale, self.k_min, self.v_scale, self.k_raw, self.v_raw, self.k_codes, self.v_codes)
        return b"".join(a.tobytes() for a in parts)


def encode_kv8(k, v, nraw):
    k_scale, k_min, k_codes = encode_k(k, nraw, steps=255)
    x = v.astype(np.float32)
    scale = up16(np.abs(x).max(axis=-1) / np.float32(448))
    scale[:, :nraw] = 0
    s = scale.astype(np.float32)[..., None]
    with np.errstate(divide="ignore", invalid="ignore"):
        codes = e4m3_encode(np.where(s > 0, x / s, np.float32(0)))
    return Kv8Layer(nraw, k_scale, k_min, scale, k[:, :nraw].copy(), v[:, :nraw].copy(), k_codes.astype(np.uint8),
                    np.where(s > 0, codes, 0).astype(np.uint8))


def decode_kv8(layer):
    """K and V as float16."""
    s, m = layer.k_scale.astype(np.float32)[:, None], layer.k_min.astype(np.float32)[:, None]
    k = out16(fma32(layer.k_codes, s, m))
    v = out16(e4m3_decode(layer.v_codes) * layer.v_scale.astype(np.float32)[..., None])
    k[:, :layer.nraw], v[:, :layer.nraw] = layer.k_raw, layer.v_raw
    return k, v


def squares(x, decoded):
    """(sum of squared errors, sum of squares) in float64."""
    x, decoded = x.astype(np.float64), decoded.astype(np.float64)
    return float(((x - decoded) ** 2).sum()), float((x ** 2).sum())


def relative_rms(error, square):
    return 0.0 if error == 0 else min(float(np.sqrt(error / square)), float(F16_MAX))


def layer_errors(k, v, nraw, nb):
    """The four errors that an image stores: K int4, K int2 with boost, V int4, V int2."""
    layer = encode(k, v, nraw, nb)
    k4, v4 = decode(layer, "kv4p")
    k2, v2 = decode(layer, "kv2p")
    return [relative_rms(*squares(x, y)) for x, y in ((k, k4), (k, k2), (v, v4), (v, v2))]
