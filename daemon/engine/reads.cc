#include <algorithm>

#include "daemon/engine/engine_impl.h"
#include "tiers/base/check.h"

namespace kvtier {
namespace {

/// Keys whose table slots are fetched ahead of use.
constexpr size_t kPrefetchAhead = 8;
/// Tells one tenant's key from the same key of another.
constexpr uint64_t kTenantMix = 0x9e37'79b9'7f4a'7c15;

Precision BestPrecision(const Entry& entry) {
  return *std::max_element(entry.precision.begin(), entry.precision.end());
}

TierId HighestTier(const Entry& entry) {
  for (uint8_t i = 0; i < kMaxTiers; ++i) {
    if (entry.Has(i)) return TierId{i};
  }
  return TierId{};
}

}  // namespace

EntryId EngineImpl::FindReadable(const Session& session, ModelId model, const Key& key, Code& why) {
  why = Code::kNotFound;
  const EntryId id = table_.Find(session.tenant, key);
  if (id == kNoEntry) return kNoEntry;
  const Entry& entry = table_.at(id);
  if (entry.model != model) {
    metrics_.namespace_mismatches.Add();
    return kNoEntry;
  }
  if (!entry.Stored()) {
    why = entry.storing ? Code::kPending : Code::kNotFound;
    return kNoEntry;
  }
  why = Code::kOk;
  return id;
}

void EngineImpl::CollectTails(const Session& session, ModelId model, const Key& parent,
                              std::vector<EntryId>& out) {
  for (const EntryId id : table_.Tails(session.tenant, parent)) {
    const Entry& entry = table_.at(id);
    if (entry.model == model && entry.Stored()) out.push_back(id);
  }
}

void EngineImpl::CountMiss(const Session& session, const Key& key) {
  if (ghosts_.Take(session.tenant, key)) metrics_.evicted_then_requested.Add();
}

bool EngineImpl::Handle(Lookup& c) {
  Session* session = FindSession(c.session);
  if (session == nullptr) {
    Fail(c.reply, Code::kStale, "the session is not open");
    return true;
  }
  if (cursor_ == 0) {
    Status valid = CheckModel(*session, c.model);
    if (valid.ok() && c.keys.size() > kMaxKeysPerCall)
      valid = Status(Code::kInvalidArgument, "too many keys");
    if (!valid.ok()) {
      if (c.reply) c.reply(std::move(valid));
      return true;
    }
    lookup_ = LookupReply{};
    lookup_.run.reserve(c.keys.size());
    for (size_t i = 0; i < std::min(kPrefetchAhead, c.keys.size()); ++i)
      table_.Prefetch(session->tenant, c.keys[i]);
  }
  Code why = Code::kOk;
  for (; cursor_ < c.keys.size(); ++cursor_) {
    if (budget_ == 0) return false;
    --budget_;
    if (cursor_ + kPrefetchAhead < c.keys.size()) {
      table_.Prefetch(session->tenant, c.keys[cursor_ + kPrefetchAhead]);
    }
    const EntryId id = FindReadable(*session, c.model, c.keys[cursor_], why);
    if (id == kNoEntry) break;
    const Entry& entry = table_.at(id);
    lookup_.run.push_back({.precision = BestPrecision(entry), .tier = HighestTier(entry)});
  }
  lookup_.next_pending = why == Code::kPending;
  std::vector<EntryId> tails;
  CollectTails(*session, c.model, lookup_.run.empty() ? c.parent : c.keys[lookup_.run.size() - 1], tails);
  for (const EntryId id : tails)
    lookup_.tails.push_back({.tokens = table_.at(id).tokens, .key = table_.at(id).key});
  metrics_.lookups.Add();
  metrics_.lookup_keys.Add(c.keys.size());
  for (const Key& key : c.keys) distinct_.Add(std::hash<Key>{}(key) ^ session->tenant.value * kTenantMix);
  metrics_.lookup_distinct_keys.Set(static_cast<int64_t>(distinct_.Estimate()));
  metrics_.lookup_hit_keys.Add(lookup_.run.size());
  if (lookup_.run.size() < c.keys.size()) CountMiss(*session, c.keys[lookup_.run.size()]);
  if (c.reply) c.reply(std::move(lookup_));
  return true;
}

}  // namespace kvtier
