#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tests/bench/codec_operations.h"
#include "tests/bench/interleave.h"

namespace kvtier::bench {

struct CodecsOptions {
  bool quick = false;  ///< the usual shape alone, fewer rounds
  bool json = false;
  bool check = false;  ///< no clock: every level's bytes against those of the portable kernels
  std::string simd;    ///< limits the kernels to this level; empty: the widest
  std::string only;    ///< words that a line's name must all hold
  float k_mean = 0;    ///< of K, in standard deviations
};

/// One line of the table.
struct CodecLine {
  std::string codec = {}, operation = {}, shape = {}, residency = {};
  uint32_t threads = 1;
  double gbps = 0;       ///< of FP16 bytes
  double to_memcpy = 0;  ///< as fast as memcpy so many times
  double to_stream = 0;  ///< likewise a non-temporal copy; 0 in cache, where it makes no sense
  double to_best = 0;
  std::optional<SpeedBound> bound = {};
  std::optional<double> checksum_share = {};  ///< what checksums add to this decode

  bool Holds() const;
};

/// Measures what `options` asks for. Errors: kResourceExhausted.
Result<std::vector<CodecLine>> MeasureCodecs(const CodecsOptions& options);
/// Every operation of every codec at every level of the CPU; the errors name what differs.
Status CheckCodecs();

void PrintCodecTable(const std::vector<CodecLine>& lines);
void PrintCodecJson(const std::vector<CodecLine>& lines);

}  // namespace kvtier::bench
