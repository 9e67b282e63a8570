#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tiers/base/status.h"

namespace kvtier::bench {

struct AttentionOptions {
  bool quick = false;  ///< 8k tokens in place of 32k, fewer rounds
  bool json = false;
  std::string simd;   ///< no wider vectors than this level; empty: what the CPU has
  std::string codec;  ///< this one beside raw16; empty: all
};

/// Decode attention over a context that no cache holds, by one codec and number of query heads per KV head.
struct AttentionLine {
  std::string codec;
  uint32_t group = 0;            ///< query heads per KV head
  double tokens_per_second = 0;  ///< of context, one layer
  double gbps = 0;               ///< of encoded bytes read
  double to_raw16 = 0;           ///< how many times as fast as attention over raw16, in the same rounds
  double bound = 0;              ///< to_raw16 that is asked of it; 0: none
  bool Holds() const { return to_raw16 >= bound; }
};

/// One core, 8 KV heads of 128 channels, blocks of 128 tokens. Errors: kResourceExhausted.
Result<std::vector<AttentionLine>> MeasureAttention(const AttentionOptions& options);

void PrintAttentionTable(const std::vector<AttentionLine>& lines);
void PrintAttentionJson(const std::vector<AttentionLine>& lines);

}  // namespace kvtier::bench
