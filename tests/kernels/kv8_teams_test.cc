// The bodies of kv8 on lanes that share work, against the one lane of SerialTeam.
#include <gtest/gtest.h>

#include <random>

#include "kernels/dequantize_kv8.h"
#include "kernels/quantize_kv8.h"
#include "tests/kernels/team_cases.h"
#include "tests/kernels/team_launchers.h"

namespace kvtier {
namespace {

/// Owner of the sections of one layer, one after the other.
class Kv8Buffers {
 public:
  Kv8Buffers(Kv8Buffers&&) = default;
  Kv8Buffers(const BlockShape& s, uint8_t fill) {
    const size_t heads = s.kv_heads, rows = heads * s.tokens;
    const size_t sizes[] = {
        2 * heads * s.k_dim,          2 * heads * s.k_dim, 2 * rows,      2 * heads * s.nraw * s.k_dim,
        2 * heads * s.nraw * s.v_dim, rows * s.k_dim,      rows * s.v_dim};
    size_t total = 0;
    for (const size_t bytes : sizes) total += bytes;
    memory_.assign(total, fill);
    uint8_t** const pointers[] = {&sections_.k_scale, &sections_.k_min, &sections_.v_scale,
                                  &sections_.k_raw,   &sections_.v_raw, &sections_.k_codes,
                                  &sections_.v_codes};
    uint8_t* at = memory_.data();
    for (size_t i = 0; i < std::size(sizes); at += sizes[i++]) *pointers[i] = at;
  }

  std::vector<uint8_t>& memory() { return memory_; }
  const Kv8Sections<uint8_t>& sections() const { return sections_; }
  Kv8Sections<const uint8_t> Read() const {
    const Kv8Sections<uint8_t>& s = sections_;
    return {s.k_scale, s.k_min, s.v_scale, s.k_raw, s.v_raw, s.k_codes, s.v_codes};
  }

 private:
  std::vector<uint8_t> memory_;
  Kv8Sections<uint8_t> sections_;
};

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
