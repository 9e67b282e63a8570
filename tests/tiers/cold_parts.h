#pragma once

#include <utility>
#include <vector>

#include "tests/support/blocks.h"
#include "tests/tiers/cold_fixture.h"
#include "tiers/cold_tail.h"
#include "tiers/move.h"

namespace kvtier {

/// A block that is large enough for tails, whose bytes follow from `seed`. `version` is another KV of the
/// same key.
struct PartsBlock {
  BlockIdentity identity;
  std::vector<std::byte> raw;
};
inline PartsBlock MakePartsBlock(uint64_t seed, uint32_t version = 0) {
  PartsBlock block;
  block.identity = MakeIdentity(static_cast<uint32_t>(seed));
  block.identity.key = KeyOf(seed);
  block.identity.name_space = TestNamespace();
  block.raw = RandomRaw(block.identity.shape, static_cast<uint32_t>(seed * 8 + version));
  return block;
}

/// Its image in `codec`, as an encoding and a cut make it.
inline std::vector<std::byte> RungBytes(const PartsBlock& block, CodecId codec) {
  const OwnedImage int4 = EncodeOwned(*FindCodec(CodecId::kKv4p), block.identity, block.raw).value();
  const ImageView image = ParseImage(int4.bytes).value();
  AlignedBuffer out, tile;
  const std::span<std::byte> room = out.Reserve(int4.bytes.size() + 4096).value();
  const BuiltImage cut = RequantizeImage(image, *FindCodec(codec), block.identity, room, tile);
  KVTIER_CHECK(cut.status.ok());
  return {room.begin(), room.begin() + static_cast<ptrdiff_t>(cut.image_bytes)};
}

/// One block in its parts: what the engine would order, have written and commit.
struct WrittenParts {
  ColdRecord base;
  std::vector<ColdRecord> tails;
  TailPlaces places{};  ///< of those
};

/// Records of what a move said about the places of its order.
inline WrittenParts PartsOf(const MoveOrder& order, const MoveOutcome& outcome) {
  WrittenParts parts;
  parts.base.identity = order.identity;
  parts.base.meta = order.meta;
  parts.base.place = order.target;
  parts.base.codec = outcome.codec;
  parts.base.image_bytes = outcome.image_bytes;
  parts.base.k_error = outcome.k_error;
  parts.base.v_error = outcome.v_error;
  parts.base.binding = outcome.binding;
  for (const ColdPart part : kColdTails) {
    const TailOutcome& written = outcome.tails[TailIndex(part)];
    if (written.bytes == 0) continue;
    const Place& place = parts.places[TailIndex(part)] = order.target_tails[TailIndex(part)];
    parts.tails.push_back(TailRecord(parts.base, place, written.bytes, written.error));
  }
  return parts;
}

/// The order for a put of the block into the cold store, with places for all parts.
inline MoveOrder PartsOrder(const PartsBlock& block, ColdStore& store, TestAllocator& allocator) {
  MoveOrder order;
  order.identity = block.identity;
  order.meta = {.parent = KeyOf(1), .floor = Precision::kNone, .is_tail = false};
  order.staged = StagedSource{nullptr, block.raw};
  order.target_medium = &store;
  order.codec = FindCodec(CodecId::kKv2p);
  order.target = allocator.Next(PlainImageBytes(*order.codec, block.identity.shape));
  for (const ColdPart part : kColdTails) {
    order.target_tails[TailIndex(part)] = allocator.Next(PlainTailBytes(block.identity.shape, part), part);
  }
  return order;
}

/// Writes the block in its parts; nothing is committed.
inline Result<WrittenParts> WriteParts(ColdStore& store, BlockIo& io, TestAllocator& allocator,
                                       const PartsBlock& block) {
  const MoveOrder order = PartsOrder(block, store, allocator);
  MoveScratch scratch;
  scratch.io = &io;
  MoveOutcome outcome;
  KVTIER_TRY(MoveBlock(order, scratch, outcome));
  return PartsOf(order, outcome);
}

/// Commits as the committer does: tails first.
inline Status CommitParts(ColdStore& store, BlockIo& io, const WrittenParts& parts) {
  for (const ColdRecord& tail : parts.tails) KVTIER_TRY(store.Commit({&tail, 1}, io));
  return store.Commit({&parts.base, 1}, io);
}

}  // namespace kvtier
