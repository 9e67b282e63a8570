// Blocks that are used a lot stay when the segment that they are in is reclaimed: they are written again
// first.
#include <algorithm>

#include "daemon/engine/engine_impl.h"
#include "tiers/base/check.h"

namespace kvtier {
namespace {

/// Uses that are worth a rewrite: stored, and asked for since.
constexpr uint32_t kLeastUsesToStay = 2;
/// Of one segment; more would take memory and queues from those who wait.
constexpr size_t kMaxRewrites = 256;

}  // namespace

std::vector<EntryId> EngineImpl::WorthRewriting(const Tier& tier, uint32_t segment) const {
  std::vector<std::pair<uint32_t, EntryId>> used;
  for (const SegmentAllocator::Record& record : tier.segments->Records(segment)) {
    if (!StandsIn(tier, segment, record)) continue;
    const EntryId id{record.owner};
    const Entry& entry = table_.at(id);
    if (!entry.in_table) continue;
    // What is higher up as well comes down again by itself.
    bool higher = false;
    for (uint8_t i = 0; i < tier.id.value; ++i) {
      higher |= table_.copy(entry, TierId{i}).state != CopyState::kAbsent;
    }
    const uint32_t uses = UsesOf(entry);
    if (!higher && uses >= kLeastUsesToStay) used.emplace_back(uses, id);
  }
  std::ranges::stable_sort(used, [](const auto& a, const auto& b) { return a.first > b.first; });
  uint64_t left =
      static_cast<uint64_t>(tier.options.rewrite_share * static_cast<double>(tier.options.segment_bytes));
  std::vector<EntryId> worth;
  for (const auto& [uses, id] : used) {
    const uint64_t bytes = table_.copy(id, tier.id).place_bytes();
    if (bytes > left || worth.size() == kMaxRewrites) break;
    left -= bytes;
    worth.push_back(id);
  }
  return worth;
}

bool EngineImpl::StartRewrites(Tier& tier, uint32_t segment) {
  if (tier.options.rewrite_share <= 0 || tier.circuit.open()) return false;
  for (const EntryId id : WorthRewriting(tier, segment)) {
    const Entry& entry = table_.at(id);
    const Copy& copy = table_.copy(entry, tier.id);
    const uint64_t bytes = ColdRecordBytes(copy.image_bytes);
    if (!tier.admission.HasBudget(bytes, now_)) break;
    const std::optional<Place> target = tier.segments->Append(bytes, id.value);
    if (!target) break;  // only into what is clean: nobody waits for a rewrite
    const OpId op{next_id_++};
    rewrites_.emplace(op, Rewrite{.entry = id, .tier = tier.id, .target = *target});
    tier.rewriting_bytes += target->bytes;
    ++tier.rewrites_in_flight;
    ladder_.Pin(id, tier.id, PinKind::kJob);
    MoveOrder order;
    order.identity = models_.IdentityOf(entry);
    order.meta = {.parent = entry.parent, .floor = entry.floor, .is_tail = entry.is_tail};
    order.source = ladder_.PlaceOf(copy);
    order.source_medium = tier.options.medium;
    order.target = *target;
    order.target_medium = tier.options.medium;
    // Tails stay where they are: they are of this encoding, wherever its base stands.
    order.codec = FindCodec(ladder_.RecordOf(entry, tier.id).codec);
    order.scales = models_.at(entry.model).scales;
    Enqueue({.kind = PendingJob::Kind::kRewrite, .tier = tier.id, .op = op}, MoveJob{std::move(order)});
  }
  return tier.rewrites_in_flight > 0;
}

void EngineImpl::OnRewritten(const PendingJob& job, const Completion& completion) {
  ++changes_;
  Rewrite& rewrite = rewrites_.at(job.op);
  Tier& tier = ladder_.at(rewrite.tier);
  const Entry& entry = table_.at(rewrite.entry);
  if (completion.status.ok()) {
    const uint64_t bytes = ColdRecordBytes(completion.outcome.image_bytes);
    tier.metrics->written_for_rewrites.Add(bytes);
    tier.segments->Made(rewrite.target);
    tier.admission.Wrote(bytes);
    if (!entry.Has(tier.id.value)) return EndRewrite(job.op);
    ColdRecord record = ladder_.RecordOf(entry, tier.id);
    record.place = rewrite.target;
    record.binding = completion.outcome.binding;
    return EnqueueCold({.kind = PendingJob::Kind::kRewriteCommit, .tier = tier.id, .op = job.op},
                       CommitJob{tier.id, std::move(record)});
  }
  const EntryId id = rewrite.entry;
  if (completion.status.code() == Code::kDataLoss) {
    tier.metrics->checksum_failures.Add();
    Quarantine(id, tier.id);
  } else {
    const Code code = completion.status.code();
    tier.metrics->write_errors.Add();
    if (code == Code::kResourceExhausted && tier.segments->NoSpaceFor(rewrite.target))
      tier.grow_after = now_ + kGrowPause;
    if (IsDeviceFailure(code)) tier.circuit.OnFailure(now_);
  }
  EndRewrite(job.op);
}

void EngineImpl::OnRewriteCommitted(const PendingJob& job, const Status& status) {
  ++changes_;
  Rewrite& rewrite = rewrites_.at(job.op);
  Tier& tier = ladder_.at(rewrite.tier);
  if (status.ok()) {
    rewrite.committed = true;  // AdvanceRewrites goes on
    return;
  }
  tier.metrics->write_errors.Add();
  tier.circuit.OnFailure(now_);
  tier.segments->Seal(rewrite.target);
  EndRewrite(job.op);
}

bool EngineImpl::AdvanceRewrites(Tier& tier) {
  std::vector<OpId> ready;
  for (const auto& [op, rewrite] : rewrites_) {
    if (rewrite.tier != tier.id || !rewrite.committed) continue;
    const Copy& copy = table_.copy(rewrite.entry, tier.id);
    // Others may read the old record still.
    if (copy.lease_pins == 0 && copy.job_pins == 1) ready.push_back(op);
  }
  for (const OpId op : ready) EndRewrite(op);
  return tier.rewrites_in_flight == 0;
}

void EngineImpl::EndRewrite(OpId op) {
  const auto node = rewrites_.extract(op);
  KVTIER_CHECK(!node.empty());
  const Rewrite& rewrite = node.mapped();
  Tier& tier = ladder_.at(rewrite.tier);
  --tier.rewrites_in_flight;
  tier.rewriting_bytes -= rewrite.target.bytes;
  if (rewrite.committed && table_.at(rewrite.entry).Has(tier.id.value)) {
    ladder_.Relocate(rewrite.entry, tier.id, rewrite.target);
  } else {
    ladder_.GiveUpPlace(rewrite.entry, tier.id, rewrite.target);
  }
  ladder_.Unpin(rewrite.entry, tier.id, PinKind::kJob);
  ForgetIfGone(rewrite.entry);
}

}  // namespace kvtier
