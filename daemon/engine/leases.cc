#include <algorithm>

#include "daemon/engine/engine_impl.h"
#include "tiers/base/check.h"

namespace kvtier {

Lease* EngineImpl::FindLease(SessionId session_id, LeaseId id) {
  Session* session = FindSession(session_id);
  if (session == nullptr) return nullptr;
  const auto found = session->leases.find(id);
  return found == session->leases.end() ? nullptr : &found->second;
}

bool EngineImpl::FitsLeaseShare(const Session& session, TierId tier, uint64_t bytes,
                                uint64_t promised) const {
  const uint64_t pinned = session.pinned_bytes[tier.value] + promised;
  const double share =
      options_.limits.lease_share * static_cast<double>(ladder_.at(tier).options.capacity_bytes);
  // One block is always allowed: a tier may be smaller than a few of its blocks.
  return pinned == 0 || static_cast<double>(pinned + bytes) <= share;
}

void EngineImpl::PinForLease(Session& session, Lease& lease, EntryId entry, TierId tier) {
  ladder_.Pin(entry, tier, PinKind::kLease);
  const uint64_t bytes = table_.copy(entry, tier).place_bytes();
  session.pinned_bytes[tier.value] += bytes;
  lease.pins.push_back({entry, tier, bytes});
}

void EngineImpl::UnpinForLease(Session& session, Lease& lease, EntryId entry, TierId tier) {
  const auto pin = std::find_if(lease.pins.begin(), lease.pins.end(), [entry, tier](const Lease::Pinned& p) {
    return p.entry == entry && p.tier == tier;
  });
  KVTIER_CHECK(pin != lease.pins.end());
  session.pinned_bytes[tier.value] -= pin->bytes;
  lease.pins.erase(pin);
  ladder_.Unpin(entry, tier, PinKind::kLease);
  ForgetIfGone(entry);
}

void EngineImpl::EndLease(Session& session, LeaseId id) {
  const auto found = session.leases.find(id);
  KVTIER_CHECK(found != session.leases.end());
  Lease lease = std::move(found->second);
  session.leases.erase(found);
  if (lease.pending == OpId{}) {
    timers_.Cancel({lease.expires, TimerKind::kLease, session.id.value, id.value});
    metrics_.leases_live.Add(-1);
  }
  // The head of a chain was pinned first and is unpinned last: most recently used, it outlives its tail.
  for (auto pin = lease.pins.rbegin(); pin != lease.pins.rend(); ++pin) {
    session.pinned_bytes[pin->tier.value] -= pin->bytes;
    ladder_.Unpin(pin->entry, pin->tier, PinKind::kLease);
    ForgetIfGone(pin->entry);
  }
}

void EngineImpl::ExpireLease(SessionId session_id, LeaseId id) {
  Session* session = FindSession(session_id);
  Lease* lease = FindLease(session_id, id);
  KVTIER_CHECK(session != nullptr && lease != nullptr && lease->pending == OpId{});
  metrics_.leases_expired.Add();
  EndLease(*session, id);
}

bool EngineImpl::Handle(Release& c) {
  Session* session = FindSession(c.session);
  const Lease* lease = FindLease(c.session, c.lease);
  if (lease == nullptr) {
    Fail(c.reply, Code::kStale, "the lease expired or never was");
    return true;
  }
  if (lease->pending != OpId{}) {
    FailAcquire(lease->pending, Code::kCancelled);
  } else {
    VerifyDamaged(*lease, c.damaged);
    EndLease(*session, c.lease);
    metrics_.leases_released.Add();
  }
  if (c.reply) c.reply(Done{});
  return true;
}

bool EngineImpl::Handle(Renew& c) {
  Lease* lease = FindLease(c.session, c.lease);
  if (lease == nullptr || lease->pending != OpId{}) {
    Fail(c.reply, Code::kStale, "the lease expired or never was");
    return true;
  }
  timers_.Cancel({lease->expires, TimerKind::kLease, c.session.value, c.lease.value});
  const Duration ttl = c.ttl > Duration{} ? c.ttl : options_.limits.default_lease_ttl;
  lease->expires = now_ + std::min(ttl, options_.limits.max_lease_ttl);
  timers_.Add({lease->expires, TimerKind::kLease, c.session.value, c.lease.value});
  if (c.reply) c.reply(Done{});
  return true;
}

}  // namespace kvtier
