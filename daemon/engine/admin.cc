#include <algorithm>

#include "daemon/engine/engine_impl.h"
#include "tiers/base/check.h"

namespace kvtier {

namespace {

std::string MediumText(const TierOptions& tier) {
  if (!tier.description.empty()) return tier.description;
  switch (tier.kind) {
    case MediumKind::kHost:
      return "host";
    case MediumKind::kGpu:
      return "gpu";
    case MediumKind::kCxl:
      return "cxl";
    case MediumKind::kNvme:
      return "nvme";
  }
  return "unknown";
}

}  // namespace

bool EngineImpl::Handle(Stats& c) {
  StatsReply reply;
  for (const Tier& tier : ladder_.tiers()) {
    TierStats& stats = reply.tiers.emplace_back();
    stats.name = tier.options.name;
    stats.medium = MediumText(tier.options);
    stats.codec = FindCodec(tier.options.codec)->name;
    stats.capacity_bytes = tier.options.capacity_bytes;
    stats.used_bytes = tier.used_bytes();
    stats.blocks = tier.blocks;
    stats.accepts_writes = tier.circuit.Allows(now_);
  }
  reply.table_entries = table_.live_rows();
  reply.leases_live = static_cast<uint64_t>(metrics_.leases_live.Get());
  reply.sessions = sessions_.size();
  reply.models = models_.models().size();
  reply.jobs_in_flight = jobs_.size();
  reply.command_queue_depth = deps_.commands.size();
  reply.draining = draining();
  if (c.reply) c.reply(std::move(reply));
  return true;
}

bool EngineImpl::Handle(ListModels& c) {
  std::vector<ModelStats> reply;
  for (const Model& model : models_.models()) {
    reply.push_back({.model = model.id,
                     .tenant = models_.TenantName(model.tenant),
                     .name_space = model.name_space,
                     .spec = model.spec,
                     .blocks = model.blocks,
                     .bytes = model.image_bytes});
  }
  if (c.reply) c.reply(std::move(reply));
  return true;
}

bool EngineImpl::Handle(ListBlocks& c) {
  if (!models_.Known(c.model)) {
    Fail(c.reply, Code::kNotFound, "no such model");
    return true;
  }
  SweepOp* sweep = StartSweep(SweepOp::Kind::kListBlocks);
  if (sweep == nullptr) {
    Fail(c.reply, Code::kResourceExhausted, "too many long operations");
    return true;
  }
  sweep->model = c.model;
  sweep->after = c.after;
  sweep->limit = c.limit == 0 ? kMaxKeysPerCall : std::min(c.limit, kMaxKeysPerCall);
  sweep->reply = std::move(c.reply);
  return true;
}

bool EngineImpl::StartTierSweep(SweepOp::Kind kind, TierId tier, uint64_t count, Reply<uint64_t>& reply) {
  if (tier.value >= ladder_.tiers().size()) {
    Fail(reply, Code::kInvalidArgument, "no such tier");
    return true;
  }
  SweepOp* sweep = StartSweep(kind);
  if (sweep == nullptr) {
    Fail(reply, Code::kResourceExhausted, "too many long operations");
    return true;
  }
  sweep->tier = tier;
  sweep->wanted = count;
  sweep->reply = std::move(reply);
  return true;
}

bool EngineImpl::Handle(AdminDemote& c) {
  return StartTierSweep(SweepOp::Kind::kDemote, c.from, c.count, c.reply);
}

bool EngineImpl::Handle(AdminEvict& c) {
  return StartTierSweep(SweepOp::Kind::kEvict, c.from, c.count, c.reply);
}

bool EngineImpl::Handle(AdminVerify& c) {
  SweepOp* sweep = c.tier.value < ladder_.tiers().size() ? StartSweep(SweepOp::Kind::kVerify) : nullptr;
  if (sweep == nullptr) {
    Fail(c.reply, Code::kInvalidArgument, "no such tier, or too many long operations");
    return true;
  }
  sweep->tier = c.tier;
  sweep->reply = std::move(c.reply);
  return true;
}

bool EngineImpl::Handle(AdminDrain& c) {
  if (!PersistentTier(std::nullopt)) {
    Fail(c.reply, Code::kFailedPrecondition, "there is no persistent tier");
    return true;
  }
  SweepOp* sweep = StartSweep(SweepOp::Kind::kDrain);
  if (sweep == nullptr) {
    Fail(c.reply, Code::kResourceExhausted, "too many long operations");
    return true;
  }
  draining_ = true;
  sweep->reply = std::move(c.reply);
  return true;
}

BlockStats EngineImpl::DescribeBlock(EntryId id) const {
  const Entry& entry = table_.at(id);
  BlockStats stats{.key = entry.key,
                   .parent = entry.parent,
                   .first_position = entry.first_position,
                   .tokens = entry.tokens,
                   .pins = 0,
                   .children = entry.children,
                   .priority = static_cast<uint8_t>(entry.priority),
                   .floor = entry.floor,
                   .is_tail = entry.is_tail,
                   .uses_since = ladder_.UsesSince(entry),
                   .recent_uses = sketch_ ? std::optional(UsesOf(entry)) : std::nullopt,
                   .copies = {}};
  for (const Tier& tier : ladder_.tiers()) {
    const Copy& copy = table_.copy(entry, tier.id);
    if (copy.state != CopyState::kPresent) continue;
    stats.pins += copy.lease_pins + copy.job_pins;
    const auto [k_error, v_error] = ladder_.ErrorsOf(id, tier.id);
    stats.copies.push_back({.tier = tier.id,
                            .codec = copy.codec,
                            .bytes = ladder_.RungBytes(entry, tier.id, *FindCodec(copy.codec)),
                            .k_error = k_error,
                            .v_error = v_error,
                            .present_ms = uint64_t{Tenths() - copy.since} * 100});
  }
  return stats;
}

}  // namespace kvtier
