#include <algorithm>
#include <functional>
#include <map>

#include "daemon/engine/engine_impl.h"
#include "tiers/base/check.h"
#include "tiers/cold_tail.h"

namespace kvtier {
namespace {

/// Recovered blocks that are looked at for the sizes of slots that readers will want.
constexpr uint32_t kReaderLooks = 65'536;
/// Arenas of a tier that are made for them ahead: at most a quarter of it.
constexpr uint32_t kReaderArenas = kArenasPerTier / 4;

}  // namespace

void EngineImpl::Recover(std::vector<ColdRecovery> recovery) {
  for (Tier& tier : ladder_.tiers()) {
    if (!tier.options.tenant.empty()) tier.tenant = models_.Tenant(tier.options.tenant).value();
  }
  for (size_t i = 0; i < recovery.size(); ++i) {
    Tier& tier = ladder_.tiers()[i];
    if (tier.has_slots()) continue;
    tier.segments->StartAt(recovery[i].least_sequence);
    for (const ModelRecord& record : recovery[i].models) RecoverModel(tier, record);
    for (const RecoveredSegment& segment : recovery[i].segments) tier.segments->Recover(segment);
    for (const RecoveredBlock& record : recovery[i].blocks) RecoverBlock(tier, record);
  }
  // Parents may have come after their children: relations once everything is there.
  for (uint32_t row = 0; row < table_.row_limit(); ++row) {
    const EntryId id{row};
    if (table_.live(id) && table_.at(id).in_table) OnStored(id, {});
  }
  for (Tier& tier : ladder_.tiers()) {
    if (tier.cold()) FlushErases(tier);
  }
  OrderArenasForReaders();
  PublishGauges();
}

void EngineImpl::OrderArenasForReaders() {
  std::map<std::pair<TierId, SlotClass>, uint32_t> blocks;
  uint32_t looks = 0;
  for (uint32_t row = 0; row < table_.row_limit() && looks < kReaderLooks; ++row) {
    const EntryId id{row};
    if (!table_.live(id) || !table_.at(id).in_table) continue;
    ++looks;
    const Entry& entry = table_.at(id);
    const TierId source = BestSource(entry);
    const std::optional<TierId> target = PromotionTarget(entry, source);
    if (!target) continue;
    const Target block = TargetFor(entry, source, ladder_.at(*target), Purpose::kPromote, Precision::kNone);
    ++blocks[{*target, ladder_.ClassOf(entry, block.codec->id, block.image_bytes)}];
  }
  std::vector<std::pair<uint32_t, std::pair<TierId, SlotClass>>> order;
  for (const auto& [where, count] : blocks) order.emplace_back(count, where);
  std::ranges::sort(order, std::greater());
  for (const auto& [count, where] : order) {
    Tier& tier = ladder_.at(where.first);
    if (tier.arenas->arenas().size() < kReaderArenas)
      CreateArena(tier, where.second, ladder_.QueueOf(tier, where.second));
  }
}

void EngineImpl::RecoverModel(const Tier& tier, const ModelRecord& record) {
  Result<StoredModel> stored = ParseModel(record.fields);
  if (!stored.ok()) {
    metrics_.namespace_mismatches.Add();
    return;
  }
  const Result<TenantId> tenant = models_.Tenant(stored->tenant);
  if (!tenant.ok()) return;
  const Result<ModelId> model = models_.Register(*tenant, stored->spec);
  if (!model.ok() || models_.at(*model).name_space != record.name_space) {
    metrics_.namespace_mismatches.Add();
    return;
  }
  models_.at(*model).persisted[tier.id.value] = Persisted::kYes;
}

void EngineImpl::RecoverBlock(Tier& tier, const RecoveredBlock& record) {
  const BlockIdentity& identity = record.identity;
  const Model* model = models_.Find(identity.name_space);
  const bool fits = model != nullptr && FindCodec(record.codec) != nullptr &&
                    identity.shape == ShapeOf(model->spec, identity.first_position, identity.shape.tokens) &&
                    identity.first_position % model->spec.tokens_per_block == 0 &&
                    FindCodec(record.codec)->precision >= record.meta.floor &&
                    tier.TakesBlocksOf(model->tenant);
  if (!fits) {
    metrics_.namespace_mismatches.Add();
    return;
  }
  const bool has_room = record.place.bytes <= kMaxPlaceBytes && record.place.bytes % kSlotAlign == 0 &&
                        record.place.offset % kSlotAlign == 0 && record.image_bytes > 0 &&
                        record.image_bytes <= record.place.bytes;
  if (!has_room || !tier.segments->Knows(record.place)) return;
  EntryId id = table_.Find(model->tenant, identity.key);
  if (id == kNoEntry) {
    const Result<EntryId> made = table_.Create(model->tenant, identity.key);
    if (!made.ok()) return;
    id = *made;
    Entry& entry = table_.at(id);
    entry.model = model->id;
    entry.parent = record.meta.parent;
    entry.first_position = identity.first_position;
    entry.tokens = identity.shape.tokens;
    entry.is_tail = record.meta.is_tail;
    entry.floor = record.meta.floor;
  }
  const Entry& entry = table_.at(id);
  const Copy& known = table_.copy(entry, tier.id);
  if (entry.model != model->id) return;
  // A higher cold tier told first what the block is. What another one kept from an earlier put of the key
  // goes.
  const bool same_put = entry.parent == record.meta.parent &&
                        entry.first_position == identity.first_position &&
                        entry.tokens == identity.shape.tokens && entry.is_tail == record.meta.is_tail &&
                        FindCodec(record.codec)->precision >= entry.floor;
  if (!same_put) {
    metrics_.cold_recovery_dropped.Add();
    tier.to_erase.push_back(record);
    for (const Place& tail : {record.k_tail.place, record.v_tail.place}) {
      if (tail.bytes > 0) tier.to_erase.push_back(TailRecord(record, tail));
    }
    return;
  }
  if (known.state == CopyState::kPresent) {
    // Two records of one block: the later write is the one that was meant to stay.
    const Place before = ladder_.PlaceOf(known);
    const bool newer =
        std::pair(record.place.epoch, record.place.offset) > std::pair(before.epoch, before.offset);
    if (!newer) return;
    ladder_.Drop(id, tier.id);
  }
  ladder_.Recover(id, record);
}

}  // namespace kvtier
