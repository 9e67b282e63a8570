#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "kernels/host_device.h"

namespace kvtier {

/// Who runs a kernel body: `size` lanes that share one block index and one scratch area. Loops in a body
/// stride by size(); sync() separates what lanes write from what other lanes read. A lane takes kLaneWidth
/// neighbouring elements where elements are independent, so that a serial lane vectorizes and GPU lanes read
/// side by side.
template <typename T>
concept Team = requires(const T& team, uint32_t value, uint32_t mask) {
  { team.block() } -> std::convertible_to<uint32_t>;
  { team.rank() } -> std::convertible_to<uint32_t>;
  { team.size() } -> std::convertible_to<uint32_t>;
  { team.warp_size() } -> std::convertible_to<uint32_t>;
  { team.scratch() } -> std::same_as<std::byte*>;
  { team.shfl_xor(value, mask) } -> std::same_as<uint32_t>;
  team.sync();
  { T::kLaneWidth } -> std::convertible_to<uint32_t>;
  { T::kIsCuda } -> std::convertible_to<bool>;
};

/// How many blocks a body runs, and the scratch bytes that each needs.
struct LaunchShape {
  uint32_t blocks = 0;
  uint32_t scratch_bytes = 0;  ///< a multiple of kScratchAlign
};
inline constexpr uint32_t kScratchAlign = 64;
inline constexpr uint32_t kScratchBytesMax = 16 << 10;

/// One lane: the portable CPU path, and the reference for every other team.
class SerialTeam {
 public:
  static constexpr uint32_t kLaneWidth = 16;
  static constexpr bool kIsCuda = false;

  SerialTeam(uint32_t block, std::byte* scratch) : block_(block), scratch_(scratch) {}

  uint32_t block() const { return block_; }
  static constexpr uint32_t rank() { return 0; }
  static constexpr uint32_t size() { return 1; }
  static constexpr uint32_t warp_size() { return 1; }
  std::byte* scratch() const { return scratch_; }
  static void sync() {}
  template <typename Value>
  static Value shfl_xor(Value value, uint32_t /*mask*/) {
    return value;
  }

 private:
  uint32_t block_;
  std::byte* scratch_;
};
static_assert(Team<SerialTeam>);

/// Runs body(team) for every block, one after the other, on the calling thread.
template <typename Body>
void LaunchSerial(const LaunchShape& shape, const Body& body) {
  alignas(kScratchAlign) std::byte scratch[kScratchBytesMax];
  for (uint32_t block = 0; block < shape.blocks; ++block) body(SerialTeam(block, scratch));
}

}  // namespace kvtier
