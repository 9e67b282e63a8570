#include "tiers/base/aligned_buffer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <utility>

namespace kvtier {
namespace {

TEST(AlignedBuffer, GivesPageAlignedMemoryOfTheSizeAsked) {
  AlignedBuffer buffer;
  const auto span = buffer.Reserve(5000);
  ASSERT_TRUE(span.ok());
  EXPECT_EQ(span->size(), 5000u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(span->data()) % 4096, 0u);
  EXPECT_EQ(buffer.span().size(), 8192u);
  std::memset(buffer.span().data(), 1, buffer.span().size());
}

TEST(AlignedBuffer, KeepsItsMemoryWhenItIsLargeEnough) {
  AlignedBuffer buffer;
  const auto first = buffer.Reserve(100000);
  const auto second = buffer.Reserve(10);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->data(), second->data());
}

TEST(AlignedBuffer, ShrinksToWholePagesAndKeepsTheirBytes) {
  AlignedBuffer buffer;
  ASSERT_TRUE(buffer.Reserve(1 << 20).ok());
  buffer.span()[4095] = std::byte{7};
  buffer.ShrinkTo(1);
  ASSERT_EQ(buffer.span().size(), 4096u);
  EXPECT_EQ(buffer.span()[4095], std::byte{7});
  buffer.ShrinkTo(0);
  EXPECT_EQ(buffer.span().size(), 0u);
}

TEST(AlignedBuffer, MovesItsMemory) {
  AlignedBuffer a;
  ASSERT_TRUE(a.Reserve(4096).ok());
  const std::byte* data = a.span().data();
  AlignedBuffer b = std::move(a);
  EXPECT_EQ(b.span().data(), data);
  AlignedBuffer c;
  ASSERT_TRUE(c.Reserve(8192).ok());
  c = std::move(b);
  EXPECT_EQ(c.span().data(), data);
  EXPECT_EQ(c.span().size(), 4096u);
}

TEST(AlignedBuffer, SaysSoWhenTheSystemHasNoMemory) {
  AlignedBuffer buffer;
  for (uint64_t bytes : {uint64_t{1} << 62, std::numeric_limits<uint64_t>::max()}) {
    const auto span = buffer.Reserve(bytes);
    ASSERT_FALSE(span.ok());
    EXPECT_EQ(span.status().code(), Code::kResourceExhausted);
  }
  EXPECT_TRUE(buffer.Reserve(4096).ok());
}

TEST(AlignedBuffer, ReservesWhatFitsInWhatItWasLent) {
  AlignedBuffer lender, buffer;
  const std::span<std::byte> lent = lender.Reserve(2 * 4096).value();
  buffer.Lend(lent);
  EXPECT_EQ(buffer.Reserve(4097).value().data(), lent.data());
  EXPECT_EQ(buffer.span().size(), 0u) << "of its own";
  const std::span<std::byte> own = buffer.Reserve(lent.size() + 1).value();
  EXPECT_NE(own.data(), lent.data());
  AlignedBuffer moved = std::move(buffer);
  EXPECT_EQ(moved.Reserve(1).value().data(), lent.data());
  EXPECT_NE(buffer.Reserve(1).value().data(), lent.data())
      << "moved from";  // NOLINT(bugprone-use-after-move)
  moved.Lend({});
  EXPECT_NE(moved.Reserve(1).value().data(), lent.data());
}

}  // namespace
}  // namespace kvtier
