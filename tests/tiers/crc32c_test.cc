#include "tiers/crc32c.h"

#include <gtest/gtest.h>

#include <algorithm>
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

TEST(Crc32c, StreamsToAnyAddressAndCoversWhatArrived) {
  constexpr uint32_t kSeed = 8;
  std::mt19937 rng(kSeed);
  for (size_t size :
       {size_t{0}, size_t{1}, size_t{15}, size_t{16}, size_t{4096}, size_t{4097}, size_t{100003}}) {
    for (size_t shift : {size_t{0}, size_t{1}, size_t{16}}) {
      std::vector<std::byte> from(size), to(size + 64, std::byte{0xCD});
      for (std::byte& b : from) b = static_cast<std::byte>(rng());
      const std::span<std::byte> target = std::span(to).subspan(shift, size);
      EXPECT_EQ(StreamAndCrc32c(from, target), Crc32c(from)) << "size " << size << ", seed " << kSeed;
      EXPECT_TRUE(std::ranges::equal(from, target));
      EXPECT_EQ(std::ranges::count(to, std::byte{0xCD}) - std::ranges::count(from, std::byte{0xCD}), 64)
          << "wrote beside the target";
    }
  }
}

}  // namespace
}  // namespace kvtier
