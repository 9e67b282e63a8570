// Every kernel body on lanes that share work, against the one lane of SerialTeam.
#include <gtest/gtest.h>

#include <random>

#include "kernels/boost.h"
#include "kernels/dequantize.h"
#include "kernels/quantize.h"
#include "tests/kernels/plane_buffers.h"
#include "tests/kernels/team_launchers.h"

namespace kvtier {
namespace {

constexpr uint32_t kSeed = 99;
constexpr uint8_t kUnwritten = 0x5A;

BlockShape Shape(uint16_t heads, uint16_t k_dim, uint16_t v_dim, uint16_t tokens, uint8_t nraw, uint8_t nb,
                 DType dtype = DType::kFp16) {
  return {.layers = 1,
          .kv_heads = heads,
          .k_dim = k_dim,
          .v_dim = v_dim,
          .tokens = tokens,
          .dtype = dtype,
          .nraw = nraw,
          .nb = nb};
}

/// Fewer, as many and more channels and tokens than lanes; every kind of last tile; with and without raw rows
/// and boost.
std::vector<BlockShape> Shapes() {
  return {
      Shape(1, 16, 16, 4, 0, 4),    Shape(2, 64, 64, 64, 1, 32),
      Shape(1, 80, 48, 37, 4, 40),  Shape(1, 128, 128, 128, 0, 64, DType::kBf16),
      Shape(1, 256, 16, 9, 1, 252), Shape(1, 16, 256, 126, 0, 0),
      Shape(2, 96, 192, 5, 4, 12),  Shape(1, 192, 80, 33, 0, 192, DType::kBf16),
  };
}
/// What threads can afford.
std::vector<BlockShape> FewShapes() {
  return {Shape(2, 64, 64, 37, 1, 32), Shape(1, 80, 48, 5, 4, 40)};
}

std::string Describe(const BlockShape& s) {
  return "H" + std::to_string(s.kv_heads) + " Dk" + std::to_string(s.k_dim) + " Dv" +
         std::to_string(s.v_dim) + " T" + std::to_string(s.tokens) + " nraw" + std::to_string(s.nraw) +
         " nb" + std::to_string(s.nb) + ", seed " + std::to_string(kSeed);
}

/// Channels of every temper: ordinary, constant, tiny, extreme, and equal ones, for ties of the boost.
std::vector<std::byte> RandomRaw(const BlockShape& shape) {
  std::mt19937 random(kSeed);
  std::normal_distribution<float> normal;
  std::vector<std::byte> raw(RawLayerBytes(shape));
  for (size_t i = 0; i < raw.size() / 2; ++i) {
    float value = normal(random);
    if (i % 7 == 1) value = 3;
    if (i % 7 == 2) value *= 1e-7f;
    if (i % 7 == 3) value *= 15000;
    if (i % 7 >= 5) value = static_cast<float>(i / 7 % 3);
    value = ClampToFp16(value);
    Store16(&raw[2 * i], shape.dtype == DType::kBf16 ? Bf16FromFp32(value) : Fp16FromFp32(value));
  }
  return raw;
}

PlaneBuffers RandomPlanes(const BlockShape& shape) {
  std::mt19937 random(kSeed);
  return PlaneBuffers(shape, [&] { return static_cast<uint8_t>(random()); });
}
/// With boost ids as encoders write them. Of equal ids, which only damage gives, several lanes store the same
/// number in one place: harmless, but nothing to show ThreadSanitizer.
PlaneBuffers RandomPlanesWithGoodIds(const BlockShape& shape) {
  PlaneBuffers planes = RandomPlanes(shape);
  for (uint32_t head = 0; head < shape.kv_heads; ++head)
    for (uint32_t i = 0; i < shape.nb; ++i)
      planes.sections().boost_ids[head * shape.nb + i] = static_cast<uint8_t>(i * shape.k_dim / shape.nb);
  return planes;
}

void Append(std::vector<uint8_t>& bytes, const std::vector<RowErrors>& errors) {
  const auto* first = reinterpret_cast<const uint8_t*>(errors.data());
  bytes.insert(bytes.end(), first, first + errors.size() * sizeof(RowErrors));
}

/// All sections and the error sums of an encoding on `launch`.
auto QuantizeOn(const BlockShape& shape, const std::vector<std::byte>& raw) {
  return [&](const auto& launch) {
    const PlaneBuffers planes(shape, kUnwritten);
    std::vector<RowErrors> k_errors(size_t{shape.kv_heads} * shape.tokens), v_errors = k_errors;
    const QuantizeArgs args = {.shape = shape,
                               .raw = raw.data(),
                               .out = planes.sections(),
                               .k_errors = k_errors.data(),
                               .v_errors = v_errors.data()};
    launch(QuantizeLaunch(shape), [&](const auto& team) { Quantize(team, args); });
    std::vector<uint8_t> bytes = planes.Bytes();
    Append(bytes, k_errors);
    Append(bytes, v_errors);
    return bytes;
  };
}

auto GatherBoostOn(const BlockShape& shape, const PlaneBuffers& planes) {
  return [&](const auto& launch) {
    const PlaneBuffers out(shape, kUnwritten);
    const GatherBoostArgs args = {.shape = shape, .in = planes.Read(), .out = out.sections()};
    launch(GatherBoostLaunch(shape), [&](const auto& team) { GatherBoostBits(team, args); });
    return out.Bytes();
  };
}

/// A decoder's view of contiguous rows, wide enough for either.
class Decoded {
 public:
  Decoded(const BlockShape& shape, DType dtype)
      : row_bytes_(size_t{std::max(shape.k_dim, shape.v_dim)} * DTypeBytes(dtype)),
        plane_bytes_(row_bytes_ * shape.kv_heads * shape.tokens),
        bytes_(2 * plane_bytes_, std::byte{kUnwritten}) {
    view_.k = bytes_.data();
    view_.v = bytes_.data() + plane_bytes_;
    view_.token_stride = static_cast<int64_t>(row_bytes_);
    view_.head_stride = static_cast<int64_t>(row_bytes_ * shape.tokens);
    view_.channel_stride = DTypeBytes(dtype);
    view_.dtype = dtype;
  }
  KvLayerView& view() { return view_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  size_t row_bytes_, plane_bytes_;
  std::vector<std::byte> bytes_;
  KvLayerView view_;
};

/// Which planes a decoder finds: those of one rung.
enum class Rung { kInt4, kK4V2, kInt2 };
PlaneSections<const uint8_t> Cut(PlaneSections<const uint8_t> sections, Rung rung) {
  if (rung != Rung::kInt4) sections.v_low = nullptr;
  if (rung == Rung::kInt2) sections.k_low = nullptr;
  if (rung != Rung::kInt2) sections.boost_ids = sections.boost_low = nullptr;
  return sections;
}

auto DequantizeOn(const BlockShape& shape, const PlaneBuffers& planes, Rung rung, DType dtype,
                  VForm v_form = VForm::kPlain) {
  return [&shape, &planes, rung, dtype, v_form](const auto& launch) {
    Decoded decoded(shape, dtype);
    decoded.view().v_form = v_form;
    const DequantizeArgs args = {.shape = shape, .in = Cut(planes.Read(), rung), .out = decoded.view()};
    launch(DequantizeLaunch(shape), [&](const auto& team) { Dequantize(team, args); });
    return decoded.bytes();
  };
}

/// Sums of the ranks of each warp, by shuffles alone, as every lane has them.
template <typename Launch>
std::vector<uint32_t> WarpSumsOn(const Launch& launch, uint32_t lanes) {
  std::vector<uint32_t> sums(lanes);
  launch({.blocks = 1, .scratch_bytes = 64}, [&](const auto& team) {
    uint32_t sum = team.rank();
    for (uint32_t mask = team.warp_size() / 2; mask > 0; mask /= 2) sum += team.shfl_xor(sum, mask);
    sums[team.rank()] = sum;
  });
  return sums;
}

TEST(TeamsTest, ShufflesExchangeValuesInsideAWarp) {
  const auto expected = [](uint32_t lanes) {
    std::vector<uint32_t> sums(lanes);
    for (uint32_t lane = 0; lane < lanes; ++lane) sums[lane] = 31 * 32 / 2 + lane / 32 * 32 * 32;
    return sums;
  };
  for (const FiberOptions& options : AllFiberOptions())
    EXPECT_EQ(WarpSumsOn(FiberLauncher{options}, options.lanes), expected(options.lanes))
        << Describe(options);
  EXPECT_EQ(WarpSumsOn(ThreadLauncher{64}, 64), expected(64));
}

TEST(TeamsTest, EncodingIsTheSameOnFibersInEveryOrder) {
  for (const BlockShape& shape : Shapes()) {
    SCOPED_TRACE(Describe(shape));
    const std::vector<std::byte> raw = RandomRaw(shape);
    ExpectFibersEqualSerial(QuantizeOn(shape, raw));
  }
}

TEST(TeamsTest, DecodingIsTheSameOnFibersInEveryOrder) {
  for (const BlockShape& shape : Shapes()) {
    SCOPED_TRACE(Describe(shape));
    const PlaneBuffers planes = RandomPlanes(shape);
    ExpectFibersEqualSerial(DequantizeOn(shape, planes, Rung::kInt4, DType::kFp16));
    ExpectFibersEqualSerial(DequantizeOn(shape, planes, Rung::kK4V2, DType::kBf16));
    ExpectFibersEqualSerial(DequantizeOn(shape, planes, Rung::kInt2, DType::kFp16));
    ExpectFibersEqualSerial(DequantizeOn(shape, planes, Rung::kInt2, DType::kFp32, VForm::kRotated));
  }
}

TEST(TeamsTest, GatheringTheBoostIsTheSameOnFibersInEveryOrder) {
  for (const BlockShape& shape : Shapes()) {
    SCOPED_TRACE(Describe(shape));
    const PlaneBuffers planes = RandomPlanes(shape);
    ExpectFibersEqualSerial(GatherBoostOn(shape, planes));
  }
}

TEST(TeamsTest, EncodingIsTheSameOnThreads) {
  for (const BlockShape& shape : FewShapes()) {
    SCOPED_TRACE(Describe(shape));
    const std::vector<std::byte> raw = RandomRaw(shape);
    ExpectThreadsEqualSerial(QuantizeOn(shape, raw));
  }
}

TEST(TeamsTest, DecodingIsTheSameOnThreads) {
  for (const BlockShape& shape : FewShapes()) {
    SCOPED_TRACE(Describe(shape));
    const PlaneBuffers planes = RandomPlanesWithGoodIds(shape);
    ExpectThreadsEqualSerial(DequantizeOn(shape, planes, Rung::kInt2, DType::kFp16));
    ExpectThreadsEqualSerial(DequantizeOn(shape, planes, Rung::kInt4, DType::kBf16, VForm::kRotated));
  }
}

TEST(TeamsTest, GatheringTheBoostIsTheSameOnThreads) {
  for (const BlockShape& shape : FewShapes()) {
    SCOPED_TRACE(Describe(shape));
    const PlaneBuffers planes = RandomPlanes(shape);
    ExpectThreadsEqualSerial(GatherBoostOn(shape, planes));
  }
}

}  // namespace
}  // namespace kvtier
