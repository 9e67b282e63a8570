#include "tiers/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string_view>
#include <vector>

namespace kvtier {
namespace {

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST(Crc32c, GivesTheValueThatEveryImplementationGives) {
  EXPECT_EQ(Crc32c(Bytes("123456789")), 0xE3069283u);
  EXPECT_EQ(Crc32c({}), 0u);
}

TEST(Crc32c, ContinuesOverPieces) {
  EXPECT_EQ(ContinueCrc32c(Crc32c(Bytes("1234")), Bytes("56789")), 0xE3069283u);
}

TEST(Crc32c, CopiesAndCoversWhatArrived) {
  constexpr uint32_t kSeed = 7;
  std::mt19937 rng(kSeed);
  for (size_t size : {size_t{0}, size_t{1}, size_t{131071}, size_t{131072}, size_t{1000003}}) {
    std::vector<std::byte> from(size), to(size);
    for (std::byte& b : from) b = static_cast<std::byte>(rng());
    EXPECT_EQ(CopyAndCrc32c(from, to), Crc32c(from)) << "size " << size << ", seed " << kSeed;
    EXPECT_EQ(from, to);
  }
}

}  // namespace
}  // namespace kvtier
