#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tiers/base/block_io.h"
#include "tiers/cold_format.h"

namespace kvtier {

/// A block as a cold store has it: an int2 image, its K tail and its V tail; each with its record fits into
/// one block of the device.
struct ColdBlock {
  BlockIdentity identity;
  RecordMeta meta;
  std::array<std::vector<std::byte>, kColdParts> parts;
};
/// Real bytes of `number` and the same ones every time. Blocks 1 to kColdBlocks are chained and of one model.
inline constexpr uint64_t kColdBlocks = 3;
const ColdBlock& ColdBlockOf(uint64_t number);

/// The record of a part of the block at `place`, which says the part.
ColdRecord RecordOf(const ColdBlock& block, const Place& place);

/// Makes a store of these blocks and their model, each part in a segment of its own stream: segment 0 holds
/// the bases, 1 the K tails, 2 the V tails, records side by side. Dies when that fails.
void FillColdStore(ColdStore& store, BlockIo& io, uint64_t first_sequence);

/// What the blocks that a start found must be.
struct FoundRules {
  bool forged = false;  ///< checksums were made right over other bytes: any block may be there
  std::array<bool, kColdBlocks> must_be_there{};  ///< block 1 first
};
/// Reads every block and tail that was found. A wrong hit never: what checks out is, byte for byte, what was
/// stored under its key; and nothing is lost that had no reason.
void CheckFoundBlocks(ColdStore& store, BlockIo& io, const ColdRecovery& found, const FoundRules& rules);

/// Where the bytes of a stored part say something, so that mutations can be followed by checksums: makes
/// those of an image's or a tail's header right, whatever else it says.
void RepairPayloadHeader(std::span<std::byte> payload);
/// The crc of a record header, and of a segment header.
void RepairRecordCrc(std::span<std::byte> header);
void RepairSegmentCrc(std::span<std::byte> header);

}  // namespace kvtier
