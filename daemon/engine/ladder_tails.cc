#include <utility>

#include "codecs/image_layout.h"
#include "daemon/engine/ladder.h"
#include "kernels/numerics.h"
#include "tiers/base/check.h"
#include "tiers/cold_tail.h"

namespace kvtier {

Place Ladder::TailPlace(EntryId id, TierId tier_id, ColdPart part) const {
  const Tier& tier = at(tier_id);
  const TailSpot spot = tier.has_slots() ? TailSpot{} : tier.tails.Find(id, part);
  if (!spot.there()) return {};
  return tier.segments->PlaceOf(spot.segment, spot.offset(), spot.bytes());
}

TailPlaces Ladder::TailsOf(EntryId id, TierId tier) const {
  return {TailPlace(id, tier, ColdPart::kKTail), TailPlace(id, tier, ColdPart::kVTail)};
}

uint64_t Ladder::TailBytesOf(EntryId id, const Tier& tier) const {
  if (tier.has_slots()) return 0;
  uint64_t bytes = 0;
  for (const ColdPart part : kColdTails) bytes += tier.tails.Find(id, part).bytes();
  return bytes;
}

void Ladder::SetTail(EntryId id, Tier& tier, const Place& place, float error) {
  tier.tails.Set(id, place.part,
                 {.offset_blocks = static_cast<uint32_t>(place.offset / kSlotAlign),
                  .blocks = static_cast<uint32_t>(place.bytes / kSlotAlign),
                  .segment = static_cast<uint16_t>(place.container),
                  .error = Fp16Out(error)});
}

bool Ladder::TakeTail(EntryId id, TierId tier_id, ColdPart part, uint64_t tail_bytes) {
  Tier& tier = at(tier_id);
  const Copy& copy = table_.copy(id, tier_id);
  KVTIER_CHECK(copy.state == CopyState::kWriting && copy.has_place() && !tier.tails.Find(id, part).there());
  const std::optional<Place> place = tier.segments->Append(ColdRecordBytes(tail_bytes), id.value, part);
  if (!place) return false;
  SetTail(id, tier, *place, 0);
  return true;
}

void Ladder::FreeTail(EntryId id, Tier& tier, ColdPart part, Erasing erasing) {
  const Place place = TailPlace(id, tier.id, part);
  if (place.bytes == 0) return;
  if (erasing == Erasing::kAlone) {
    tier.to_erase.push_back(TailRecord(RecordOf(table_.at(id), tier.id), place));
  }
  tier.segments->Release(place);
  tier.tails.Clear(id, part);
}

void Ladder::FreeTails(EntryId id, Tier& tier) {
  for (const ColdPart part : kColdTails) FreeTail(id, tier, part, Erasing::kAlone);
}

CodecId Ladder::RungWithTails(EntryId id, const Tier& tier) const {
  ColdPart best = ColdPart::kBase;
  for (const ColdPart part : kColdTails) {
    if (!tier.tails.Find(id, part).there()) break;  // V completes what K has completed
    best = part;
  }
  return RungOf(best).id;
}

void Ladder::PublishTails(EntryId id, Tier& tier, const MoveOutcome& outcome) {
  if (tier.has_slots()) return;
  Copy& copy = table_.copies().At(table_.at(id), tier.id);
  bool completes = true;  // V what K has completed
  for (const ColdPart part : kColdTails) {
    const TailOutcome& tail = outcome.tails[TailIndex(part)];
    const Place place = TailPlace(id, tier.id, part);
    completes = completes && place.bytes > 0 && tail.bytes > 0 && tail.code == Code::kOk;
    if (completes) {
      SetTail(id, tier, place, tail.error);
      tier.metrics->tails_written[TailIndex(part)].Add();
    } else {
      FreeTail(id, tier, part, Erasing::kAlone);
    }
  }
  copy.in_parts = tier.tails.Find(id, ColdPart::kKTail).there();
  if (copy.in_parts) copy.codec = RungWithTails(id, tier);
}

void Ladder::RecoverTails(EntryId id, Tier& tier, const RecoveredBlock& record) {
  Copy& copy = table_.copies().At(table_.at(id), tier.id);
  for (const RecoveredTail& tail : {record.k_tail, record.v_tail}) {
    if (tail.place.bytes == 0 || !tier.segments->Knows(tail.place)) continue;
    tier.segments->RecoverRecord(tail.place, id.value);
    SetTail(id, tier, tail.place, tail.error);
  }
  copy.in_parts = tier.tails.Find(id, ColdPart::kKTail).there();
  if (copy.in_parts) {
    copy.codec = RungWithTails(id, tier);
  } else {
    FreeTails(id, tier);  // V completes what K has completed
  }
}

void Ladder::DropTail(EntryId id, TierId tier_id, ColdPart part, Erasing erasing) {
  Tier& tier = at(tier_id);
  Entry& entry = table_.at(id);
  Copy& copy = table_.copies().At(entry, tier_id);
  KVTIER_CHECK(copy.state == CopyState::kPresent && copy.in_parts);
  uint64_t& model_bytes = models_.at(entry.model).image_bytes;
  model_bytes -= TailBytesOf(id, tier);
  FreeTail(id, tier, part, erasing);
  // V completes what K has completed.
  if (part == ColdPart::kKTail) FreeTail(id, tier, ColdPart::kVTail, Erasing::kAlone);
  model_bytes += TailBytesOf(id, tier);
  copy.codec = RungWithTails(id, tier);
  copy.in_parts = copy.codec != RungOf(ColdPart::kBase).id;
  Precision& precision = entry.precision[tier_id.value];
  --tier.blocks[static_cast<size_t>(precision)];
  precision = FindCodec(copy.codec)->precision;
  ++tier.blocks[static_cast<size_t>(precision)];
}

uint64_t Ladder::RungBytes(const Entry& entry, TierId tier, const Codec& rung) const {
  const Copy& copy = table_.copy(entry, tier);
  if (!copy.in_parts || rung.id == CodecId::kKv2p) return copy.image_bytes;
  const BlockShape shape = models_.ShapeOf(entry);
  const Codec& base = RungOf(ColdPart::kBase);
  const uint64_t plain_base = PlainImageBytes(base, shape), plain = PlainImageBytes(rung, shape);
  if (copy.image_bytes <= plain_base) return plain;
  // What it is larger than a plain one tells how many layers are raw; those have no tails.
  const auto layer_bytes = [&](const Codec& codec) {
    uint64_t bytes = 0;
    for (int region = 0; region < kRegions; ++region) {
      bytes += PartBytes(codec.id, shape, EncodedPlanes(codec, shape), static_cast<Region>(region));
    }
    return bytes;
  };
  const uint64_t raw = PartBytes(base.id, shape, kPlaneRaw, Region::kBase);
  const uint64_t raw_layers = (copy.image_bytes - plain_base) / (raw - layer_bytes(base));
  return plain + raw_layers * (raw - layer_bytes(rung));
}

std::pair<float, float> Ladder::ErrorsOf(EntryId id, TierId tier_id) const {
  const Copy& copy = table_.copy(id, tier_id);
  std::pair<float, float> errors = {copy.k_error, copy.v_error};
  const Tier& tier = at(tier_id);
  if (!copy.in_parts) return errors;
  errors.first = Fp32FromFp16(tier.tails.Find(id, ColdPart::kKTail).error);
  const TailSpot v_tail = tier.tails.Find(id, ColdPart::kVTail);
  if (v_tail.there()) errors.second = Fp32FromFp16(v_tail.error);
  return errors;
}

}  // namespace kvtier
