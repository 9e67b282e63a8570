#include "client/src/structs.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace kvtier::client {
namespace {

struct Grown {
  uint32_t struct_size;
  uint32_t first;
  uint32_t added;  // by the second version
};
/// What a caller of a third version passes.
struct Later {
  Grown known;
  uint32_t unknown;
};

}  // namespace

template <>
inline constexpr size_t kFirstVersionBytes<Grown> = offsetof(Grown, added);

namespace {

TEST(Structs, OfAnOlderCallerHaveZerosAtTheEnd) {
  const Grown given{.struct_size = offsetof(Grown, added), .first = 1, .added = 7};
  const Result<Grown> known = StructOf(&given, "grown");
  ASSERT_TRUE(known.ok());
  EXPECT_EQ(known->first, 1u);
  EXPECT_EQ(known->added, 0u) << "that is whatever lies behind the caller's struct";
}

TEST(Structs, OfALaterCallerMustNotSetWhatIsUnknown) {
  Later given{.known = {.struct_size = sizeof(Later), .first = 1, .added = 2}, .unknown = 0};
  ASSERT_TRUE(StructOf(&given.known, "grown").ok());
  EXPECT_EQ(StructOf(&given.known, "grown")->added, 2u);
  given.unknown = 1;
  EXPECT_EQ(StructOf(&given.known, "grown").status().code(), Code::kUnimplemented);
}

TEST(Structs, WithoutASizeAreRefused) {
  for (const uint32_t size : {0u, 4u, 7u, 4097u, UINT32_MAX}) {
    const Grown given{.struct_size = size, .first = 0, .added = 0};
    EXPECT_EQ(StructOf(&given, "grown").status().code(), Code::kInvalidArgument) << size;
  }
}

}  // namespace
}  // namespace kvtier::client
