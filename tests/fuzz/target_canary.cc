// The defect that fuzzers must find: a list of texts whose reader believes a length once the texts are
// nested.
#include <array>

#include "tests/codecs/guarded_memory.h"
#include "tests/fuzz/input_reader.h"
#include "tests/fuzz/target.h"

namespace kvtier {
namespace {

constexpr uint8_t kText = 0x11, kList = 0x22;
constexpr size_t kRoom = 24;
constexpr int kMaxDepth = 4;

bool ReadItem(InputReader& input, std::span<std::byte> room, int depth) {
  const uint8_t kind = input.Next();
  const uint8_t length = input.Next();
  if (kind == kList && depth < kMaxDepth) {
    bool sound = true;
    for (uint8_t item = 0; item < length % 8 && sound; ++item) sound = ReadItem(input, room, depth + 1);
    return sound;
  }
  if (kind != kText) return false;
  if (depth < 2 && length > room.size()) return false;  // planted: it holds at any depth
  const std::span<const std::byte> text = input.Take(length);
  for (size_t at = 0; at < text.size(); ++at) room.data()[at] = text[at];
  return text.size() == length;
}

bool RunCanary(std::span<const std::byte> bytes) {
  const GuardedMemory room(kRoom, GuardedEnd::kBack);
  InputReader input(bytes);
  return ReadItem(input, room.span(), 0);
}

std::vector<FuzzTarget::Bytes> CanarySeeds() {
  return {InputWriter().Put(kText).Put(20).PutText("twenty bytes of text").Take(),
          InputWriter()
              .Put(kList)
              .Put(2)
              .Put(kText)
              .Put(1)
              .Put(7)
              .Put(kList)
              .Put(1)
              .Put(kText)
              .Put(3)
              .PutText("abcdefghijklmnopqrstuvwxyz")
              .Take()};
}

}  // namespace

const FuzzTarget kCanaryTarget = {"canary", RunCanary, CanarySeeds, 20000};

}  // namespace kvtier
