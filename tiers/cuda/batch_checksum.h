#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/host_device.h"
#include "kernels/team.h"

// CRC32C (tiers/crc32c.h) of many stretches of memory at once, by lanes that share each of them.

namespace kvtier {

struct ChecksumItem {
  const uint8_t* data = nullptr;  ///< begins at a multiple of 4
  uint64_t bytes = 0;             ///< a multiple of 4
};
struct ChecksumBatchArgs {
  const ChecksumItem* items = nullptr;  ///< [count]
  uint32_t count = 0;
  uint32_t* crcs = nullptr;  ///< [count]
};

inline constexpr uint32_t kChecksumTables = 4, kChecksumTableSize = 256;
inline constexpr uint32_t kChecksumLanesMax = 1024;
constexpr LaunchShape ChecksumBatchLaunch(const ChecksumBatchArgs& args) {
  return {.blocks = args.count,
          .scratch_bytes = (kChecksumTables * kChecksumTableSize + kChecksumLanesMax) * sizeof(uint32_t)};
}

namespace internal {

/// Polynomials over GF(2) modulo that of CRC32C, reflected: the highest bit is the coefficient of x^0.
inline constexpr uint32_t kCrc32cPolynomial = 0x82F63B78;
inline constexpr uint32_t kCrcOne = 0x80000000, kCrcX = 0x40000000;

KVTIER_HD inline uint32_t CrcMultiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = kCrcOne; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b & 1) != 0 ? (b >> 1) ^ kCrc32cPolynomial : b >> 1;
  }
  return product;
}

/// x^exponent.
KVTIER_HD inline uint32_t CrcPower(uint64_t exponent) {
  uint32_t power = kCrcOne, square = kCrcX;
  for (; exponent != 0; exponent >>= 1) {
    if ((exponent & 1) != 0) power = CrcMultiply(power, square);
    square = CrcMultiply(square, square);
  }
  return power;
}

/// tables[b][v] = (v in byte b) * factor, so that a product takes four loads.
template <Team T>
KVTIER_HD void FillCrcTables(const T& team, uint32_t factor, uint32_t* tables) {
  for (uint32_t at = team.rank(); at < kChecksumTables * kChecksumTableSize; at += team.size()) {
    const uint32_t byte = at / kChecksumTableSize, value = at % kChecksumTableSize;
    tables[at] = CrcMultiply(value << 8 * byte, factor);
  }
}
KVTIER_HD inline uint32_t CrcMultiplyByTables(uint32_t value, const uint32_t* tables) {
  return tables[value & 0xff] ^ tables[kChecksumTableSize + (value >> 8 & 0xff)] ^
         tables[2 * kChecksumTableSize + (value >> 16 & 0xff)] ^
         tables[3 * kChecksumTableSize + (value >> 24)];
}

}  // namespace internal

/// One item a block of lanes. The register after words w[0..n) is the sum of w[i] * x^(32 (n - i)), the first
/// with all bits flipped; a lane sums up every size()-th word by Horner's rule, so that lanes read side by
/// side, and what the lanes have is added.
template <Team T>
KVTIER_HD void ChecksumBatch(const T& team, const ChecksumBatchArgs& args) {
  auto* const tables = reinterpret_cast<uint32_t*>(team.scratch());
  uint32_t* const sums = tables + kChecksumTables * kChecksumTableSize;
  const ChecksumItem& item = args.items[team.block()];
  const uint64_t words = item.bytes / sizeof(uint32_t);
  internal::FillCrcTables(team, internal::CrcPower(uint64_t{32} * team.size()), tables);
  team.sync();
  uint32_t sum = 0;
  uint64_t last = 0;
  for (uint64_t at = team.rank(); at < words; at += team.size()) {
    uint32_t word = 0;
    memcpy(&word, item.data + at * sizeof(word), sizeof(word));
    sum = internal::CrcMultiplyByTables(sum, tables) ^ (at == 0 ? ~word : word);
    last = at;
  }
  sums[team.rank()] = internal::CrcMultiply(sum, internal::CrcPower(32 * (words - last)));
  team.sync();
  if (team.rank() != 0) return;
  uint32_t whole = words == 0 ? ~uint32_t{0} : uint32_t{0};
  for (uint32_t lane = 0; lane < team.size(); ++lane) whole ^= sums[lane];
  args.crcs[team.block()] = ~whole;
}

}  // namespace kvtier
