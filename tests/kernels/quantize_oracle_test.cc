#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/dequantize.h"
#include "kernels/quantize.h"
#include "tests/support/fixture.h"
#include "tests/support/paths.h"

// Quantize against formulas written again in double precision, from the description of the format alone.
// Results near a rounding boundary may differ by one step; everything else is equal.

namespace kvtier {
namespace {

/// Everything Quantize writes of one layer, as int4.
struct Quantized {
  BlockShape shape;
  std::vector<uint8_t> k_scale, k_min, v_scale, k_raw, v_raw, k_high, v_high, k_low, v_low;
  std::vector<RowErrors> k_errors, v_errors;

  explicit Quantized(const BlockShape& s, const std::vector<std::byte>& raw,
                     ErrorMeasure measure_v = ErrorMeasure::kOnGrid)
      : shape(s) {
    const size_t channels = size_t{s.kv_heads} * s.k_dim, rows = size_t{s.kv_heads} * PaddedTokens(s);
    k_scale.resize(2 * channels);
    k_min.resize(2 * channels);
    v_scale.resize(rows * VGroups(s));
    k_raw.resize(size_t{2} * s.kv_heads * s.nraw * s.k_dim);
    v_raw.resize(size_t{2} * s.kv_heads * s.nraw * s.v_dim);
    k_high.resize(rows * s.k_dim / 4);
    k_low.resize(rows * s.k_dim / 4);
    v_high.resize(rows * s.v_dim / 4);
    v_low.resize(rows * s.v_dim / 4);
    k_errors.resize(size_t{s.kv_heads} * s.tokens);
    v_errors.resize(size_t{s.kv_heads} * s.tokens);
    QuantizeArgs args{.shape = s,
                      .raw = raw.data(),
                      .out = {},
                      .k_errors = k_errors.data(),
                      .v_errors = v_errors.data(),
                      .measure_v = measure_v};
    args.out = {.k_scale = k_scale.data(),
                .k_min = k_min.data(),
                .v_scale = v_scale.data(),
                .k_raw = k_raw.data(),
                .v_raw = v_raw.data(),
                .k_high = k_high.data(),
                .v_high = v_high.data(),
                .boost_ids = nullptr,
                .boost_low = nullptr,
                .k_low = k_low.data(),
                .v_low = v_low.data()};
    LaunchSerial(QuantizeLaunch(s), [&](const SerialTeam& team) { Quantize(team, args); });
  }

