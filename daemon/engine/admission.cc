// What cold tiers take of the blocks that are demoted to them, and what is written to their devices.
#include <algorithm>
#include <bit>

#include "daemon/engine/engine_impl.h"

namespace kvtier {
namespace {

/// A block on a cold tier is seldom smaller: how many names the sketch is for.
constexpr uint64_t kUsualColdBlockBytes = uint64_t{16} << 10;
constexpr uint64_t kLeastNames = 65536;
/// Demotions between looks at what would have to leave for them.
constexpr uint32_t kJudgementsPerLook = 64;

/// Keys are digests in the product; tests count them from one.
uint64_t NameOf(const Entry& entry) {
  uint64_t name = std::hash<Key>{}(entry.key) ^ (uint64_t{entry.tenant.value} * 0x9E3779B97F4A7C15u);
  name = (name ^ name >> 32) * 0xD6E8FEB86659FD93u;
  return name ^ name >> 32;
}

}  // namespace

std::unique_ptr<FrequencySketch> EngineImpl::MakeSketch(const EngineOptions& options) {
  uint64_t bytes = 0;
  bool wanted = false;
  for (const TierOptions& tier : options.tiers) {
    if (HasArenas(tier.kind)) continue;
    bytes += tier.capacity_bytes;
    wanted |= tier.admission.by_frequency || tier.rewrite_share > 0;
  }
  if (!wanted) return nullptr;
  return std::make_unique<FrequencySketch>(std::clamp(bytes / kUsualColdBlockBytes, kLeastNames,
                                                      std::max(kLeastNames, options.limits.max_entries)));
}

void EngineImpl::CountUse(const Entry& entry) {
  if (sketch_) sketch_->Add(NameOf(entry));
}

uint32_t EngineImpl::UsesOf(const Entry& entry) const {
  return sketch_ ? sketch_->Count(NameOf(entry)) : 0;
}

uint32_t EngineImpl::LeastUsesFor(Tier& to) {
  // While there is room nobody has to leave for it.
  if (!to.admission.by_frequency() || to.segments->fresh_segments() > SparesOf(to)) return 0;
  if (to.judged++ % kJudgementsPerLook != 0) return to.least_uses;
  to.least_uses = 0;
  const std::optional<uint32_t> next = ColdVictim(to, ColdPart::kBase);
  if (!next || to.segments->PartOf(*next) != ColdPart::kBase) return 0;
  uint64_t blocks = 0, uses = 0;
  for (const SegmentAllocator::Record& record : to.segments->Records(*next)) {
    if (!StandsIn(to, *next, record)) continue;
    ++blocks;
    uses += UsesOf(table_.at(EntryId{record.owner}));
  }
  if (blocks > 0) to.least_uses = static_cast<uint32_t>(uses / blocks) + 1;
  return to.least_uses;
}

bool EngineImpl::Admits(Tier& to, const Entry& entry, TierId from, DemotionFor whom) {
  if (to.has_slots()) return true;
  const Target target = TargetFor(entry, from, to, Purpose::kDemote, Precision::kNone);
  uint64_t bytes = ColdRecordBytes(target.image_bytes);
  for (const uint64_t tail : target.tail_bytes) bytes += tail > 0 ? ColdRecordBytes(tail) : 0;
  if (whom == DemotionFor::kOperator) {
    to.admission.Wrote(bytes);
    return true;
  }
  switch (to.admission.Judge(UsesOf(entry), LeastUsesFor(to), bytes, now_)) {
    case Admission::kAdmitted:
      to.metrics->admitted.Add();
      return true;
    case Admission::kSeldomUsed:
      to.metrics->refused_seldom_used.Add();
      return false;
    case Admission::kOverBudget:
      to.metrics->refused_over_budget.Add();
      return false;
  }
  return true;
}

void EngineImpl::CountWritten(const Transfer& transfer) {
  Tier& to = ladder_.at(transfer.to);
  uint64_t bytes = ColdRecordBytes(transfer.outcome.image_bytes);
  to.metrics->asked_bytes.Add(transfer.outcome.image_bytes);
  for (const TailOutcome& tail : transfer.outcome.tails) {
    if (tail.bytes == 0) continue;
    bytes += ColdRecordBytes(tail.bytes);
    to.metrics->asked_bytes.Add(tail.bytes);
  }
  if (transfer.purpose == Purpose::kDemote) return to.metrics->written_for_demotions.Add(bytes);
  to.metrics->written_for_puts.Add(bytes);
  to.admission.Wrote(bytes);
}

}  // namespace kvtier
