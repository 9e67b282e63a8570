// The bodies of kv8 on lanes that share work, against the one lane of SerialTeam.
#include <gtest/gtest.h>

#include <random>

#include "kernels/dequantize_kv8.h"
#include "kernels/quantize_kv8.h"
#include "tests/kernels/kv8_buffers.h"
#include "tests/kernels/team_cases.h"
#include "tests/kernels/team_launchers.h"

namespace kvtier {
namespace {

/// All sections and the error sums of an encoding on `launch`.
auto QuantizeKv8On(const BlockShape& shape, const std::vector<std::byte>& raw) {
  return [&](const auto& launch) {
    Kv8Buffers sections(shape, kUnwritten);
    std::vector<Kv8RowErrors> k_errors(size_t{shape.kv_heads} * shape.tokens), v_errors = k_errors;
    const QuantizeKv8Args args = {
        .source = {.shape = shape, .raw = raw.data(), .scales = {.k = 0.5f, .v = 3}},
        .out = sections.sections(),
        .k_errors = k_errors.data(),
        .v_errors = v_errors.data()};
    launch(Kv8Launch(shape), [&](const auto& team) { QuantizeKv8(team, args); });
    std::vector<uint8_t> bytes = sections.memory();
    AppendBytes(bytes, k_errors);
    AppendBytes(bytes, v_errors);
    return bytes;
  };
}

auto DequantizeKv8On(const BlockShape& shape, const Kv8Buffers& sections, DType dtype, VForm v_form) {
  return [&shape, &sections, dtype, v_form](const auto& launch) {
    Decoded decoded(shape, dtype);
    decoded.view().v_form = v_form;
    const DequantizeKv8Args args = {.shape = shape, .in = sections.Read(), .out = decoded.view()};
    launch(Kv8Launch(shape), [&](const auto& team) { DequantizeKv8(team, args); });
    return decoded.bytes();
  };
}

Kv8Buffers RandomSections(const BlockShape& shape) {
  std::mt19937 random(kSeed);
  Kv8Buffers sections(shape, 0);
  for (uint8_t& byte : sections.memory()) byte = static_cast<uint8_t>(random());
  return sections;
}

TEST(Kv8TeamsTest, EncodingIsTheSameOnFibersInEveryOrder) {
  for (const BlockShape& shape : Shapes()) {
    SCOPED_TRACE(Describe(shape));
    const std::vector<std::byte> raw = RandomRaw(shape);
    ExpectFibersEqualSerial(QuantizeKv8On(shape, raw));
  }
}

TEST(Kv8TeamsTest, DecodingIsTheSameOnFibersInEveryOrder) {
  for (const BlockShape& shape : Shapes()) {
    SCOPED_TRACE(Describe(shape));
    const Kv8Buffers sections = RandomSections(shape);
    ExpectFibersEqualSerial(DequantizeKv8On(shape, sections, DType::kFp16, VForm::kPlain));
    ExpectFibersEqualSerial(DequantizeKv8On(shape, sections, DType::kE5m2, VForm::kRotated));
  }
}

TEST(Kv8TeamsTest, EncodingAndDecodingAreTheSameOnThreads) {
  for (const BlockShape& shape : FewShapes()) {
    SCOPED_TRACE(Describe(shape));
    const std::vector<std::byte> raw = RandomRaw(shape);
    ExpectThreadsEqualSerial(QuantizeKv8On(shape, raw));
    const Kv8Buffers sections = RandomSections(shape);
    ExpectThreadsEqualSerial(DequantizeKv8On(shape, sections, DType::kFp16, VForm::kPlain));
  }
}

}  // namespace
}  // namespace kvtier
