#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tiers/base/status.h"

namespace kvtier::llamacpp {

/// The bytes of llama_state_seq_get_data, which llama_state_seq_set_data takes back (llama.cpp's
/// LLAMA_STATE_SEQ_VERSION 3; little-endian, nothing aligned beyond 4 bytes), as far as kvtier understands
/// them: one stream, an FP16 cache, V not transposed (flash attention), no M-RoPE.
///   u32 0xaf143cd8    i32 sequence    u32 streams = 1    u32 cells
/// and, where there are cells,
///   cells x {i32 position, u32 sequences = 1, i32 sequence}
///   u32 V transposed = 0    u32 layers
///   layers x {i32 type = 1 (FP16), u64 row bytes, cells x K row}
///   layers x {i32 type = 1 (FP16), u64 row bytes, cells x V row}
/// A row is [kv head][channel]. Cells are in the order of the cache, not of the sequence.
inline constexpr uint32_t kSeqStateVersion = 3;
inline constexpr uint32_t kSeqStateMagic = 0xaf143cd8;
inline constexpr int32_t kFp16Type = 1;

/// Of every state of one model.
struct SeqShape {
  uint32_t layers = 0;
  uint32_t row_bytes = 0;  ///< of K, and of V, of one token in one layer
  friend bool operator==(const SeqShape&, const SeqShape&) = default;
};
/// Larger ones are refused before anything is computed from them.
inline constexpr uint32_t kLayersMax = 4096, kRowBytesMax = 1u << 20, kCellsMax = 1u << 24;

/// Exact size of a state of `cells` tokens; within the limits above, cells > 0.
uint64_t SeqStateBytes(SeqShape shape, uint32_t cells);

/// A state that was walked from its first byte to its last. Borrows the bytes.
class SeqState {
 public:
  /// Errors: kInvalidArgument, saying where `bytes` is anything but the format above with this shape.
  static Result<SeqState> Parse(std::span<const std::byte> bytes, SeqShape shape);

  const std::vector<int32_t>& positions() const { return positions_; }  ///< by cell
  uint32_t cells() const { return static_cast<uint32_t>(positions_.size()); }
  SeqShape shape() const { return shape_; }
  /// Rows of all cells of a layer; layer < layers, cells() > 0.
  const std::byte* K(uint32_t layer) const { return bytes_.data() + k_offset_ + layer * plane_bytes_; }
  const std::byte* V(uint32_t layer) const { return K(shape_.layers + layer); }

 private:
  SeqState(std::span<const std::byte> bytes, SeqShape shape) : bytes_(bytes), shape_(shape) {}

  std::span<const std::byte> bytes_;
  SeqShape shape_;
  std::vector<int32_t> positions_;
  uint64_t k_offset_ = 0, plane_bytes_ = 0;
};

/// The shape that a state with at least one cell has. Errors: as Parse; also where K and V, or two layers,
/// have rows of different sizes.
Result<SeqShape> ReadSeqShape(std::span<const std::byte> bytes);

/// A state of consecutive tokens whose rows the owner fills in, all of them: they are not cleared. Moving it
/// keeps its addresses.
class SeqStateBuffer {
 public:
  /// Of positions [first, first + tokens); tokens > 0, and no state in it has more.
  SeqStateBuffer(SeqShape shape, int32_t first, uint32_t tokens);

  std::span<const std::byte> bytes() const { return {bytes_.get(), size_}; }
  SeqShape shape() const { return shape_; }
  uint32_t tokens() const { return tokens_; }
  /// Makes it a state of positions [first, first + tokens) in the same memory, since fresh memory costs as
  /// much as a copy. With the same number of tokens the rows stay, otherwise they are undefined.
  void Become(int32_t first, uint32_t tokens);
  std::byte* K(uint32_t layer) { return bytes_.get() + k_offset_ + layer * plane_bytes_; }
  std::byte* V(uint32_t layer) { return K(shape_.layers + layer); }

 private:
  struct Free {
    void operator()(std::byte* bytes) const;
  };
  void WriteHead(int32_t first);
  void WritePlaneHeads();

  SeqShape shape_;
  uint32_t tokens_max_;
  uint32_t tokens_ = 0;
  uint64_t size_ = 0, k_offset_ = 0, plane_bytes_ = 0;
  std::unique_ptr<std::byte[], Free> bytes_;
};

}  // namespace kvtier::llamacpp
