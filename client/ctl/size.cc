#include "client/ctl/size.h"

#include <fmt/format.h>

#include <algorithm>

#include "client/ctl/output.h"
#include "codecs/image_layout.h"
#include "tiers/arena_allocator.h"
#include "tiers/cold_tail.h"
#include "tiers/image.h"
#include "tiers/segment_allocator.h"

namespace kvtier::ctl {
namespace {

/// Segments of a cold tier without tails that no block can count on.
constexpr uint32_t kReservedWithoutTails = 2;

Result<uint64_t> ImageBytes(CodecId id, const BlockShape& shape) {
  const Codec* codec = FindCodec(id);
  const BlockShape stored = StoredShape(id, shape);
  if (codec == nullptr || !codec->supports(stored)) {
    return kvtier::Status(
        Code::kInvalidArgument,
        "no codec takes blocks of this shape: head dimensions are multiples of 16 up to 256");
  }
  return PlainImageBytes(*codec, stored);
}

/// Slots of one size in a host tier, as its allocator plans arenas.
uint64_t HostBlocks(uint64_t capacity_bytes, uint64_t slot_bytes) {
  const uint32_t usual = ArenaAllocator(TierId{}, capacity_bytes).UsualSlots(slot_bytes);
  const uint64_t arenas = capacity_bytes / ArenaBytes(usual, slot_bytes);
  const uint64_t left = capacity_bytes - arenas * ArenaBytes(usual, slot_bytes);
  auto more = static_cast<uint32_t>(std::min<uint64_t>(usual, left / slot_bytes));
  while (more > 0 && ArenaBytes(more, slot_bytes) > left) --more;
  return arenas * usual + more;
}

/// A record is in one segment; the first one of a block, which is the largest, has `base_bytes`.
uint64_t ColdBlocks(const SizeRequest& request, uint64_t block_bytes, uint64_t base_bytes) {
  const uint32_t limit = ColdSegmentLimit(request.cold_bytes, request.segment_bytes);
  const uint32_t reserved =
      std::min(limit, request.keep_tails ? kReservedColdSegments : kReservedWithoutTails);
  const uint64_t segments = limit - reserved, room = request.segment_bytes - kColdSegmentHeaderBytes;
  return std::min(segments * room / block_bytes, segments * (room / base_bytes));
}

Status AddHost(const char* tier, CodecId codec, uint64_t capacity, const BlockShape& shape,
               std::vector<TierSize>& out) {
  if (capacity == 0) return Status::Ok();
  KVTIER_ASSIGN(const uint64_t image_bytes, ImageBytes(codec, shape));
  const uint64_t slot = AlignUp(image_bytes, kSlotAlign);
  out.push_back({.tier = tier,
                 .precision = FindCodec(codec)->precision,
                 .capacity_bytes = capacity,
                 .block_bytes = slot,
                 .blocks = HostBlocks(capacity, slot)});
  return Status::Ok();
}

Status AddCold(const SizeRequest& request, std::vector<TierSize>& out) {
  if (request.cold_bytes == 0) return Status::Ok();
  KVTIER_ASSIGN(const uint64_t base_bytes, ImageBytes(CodecId::kKv2p, request.block));
  const uint64_t base = ColdRecordBytes(base_bytes);
  const auto add = [&](Precision precision, uint64_t bytes) {
    out.push_back({.tier = "cold",
                   .precision = precision,
                   .capacity_bytes = request.cold_bytes,
                   .block_bytes = bytes,
                   .blocks = ColdBlocks(request, bytes, base)});
  };
  if (request.keep_tails) {
    const BlockShape stored = StoredShape(CodecId::kKv2p, request.block);
    uint64_t whole = base;
    for (const ColdPart part : {ColdPart::kKTail, ColdPart::kVTail}) {
      whole += ColdRecordBytes(PlainTailBytes(stored, part));
    }
    add(Precision::kInt4, whole);
  }
  add(Precision::kInt2, base);
  return Status::Ok();
}

std::string Lasts(double tokens, double tokens_per_second) {
  return tokens_per_second > 0 ? HumanSeconds(tokens / tokens_per_second) : "-";
}

}  // namespace

Result<std::vector<TierSize>> SizeLadder(const SizeRequest& request) {
  if (request.segment_bytes <= kColdSegmentHeaderBytes) {
    return kvtier::Status(Code::kInvalidArgument, "a segment of " + HumanBytes(request.segment_bytes));
  }
  std::vector<TierSize> tiers;
  const CodecId raw = RawCodecOf(request.block.dtype);
  KVTIER_TRY(AddHost("hot", raw, request.hot_bytes, request.block, tiers));
  KVTIER_TRY(AddHost("warm", CodecId::kKv4p, request.warm_bytes, request.block, tiers));
  KVTIER_TRY(AddCold(request, tiers));
  if (tiers.empty())
    return kvtier::Status(Code::kInvalidArgument, "name a tier's capacity: --hot, --warm, --cold");
  for (const TierSize& tier : tiers) {
    if (tier.blocks > 0) continue;
    return kvtier::Status(Code::kInvalidArgument, "not one block of " + HumanBytes(tier.block_bytes) +
                                                      " fits in " + tier.tier + " with " +
                                                      HumanBytes(tier.capacity_bytes));
  }
  return tiers;
}

Result<std::string> SizeReport(const SizeRequest& request, Format format) {
  KVTIER_ASSIGN(const std::vector<TierSize> tiers, SizeLadder(request));
  const uint64_t tokens = request.block.tokens;
  Table table({"tier", "precision", "bytes a token", "a block", "capacity", "blocks", "tokens", "lasts"});
  JsonWriter json;
  json.BeginObject().Number("tokens_per_block", tokens).BeginArray("tiers");
  for (const TierSize& tier : tiers) {
    const std::string precision = PrecisionName(static_cast<uint32_t>(tier.precision));
    table.Row({tier.tier, precision, std::to_string(tier.block_bytes / tokens), HumanBytes(tier.block_bytes),
               HumanBytes(tier.capacity_bytes), std::to_string(tier.blocks),
               std::to_string(tier.blocks * tokens),
               Lasts(static_cast<double>(tier.blocks * tokens), request.tokens_per_second)});
    json.BeginObject().Text("tier", tier.tier).Text("precision", precision);
    json.Number("capacity_bytes", tier.capacity_bytes).Number("block_bytes", tier.block_bytes);
    json.Number("blocks", tier.blocks).Number("tokens", tier.blocks * tokens).EndObject();
  }
  if (format == Format::kHuman) return table.str();
  return json.EndArray().EndObject().str() + '\n';
}

}  // namespace kvtier::ctl
