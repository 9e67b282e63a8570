#include "daemon/engine/ladder.h"

#include <algorithm>
#include <utility>

#include "tiers/base/check.h"
#include "tiers/cxl_format.h"

namespace kvtier {
namespace {

size_t Index(Precision precision) {
  return static_cast<size_t>(precision);
}

/// Images that are no plain sealed block (tails, blocks with raw layers) share slots in quarter steps of the
/// slot of a raw block.
constexpr uint64_t kOddSizeSteps = 4;

}  // namespace

uint32_t SegmentLimitOf(const TierOptions& tier) {
  return tier.kind == MediumKind::kCxl ? CxlSegmentLimit(tier.capacity_bytes, tier.segment_bytes)
                                       : ColdSegmentLimit(tier.capacity_bytes, tier.segment_bytes);
}

Ladder::Ladder(const std::vector<TierOptions>& tiers, BlockTable& table, ModelTable& models, Metrics& metrics)
    : table_(table), models_(models) {
  for (size_t i = 0; i < tiers.size(); ++i) {
    Tier& tier = tiers_.emplace_back();
    tier.id = TierId{static_cast<uint8_t>(i)};
    tier.options = tiers[i];
    tier.admission = AdmissionPolicy(tiers[i].admission);
    tier.metrics = &metrics.tier[i];
    tier.metrics->capacity_bytes.Set(static_cast<int64_t>(tiers[i].capacity_bytes));
    if (HasArenas(tiers[i].kind)) {
      tier.arenas = std::make_unique<ArenaAllocator>(tier.id, tiers[i].capacity_bytes);
    } else {
      tier.segments = std::make_unique<SegmentAllocator>(tier.id, tiers[i].segment_bytes,
                                                         SegmentLimitOf(tiers[i]), tiers[i].segment_records);
      tier.order = MakeEvictionPolicy("lru").value();
    }
  }
}

void Ladder::BeginWrite(EntryId id, TierId tier_id, CodecId codec, TransferId transfer) {
  KVTIER_CHECK(transfer != TransferId{});
  table_.copies().Add(table_.at(id), tier_id, CopyState::kWriting).codec = codec;
  writers_[{id.value, tier_id.value}] = transfer;
}

TransferId Ladder::WriterOf(EntryId id, TierId tier) const {
  const auto found = writers_.find({id.value, tier.value});
  return found == writers_.end() ? TransferId{} : found->second;
}

Place Ladder::PlaceOf(const Copy& copy) const {
  if (!copy.has_place()) return {};
  const Tier& tier = at(copy.tier);
  const Place place =
      tier.has_slots() ? tier.arenas->PlaceOf(ArenaId{copy.container}, copy.spot)
                       : tier.segments->PlaceOf(copy.container, copy.spot * kSlotAlign, copy.place_bytes());
  // The slot or record is the copy's own until it is freed: it cannot have come into another use.
  KVTIER_CHECK(place.bytes == copy.place_bytes() && static_cast<uint32_t>(place.epoch) == copy.epoch);
  return place;
}

void Ladder::SetPlace(Copy& copy, const Place& place, const Tier& tier) {
  const uint64_t spot = tier.has_slots() ? place.slot : place.offset / kSlotAlign;
  KVTIER_CHECK(place.tier == tier.id && place.part == ColdPart::kBase);
  KVTIER_CHECK(place.bytes <= kMaxPlaceBytes && place.bytes % kSlotAlign == 0 && spot <= UINT32_MAX);
  copy.blocks = static_cast<uint16_t>(place.bytes / kSlotAlign);
  copy.container = place.container;
  copy.spot = static_cast<uint32_t>(spot);
  copy.epoch = static_cast<uint32_t>(place.epoch);
}

bool Ladder::TakePlace(EntryId id, TierId tier_id, uint64_t image_bytes) {
  Entry& entry = table_.at(id);
  Copy& copy = table_.copies().At(entry, tier_id);
  KVTIER_CHECK(copy.state == CopyState::kWriting && !copy.has_place());
  Tier& tier = at(tier_id);
  const std::optional<Place> place =
      tier.has_slots() ? tier.arenas->Allocate(ClassOf(entry, copy.codec, image_bytes), id.value)
                       : tier.segments->Append(ColdRecordBytes(image_bytes), id.value);
  if (!place) return false;
  SetPlace(copy, *place, tier);
  return true;
}

void Ladder::ReturnPlace(EntryId id, TierId tier_id) {
  KVTIER_CHECK(table_.copy(id, tier_id).state == CopyState::kWriting);
  FreePlace(id, at(tier_id));
}

void Ladder::Publish(EntryId id, TierId tier_id, const MoveOutcome& outcome, uint32_t since) {
  Entry& entry = table_.at(id);
  Tier& tier = at(tier_id);
  Copy& copy = table_.copies().At(entry, tier_id);
  KVTIER_CHECK(copy.state == CopyState::kWriting && copy.has_place() && entry.in_table);
  KVTIER_CHECK(outcome.image_bytes <= copy.place_bytes() && FindCodec(outcome.codec) != nullptr);
  writers_.erase({id.value, tier_id.value});
  copy.codec = outcome.codec;
  copy.image_bytes = static_cast<uint32_t>(outcome.image_bytes);
  copy.k_error = outcome.k_error;
  copy.v_error = outcome.v_error;
  copy.since = since;
  PublishTails(id, tier, outcome);
  CountPresent(id, tier);
  EnterOrder(id, tier);
}

void Ladder::CountPresent(EntryId id, Tier& tier) {
  Entry& entry = table_.at(id);
  Copy& copy = table_.copies().At(entry, tier.id);
  Model& model = models_.at(entry.model);
  if (!entry.Stored()) ++model.blocks;
  model.image_bytes += copy.image_bytes + TailBytesOf(id, tier);
  copy.state = CopyState::kPresent;
  const Precision precision = FindCodec(copy.codec)->precision;
  entry.precision[tier.id.value] = precision;
  ++tier.blocks[Index(precision)];
  tier.fp16_bytes += Fp16Bytes(entry);
}

uint64_t Ladder::Fp16Bytes(const Entry& entry) const {
  BlockShape shape = models_.ShapeOf(entry);
  shape.dtype = DType::kFp16;
  return RawBlockBytes(shape);
}

void Ladder::AbandonWrite(EntryId id, TierId tier_id) {
  Entry& entry = table_.at(id);
  const Copy& copy = table_.copy(entry, tier_id);
  KVTIER_CHECK(copy.state == CopyState::kWriting && !copy.pinned());
  if (copy.has_place()) FreePlace(id, at(tier_id));
  writers_.erase({id.value, tier_id.value});
  table_.copies().Remove(entry, tier_id);
}

void Ladder::Drop(EntryId id, TierId tier_id) {
  Hide(id, at(tier_id));
  Settle(id, at(tier_id));
}

void Ladder::DropWithSegment(EntryId id, TierId tier_id) {
  Tier& tier = at(tier_id);
  Entry& entry = table_.at(id);
  KVTIER_CHECK(tier.cold() && !table_.copy(entry, tier_id).pinned());
  Hide(id, tier);
  FreeTails(id, tier);
  Copy& copy = table_.copies().At(entry, tier_id);
  tier.segments->Release(PlaceOf(copy));
  copy.blocks = 0;
  table_.copies().Remove(entry, tier_id);
}

void Ladder::Hide(EntryId id, Tier& tier) {
  Entry& entry = table_.at(id);
  Copy& copy = table_.copies().At(entry, tier.id);
  KVTIER_CHECK(copy.state == CopyState::kPresent);
  if (copy.lease_pins == 0) OrderOf(entry, tier).Erase(id.value);
  copy.state = CopyState::kFreeing;
  Precision& precision = entry.precision[tier.id.value];
  --tier.blocks[Index(precision)];
  tier.fp16_bytes -= Fp16Bytes(entry);
  precision = Precision::kNone;
  Model& model = models_.at(entry.model);
  model.image_bytes -= copy.image_bytes + TailBytesOf(id, tier);
  if (!entry.Stored()) --model.blocks;
}

void Ladder::Settle(EntryId id, Tier& tier) {
  const Copy& copy = table_.copy(id, tier.id);
  if (copy.state != CopyState::kFreeing || copy.pinned()) return;
  FreePlace(id, tier);
  table_.copies().Remove(table_.at(id), tier.id);
}

void Ladder::FreePlace(EntryId id, Tier& tier) {
  Entry& entry = table_.at(id);
  Copy& copy = table_.copies().At(entry, tier.id);
  KVTIER_CHECK(copy.has_place());
  const Place place = PlaceOf(copy);
  if (tier.has_slots()) {
    tier.arenas->Free(place);
  } else {
    FreeTails(id, tier);
    tier.to_erase.push_back(RecordOf(entry, tier.id));
    tier.segments->Release(place);
  }
  copy.blocks = 0;
}

void Ladder::Recover(EntryId id, const RecoveredBlock& record) {
  Entry& entry = table_.at(id);
  Tier& tier = at(record.place.tier);
  tier.segments->RecoverRecord(record.place, id.value);
  Copy& copy = table_.copies().Add(entry, tier.id, CopyState::kPresent);
  copy.codec = record.codec;
  copy.image_bytes = static_cast<uint32_t>(record.image_bytes);
  copy.k_error = record.k_error;
  copy.v_error = record.v_error;
  SetPlace(copy, record.place, tier);
  RecoverTails(id, tier, record);
  CountPresent(id, tier);
  EnterOrder(id, tier);
}

void Ladder::Relocate(EntryId id, TierId tier, const Place& to) {
  Copy& copy = table_.copies().At(table_.at(id), tier);
  KVTIER_CHECK(copy.state == CopyState::kPresent && copy.lease_pins == 0 && copy.job_pins == 1);
  KVTIER_CHECK(at(tier).cold() && copy.image_bytes <= to.bytes);
  const Place from = PlaceOf(copy);
  SetPlace(copy, to, at(tier));
  GiveUpPlace(id, tier, from);
}

void Ladder::GiveUpPlace(EntryId id, TierId tier_id, const Place& place) {
  Tier& tier = at(tier_id);
  ColdRecord record = RecordOf(table_.at(id), tier_id);
  record.place = place;
  tier.to_erase.push_back(std::move(record));
  tier.segments->Release(place);
}

void Ladder::Pin(EntryId id, TierId tier_id, PinKind kind) {
  Entry& entry = table_.at(id);
  Copy& copy = table_.copies().At(entry, tier_id);
  KVTIER_CHECK(copy.state == CopyState::kPresent);
  if (kind == PinKind::kJob) {
    KVTIER_CHECK(copy.job_pins < UINT16_MAX);
    ++copy.job_pins;
    return;
  }
  if (copy.lease_pins++ > 0) return;
  Tier& tier = at(tier_id);
  OrderOf(entry, tier).Erase(id.value);
  if (tier.cold()) ++tier.leased_copies[copy.container];
}

void Ladder::Unpin(EntryId id, TierId tier_id, PinKind kind) {
  Entry& entry = table_.at(id);
  Copy& copy = table_.copies().At(entry, tier_id);
  KVTIER_CHECK(copy.state == CopyState::kPresent || copy.state == CopyState::kFreeing);
  if (kind == PinKind::kJob) {
    KVTIER_CHECK(copy.job_pins > 0);
    --copy.job_pins;
  } else {
    KVTIER_CHECK(copy.lease_pins > 0);
    Tier& tier = at(tier_id);
    if (--copy.lease_pins == 0 && copy.state == CopyState::kPresent) EnterOrder(id, tier);
    if (copy.lease_pins == 0 && tier.cold()) {
      const auto leased = tier.leased_copies.find(copy.container);
      KVTIER_CHECK(leased != tier.leased_copies.end());
      if (--leased->second == 0) tier.leased_copies.erase(leased);
    }
  }
  Settle(id, at(tier_id));
}

void Ladder::EnterOrder(EntryId id, Tier& tier) {
  Entry& entry = table_.at(id);
  entry.last_use = ++uses_;
  const uint32_t depth =
      static_cast<uint32_t>(entry.first_position / models_.at(entry.model).spec.tokens_per_block);
  OrderOf(entry, tier)
      .Insert({.entry = id.value, .depth = depth, .priority = static_cast<uint8_t>(entry.priority)});
}

void Ladder::Touch(EntryId id) {
  Entry& entry = table_.at(id);
  entry.last_use = ++uses_;
  for (Tier& tier : tiers_) {
    const Copy& copy = table_.copy(entry, tier.id);
    if (copy.state == CopyState::kPresent && copy.lease_pins == 0) OrderOf(entry, tier).Touch(id.value);
  }
}

EvictionPolicy& Ladder::OrderOf(const Entry& entry, Tier& tier) {
  if (!tier.has_slots()) return *tier.order;
  return *QueueOf(tier, {entry.tenant, table_.copy(entry, tier.id).place_bytes()}).order;
}

SlotQueue& Ladder::QueueOf(Tier& tier, const SlotClass& slot_class) {
  SlotQueue& queue = tier.classes[slot_class];
  if (!queue.order) {
    queue.order = MakeEvictionPolicy("lru").value();
    tier.largest_slot_bytes = std::max(tier.largest_slot_bytes, slot_class.slot_bytes);
  }
  return queue;
}

SlotClass Ladder::ClassOf(const Entry& entry, CodecId codec, uint64_t image_bytes) const {
  const Model& model = models_.at(entry.model);
  const uint64_t raw_slot = model.sealed_slot_bytes[static_cast<size_t>(RawCodecOf(model.spec.dtype))];
  const uint64_t plain_slot = model.sealed_slot_bytes[static_cast<size_t>(codec)];
  if (!entry.is_tail && image_bytes <= plain_slot) return {entry.tenant, plain_slot};
  for (uint64_t step = 1; step <= kOddSizeSteps; ++step) {
    const uint64_t slot =
        step == kOddSizeSteps ? raw_slot : AlignUp(raw_slot * step / kOddSizeSteps, kSlotAlign);
    if (image_bytes <= slot) return {entry.tenant, slot};
  }
  return {entry.tenant, AlignUp(image_bytes, kSlotAlign)};
}

ColdRecord Ladder::RecordOf(const Entry& entry, TierId tier) const {
  const Copy& copy = table_.copy(entry, tier);
  return {.identity = models_.IdentityOf(entry),
          .meta = {.parent = entry.parent, .floor = entry.floor, .is_tail = entry.is_tail},
          .place = PlaceOf(copy),
          .codec = copy.in_parts ? CodecId::kKv2p : copy.codec,
          .image_bytes = copy.image_bytes,
          .k_error = copy.k_error,
          .v_error = copy.v_error,
          .binding = 0};
}

void Ladder::PublishGauges() const {
  for (const Tier& tier : tiers_) {
    tier.metrics->used_bytes.Set(static_cast<int64_t>(tier.used_bytes()));
    tier.metrics->fp16_bytes.Set(static_cast<int64_t>(tier.fp16_bytes));
    for (size_t i = 0; i < tier.blocks.size(); ++i) {
      tier.metrics->blocks[i].Set(static_cast<int64_t>(tier.blocks[i]));
    }
    tier.metrics->circuit_open.Set(tier.circuit.open() ? 1 : 0);
    tier.metrics->read_circuit_open.Set(tier.reads.open() ? 1 : 0);
    if (tier.has_slots()) continue;
    const uint32_t reserved =
        std::min(tier.segments->segment_limit(), tier.options.keep_tails ? kReservedColdSegments : 2u);
    const uint64_t usable = (tier.segments->segment_limit() - reserved) * tier.options.segment_bytes;
    tier.metrics->reserve_bytes.Set(static_cast<int64_t>(tier.options.capacity_bytes - usable));
    for (int part = 0; part < kColdParts; ++part) {
      const uint64_t bytes = tier.segments->live_bytes(static_cast<ColdPart>(part));
      tier.metrics->part_bytes[part].Set(static_cast<int64_t>(bytes));
    }
  }
}

}  // namespace kvtier
