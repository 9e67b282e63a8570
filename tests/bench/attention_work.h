#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "codecs/codec.h"
#include "kernels/attention.h"
#include "tests/bench/codec_work.h"
#include "tiers/base/aligned_buffer.h"

namespace kvtier::bench {

/// What decode attention is measured with, and the query heads per KV head that are tried.
inline constexpr Shape kAttentionShape = {8, 128, 128};
inline constexpr uint32_t kQueryGroups[] = {1, 4, 8};

/// One layer of a context as blocks of one codec, each block's parts as they lie in an image.
/// Threads: any, once made.
class AttentionContext {
 public:
  /// Filled with the same block over and over. Errors: kResourceExhausted.
  static Result<AttentionContext> Make(const Codec& codec, uint32_t tokens);
  uint64_t bytes() const { return blocks_ * block_bytes_; }

  /// Attention of one decode step over the whole context; `part` is room for one block's.
  void Attend(const AttentionQuery& query, const AttentionPartial& part, const AttentionPartial& all) const;

 private:
  AttentionContext() = default;
  LayerParts PartsOf(uint32_t block) const;
  void Fill();

  const Codec* codec_ = nullptr;
  BlockShape shape_;
  uint8_t planes_ = 0;
  uint32_t blocks_ = 0;
  uint64_t block_bytes_ = 0;
  AlignedBuffer memory_;
  std::span<std::byte> bytes_;
};

/// Queries of one decode step with `group` query heads per KV head, and room for what comes out. Threads:
/// one.
class DecodeStep {
 public:
  explicit DecodeStep(uint32_t group);
  void Attend(const AttentionContext& context);

  uint32_t heads() const { return heads_; }
  /// [heads][dim]
  const std::vector<float>& queries() const { return q_; }

 private:
  uint32_t heads_;
  std::vector<float> q_, part_o_, part_m_, part_l_, all_o_, all_m_, all_l_;
};

}  // namespace kvtier::bench
