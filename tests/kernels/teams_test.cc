// Every kernel body on lanes that share work, against the one lane of SerialTeam.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <thread>

#include "kernels/boost.h"
#include "kernels/dequantize.h"
#include "kernels/quantize.h"
#include "tests/kernels/plane_buffers.h"
#include "tests/kernels/team_cases.h"
#include "tests/kernels/team_launchers.h"

namespace kvtier {
namespace {

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
    AppendBytes(bytes, k_errors);
    AppendBytes(bytes, v_errors);
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

/// AddressSanitizer knows nothing of fibers: what they mark on their stacks must not outlive them.
TEST(TeamsTest, MemoryThatWasTheStackOfALaneIsLikeAnyOther) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  uintptr_t stack = 0;
  std::thread([&stack, page] {  // which keeps its stacks until it ends
    FiberLauncher{{.lanes = 32}}(LaunchShape{.blocks = 1}, [&stack, page](const FiberTeam& team) {
      stack = reinterpret_cast<uintptr_t>(__builtin_frame_address(0)) / page * page;
      team.sync();
    });
  })
      .join();
  void* mapped = mmap(reinterpret_cast<void*>(stack), page, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED) << strerror(errno);
  memset(mapped, 1, page);
  munmap(mapped, page);
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
