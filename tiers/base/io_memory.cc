#include "tiers/base/io_memory.h"

#include "tiers/base/check.h"

namespace kvtier {
namespace {

static_assert(IoMemory::kChunks == 64, "a bit each");

/// The bits of `count` chunks from the first on.
uint64_t Run(uint64_t count) {
  return count == IoMemory::kChunks ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
}

}  // namespace

std::span<std::byte> IoMemory::all() {
  Result<std::span<std::byte>> memory = memory_.Reserve(kBytes);
  return memory.ok() ? *memory : std::span<std::byte>();
}

std::span<std::byte> IoMemory::Take(uint64_t bytes) {
  if (bytes == 0 || bytes > kBytes) return {};
  const std::span<std::byte> memory = all();
  if (memory.empty()) return {};
  const uint64_t count = (bytes + kChunkBytes - 1) / kChunkBytes;
  for (uint64_t first = 0; first + count <= kChunks; ++first) {
    if ((taken_ & Run(count) << first) != 0) continue;
    taken_ |= Run(count) << first;
    return memory.subspan(first * kChunkBytes, count * kChunkBytes);
  }
  return {};
}

void IoMemory::Give(std::span<std::byte> taken) {
  if (taken.empty()) return;
  const auto first = static_cast<uint64_t>(taken.data() - all().data()) / kChunkBytes;
  const uint64_t chunks = Run(taken.size() / kChunkBytes) << first;
  KVTIER_CHECK((taken_ & chunks) == chunks);
  taken_ &= ~chunks;
}

}  // namespace kvtier