  static uint32_t Code(const std::vector<uint8_t>& high, const std::vector<uint8_t>& low, size_t row,
                       uint32_t dim, uint32_t c) {
    const uint32_t tile = c / 64, n = std::min(64u, dim - tile * 64), in_tile = c % 64;
    const size_t byte = row * dim / 4 + tile * 16 + in_tile % (n / 4);
    const uint32_t shift = 2 * (in_tile / (n / 4));
    return (high[byte] >> shift & 3) * 4 + (low[byte] >> shift & 3);
  }
  uint32_t KCode(uint32_t head, uint32_t token, uint32_t c) const {
    return Code(k_high, k_low, PlaneRow(shape, head, token), shape.k_dim, c);
  }
  uint32_t VCode(uint32_t head, uint32_t token, uint32_t c) const {
    return Code(v_high, v_low, PlaneRow(shape, head, token), shape.v_dim, c);
  }
};

double Half(const void* at) {
  return static_cast<double>(Fp32FromFp16(Load16(at)));
}

/// Relative spacing of fp16 around `value`.
double Fp16Ulp(double value) {
  return std::exp2(std::max(std::floor(std::log2(std::max(std::fabs(value), 1e-30))), -14.0) - 10);
}

struct Source {
  BlockShape shape;
  const std::vector<std::byte>& raw;
  double K(uint32_t head, uint32_t token, uint32_t c) const {
    return Half(raw.data() + 2 * ((size_t{head} * shape.tokens + token) * shape.k_dim + c));
  }
  double V(uint32_t head, uint32_t token, uint32_t c) const {
    const size_t k_values = size_t{shape.kv_heads} * shape.tokens * shape.k_dim;
    return Half(raw.data() + 2 * (k_values + (size_t{head} * shape.tokens + token) * shape.v_dim + c));
  }
};

void ExpectKAsTheFormulas(const Source& source, const Quantized& q) {
  const BlockShape& s = q.shape;
  for (uint32_t head = 0; head < s.kv_heads; ++head) {
    for (uint32_t c = 0; c < s.k_dim; ++c) {
      double low = INFINITY, high = -INFINITY;
      for (uint32_t t = s.nraw; t < s.tokens; ++t) {
        low = std::min(low, source.K(head, t, c));
        high = std::max(high, source.K(head, t, c));
      }
      const size_t at = 2 * (size_t{head} * s.k_dim + c);
      const double scale = Half(&q.k_scale[at]), minimum = Half(&q.k_min[at]);
      ASSERT_EQ(minimum, low);
      ASSERT_NEAR(scale, (high - low) / 15, Fp16Ulp((high - low) / 15) * 0.5001);
      for (uint32_t t = s.nraw; t < s.tokens; ++t) {
        const double steps = scale > 0 ? (source.K(head, t, c) - minimum) / scale : 0;
        ASSERT_NEAR(q.KCode(head, t, c), std::clamp(steps, 0.0, 15.0), 0.5001)
            << head << ' ' << t << ' ' << c;
      }
    }
  }
}

void ExpectVAsTheFormulas(const Source& source, const Quantized& q) {
  const BlockShape& s = q.shape;
  for (uint32_t head = 0; head < s.kv_heads; ++head) {
    for (uint32_t t = s.nraw; t < s.tokens; ++t) {
      for (uint32_t group = 0; group < VGroups(s); ++group) {
        const uint32_t first = group * 64, n = std::min(64u, s.v_dim - first);
        std::vector<double> y(n);
        for (uint32_t i = 0; i < n; ++i) {
          if (n < 64) {
            y[i] = source.V(head, t, first + i);
            continue;
          }
          for (uint32_t j = 0; j < 64; ++j)
            y[i] += (__builtin_popcount(i & j) % 2 ? -1 : 1) * source.V(head, t, first + j) / 8;
        }
        double largest = 0;
        for (const double value : y) largest = std::max(largest, std::fabs(value));
        const uint8_t e = q.v_scale[PlaneRow(s, head, t) * VGroups(s) + group];
        const double scale = Fp32FromFp16(static_cast<uint16_t>(e << 7));
        // The smallest scale with three mantissa bits that is not below largest / 8.
        ASSERT_GE(scale * 1.000001, std::min(largest / 8, 61440.0));
        if (e > 0) {
          ASSERT_LT(Fp32FromFp16(static_cast<uint16_t>((e - 1) << 7)), largest / 8 * 1.000001);
        }
        for (uint32_t i = 0; i < n; ++i) {
          const double steps = scale > 0 ? y[i] / scale : 0;
          const double middle = std::clamp(steps, -7.9999, 7.9999);  // a code covers [c - 8, c - 7)
          ASSERT_NEAR(q.VCode(head, t, first + i) - 7.5, middle, 0.5002)
              << head << ' ' << t << ' ' << first + i;
        }
      }
    }
  }
}

void ExpectAsTheFormulas(const BlockShape& shape, const std::vector<std::byte>& raw) {
  const Quantized quantized(shape, raw);
  ExpectKAsTheFormulas({shape, raw}, quantized);
  ExpectVAsTheFormulas({shape, raw}, quantized);
}

std::vector<std::byte> RandomRaw(const BlockShape& shape, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<std::byte> raw(RawLayerBytes(shape));
  for (size_t at = 0; at < raw.size(); at += 2) {
    const float channel_size = 1 + static_cast<float>(at / 2 % 7);
    Store16(&raw[at], Fp16FromFp32(normal(random) * channel_size));
  }
  return raw;
}

TEST(QuantizeOracleTest, AgreesOnRandomDataOfManyShapes) {
  for (const auto& [heads, k_dim, v_dim, tokens, nraw] :
       {std::tuple(2, 64, 64, 64, 0), std::tuple(1, 128, 128, 128, 1), std::tuple(3, 80, 48, 37, 4),
        std::tuple(1, 16, 256, 4, 0), std::tuple(1, 256, 16, 5, 2), std::tuple(1, 96, 112, 126, 1)}) {
    const BlockShape shape = {.layers = 1,
                              .kv_heads = static_cast<uint16_t>(heads),
                              .k_dim = static_cast<uint16_t>(k_dim),
                              .v_dim = static_cast<uint16_t>(v_dim),
                              .tokens = static_cast<uint16_t>(tokens),
                              .dtype = DType::kFp16,
                              .nraw = static_cast<uint8_t>(nraw),
                              .nb = 8};
    SCOPED_TRACE(testing::Message() << heads << " heads, " << k_dim << "/" << v_dim << ", " << tokens
                                    << " tokens");
    ExpectAsTheFormulas(shape, RandomRaw(shape, 1));
  }
}

TEST(QuantizeOracleTest, AgreesOnRealKv) {
  for (const char* name : {"/smollm2-135m", "/qwen2.5-coder-0.5b"}) {
    auto fixture = Fixture::Load(TestDataFolder() + name);
    ASSERT_TRUE(fixture.ok()) << fixture.status().ToString();
    const std::vector<std::byte> block = fixture->RawBlock(128, 128);
    BlockShape shape = fixture->Shape(128, 0, 32);
    const size_t layer_bytes = RawLayerBytes(shape);
    for (uint32_t layer = 0; layer < fixture->layers(); ++layer) {
      SCOPED_TRACE(testing::Message() << name << " layer " << layer);
      const auto start = block.begin() + static_cast<ptrdiff_t>(layer * layer_bytes);
      ExpectAsTheFormulas(shape, {start, start + static_cast<ptrdiff_t>(layer_bytes)});
    }
  }
}

TEST(QuantizeOracleTest, ErrorsAreThoseOfTheDecodedValues) {
  const BlockShape shape = {.layers = 1,
                            .kv_heads = 2,
                            .k_dim = 80,
                            .v_dim = 128,
                            .tokens = 37,
                            .dtype = DType::kFp16,
                            .nraw = 1,
                            .nb = 0};
  const std::vector<std::byte> raw = RandomRaw(shape, 3);
  const Quantized q(shape, raw, ErrorMeasure::kDecoded), on_grid(shape, raw);
  const size_t rows = size_t{2} * 37;
  std::vector<std::byte> k(rows * 256), v(rows * 256);
  DequantizeArgs args{.shape = shape, .in = {}, .out = {}};
  args.in = {.k_scale = q.k_scale.data(),
             .k_min = q.k_min.data(),
             .v_scale = q.v_scale.data(),
             .k_raw = q.k_raw.data(),
             .v_raw = q.v_raw.data(),
             .k_high = q.k_high.data(),
             .v_high = q.v_high.data(),
             .boost_ids = nullptr,
             .boost_low = nullptr,
             .k_low = q.k_low.data(),
             .v_low = q.v_low.data()};
  args.out = {
      .k = k.data(), .v = v.data(), .head_stride = 37 * 256, .token_stride = 256, .channel_stride = 2};
  LaunchSerial(DequantizeLaunch(shape), [&](const SerialTeam& team) { Dequantize(team, args); });
  const Source source{shape, raw};
  double v_total = 0, v_on_grid = 0;
  for (uint32_t head = 0; head < 2; ++head) {
    for (uint32_t t = 0; t < 37; ++t) {
      const size_t row = size_t{head} * 37 + t;
      double k_error = 0, v_error = 0, k_square = 0;
      for (uint32_t c = 0; c < 80; ++c) {
        const double x = source.K(head, t, c);
        k_error += std::pow(x - Half(&k[row * 256 + 2 * c]), 2);
        k_square += x * x;
      }
      for (uint32_t c = 0; c < 128; ++c)
        v_error += std::pow(source.V(head, t, c) - Half(&v[row * 256 + 2 * c]), 2);
      ASSERT_NEAR(q.k_errors[row].int4, k_error, k_error * 1e-6);
      ASSERT_NEAR(q.k_errors[row].square, k_square, k_square * 1e-12);
      ASSERT_NEAR(q.v_errors[row].int4, v_error, v_error * 1e-6);
      if (t == 0) {
        EXPECT_EQ(k_error, 0) << "a raw row is exact";
      }
      v_total += v_error;
      v_on_grid += on_grid.v_errors[row].int4;
    }
  }
  // As sums of squares: half of this in the stated error, less than a place of fp16.
  EXPECT_NEAR(v_on_grid, v_total, v_total * 5e-4);

  args.in.k_low = args.in.v_low = nullptr;
  LaunchSerial(DequantizeLaunch(shape), [&](const SerialTeam& team) { Dequantize(team, args); });
  for (uint32_t head = 0; head < 2; ++head) {
    for (uint32_t t = 0; t < 37; ++t) {
      const size_t row = size_t{head} * 37 + t;
      double k_error = 0, v_error = 0;
      for (uint32_t c = 0; c < 80; ++c)
        k_error += std::pow(source.K(head, t, c) - Half(&k[row * 256 + 2 * c]), 2);
      for (uint32_t c = 0; c < 128; ++c)
        v_error += std::pow(source.V(head, t, c) - Half(&v[row * 256 + 2 * c]), 2);
      ASSERT_NEAR(q.k_errors[row].int2, k_error, k_error * 1e-6);
      ASSERT_NEAR(q.v_errors[row].int2, v_error, v_error * 1e-6);
    }
  }
}

}  // namespace
}  // namespace kvtier
