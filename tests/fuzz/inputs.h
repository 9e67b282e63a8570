#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

// What a fuzzer's bytes mean. Both functions return on every input; a defect kills the process
// (guarded_decode.h).

namespace kvtier {

/// The first bytes choose codec, shape, planes and destination; the rest, repeated, are the bytes of the
/// parts. Returns whether the codec has the shape.
bool DecodeArbitraryParts(std::span<const std::byte> input);

/// The first bytes choose the destination, the rest is an image. Its header's checksum is made right, so that
/// parsing looks at what the header says; what parses is decoded without a look at the checksums of its
/// parts. Returns whether it parsed.
bool DecodeArbitraryImage(std::span<const std::byte> input);

/// Bytes of an input of DecodeArbitraryImage in front of the image.
inline constexpr size_t kImagePrologueBytes = 2;

}  // namespace kvtier
