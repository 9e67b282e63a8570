#pragma once

#include <optional>
#include <string>
#include <vector>

#include "codecs/codec.h"
#include "tests/bench/codec_work.h"

namespace kvtier::bench {

/// What is done with a layer.
enum class Work : uint8_t { kEncode, kDecode, kDecodeAndVerify, kCut };

struct Operation {
  Work work;
  Destination destination = Destination::kContiguous;  ///< of a decode
  const Codec* to = nullptr;                           ///< of a cut
  std::optional<DType> source = {};                    ///< where it is not the codec's usual one
};
std::string OperationName(const Operation& operation);
/// All that this codec can do with layers of its usual type; of others, what differs.
std::vector<Operation> OperationsOf(const Codec& codec, DType source);
void RunOnLayer(CodecWork& work, const Operation& operation, uint32_t layer, Stores stores);

/// Where the working set is: in DRAM, or in half of the cache that a core has to itself.
enum class Residency : uint8_t { kDram, kCache };

/// What one core must reach and should reach, as multiples of the speed of memcpy of the FP16 bytes; the aim
/// is against the better of memcpy and a non-temporal copy. With `gbps_instead`, that many GB/s of FP16 will
/// do as well.
struct SpeedBound {
  double ratio;
  double aim;
  double gbps_instead = 0;
};
/// None where none is set. Bounds are for the usual shape, 8 heads x 128.
std::optional<SpeedBound> BoundOf(const Codec& codec, const Operation& operation, Residency residency);

/// The time that checksums may add to a decode, as a share of it.
inline constexpr double kChecksumShareMax = 0.20, kChecksumShareAim = 0.10;

}  // namespace kvtier::bench
