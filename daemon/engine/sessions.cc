#include <algorithm>

#include "daemon/engine/engine_impl.h"
#include "tiers/base/check.h"
#include "tiers/cxl_format.h"

namespace kvtier {

Session* EngineImpl::FindSession(SessionId id) {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : &found->second;
}

Status EngineImpl::CheckModel(const Session& session, ModelId model) const {
  if (std::find(session.models.begin(), session.models.end(), model) != session.models.end())
    return Status::Ok();
  return Status(Code::kNotFound, "the session has not registered this model");
}

bool EngineImpl::Handle(OpenSession& c) {
  if (sessions_.contains(c.session)) {
    Fail(c.reply, Code::kAlreadyExists, "the session is open");
    return true;
  }
  if (sessions_.size() >= options_.limits.sessions) {
    metrics_.sessions_refused.Add();
    Fail(c.reply, Code::kResourceExhausted, "too many sessions");
    return true;
  }
  const Result<TenantId> tenant = models_.Tenant(c.tenant_name);
  if (!tenant.ok()) {
    metrics_.sessions_refused.Add();
    if (c.reply) c.reply(tenant.status());
    return true;
  }
  Session& session = sessions_[c.session];
  session.id = c.session;
  session.tenant = *tenant;
  metrics_.sessions_opened.Add();
  for (const Tier& tier : ladder_.tiers()) {
    if (!tier.host()) continue;
    for (const auto& [id, arena] : tier.arenas->arenas()) {
      const bool readable = arena.state == ArenaState::kReady || arena.state == ArenaState::kDraining;
      if (readable && arena.spec.tenant == *tenant) deps_.events.OnSessionArena(c.session, arena.spec);
    }
  }
  if (c.reply) c.reply(OpenedSession{*tenant});
  return true;
}

bool EngineImpl::Handle(CloseSession& c) {
  Session* session = FindSession(c.session);
  if (session == nullptr) {
    Fail(c.reply, Code::kStale, "the session is not open");
    return true;
  }
  std::vector<OpId> filling;
  std::vector<LeaseId> granted;
  for (const auto& [id, lease] : session->leases) {
    if (lease.pending != OpId{}) {
      filling.push_back(lease.pending);
    } else {
      granted.push_back(id);
    }
  }
  for (const OpId op : filling) FailAcquire(op, Code::kCancelled);
  for (const LeaseId id : granted) {
    metrics_.leases_orphaned.Add();
    EndLease(*session, id);
  }
  for (auto& [id, ticket] : session->tickets) {
    for (TicketWait& wait : ticket.waits) {
      timers_.Cancel({wait.deadline, TimerKind::kTicketWait, c.session.value, wait.id});
      Fail(wait.reply, Code::kCancelled, "the session was closed");
    }
  }
  for (auto at = prefetches_.begin(); at != prefetches_.end();) {
    at = at->second.session == c.session ? prefetches_.erase(at) : std::next(at);
  }
  sessions_.erase(c.session);
  std::vector<ArenaId> owed;
  for (const auto& [id, arena] : retired_) owed.push_back(id);
  for (const ArenaId id : owed) OnArenaUnmapped(c.session, id);
  if (c.reply) c.reply(Done{});
  return true;
}

bool EngineImpl::Handle(StoreMapped& c) {
  Session* session = FindSession(c.session);
  if (session == nullptr || c.tier.value >= ladder_.tiers().size()) return true;
  session->maps[c.tier.value] = ladder_.at(c.tier).tenant == session->tenant;
  return true;
}

bool EngineImpl::Handle(ArenaUnmapped& c) {
  for (const Tier& tier : ladder_.tiers()) {
    Session* session = c.arena == StoreArenaId(tier.id) ? FindSession(c.session) : nullptr;
    if (session != nullptr) session->maps[tier.id.value] = false;
  }
  OnArenaUnmapped(c.session, c.arena);
  return true;
}

bool EngineImpl::Handle(RegisterModel& c) {
  Session* session = FindSession(c.session);
  if (session == nullptr) {
    Fail(c.reply, Code::kStale, "the session is not open");
    return true;
  }
  const Result<ModelId> registered = models_.Register(session->tenant, c.spec);
  if (!registered.ok()) {
    if (c.reply) c.reply(registered.status());
    return true;
  }
  const bool known =
      std::find(session->models.begin(), session->models.end(), *registered) != session->models.end();
  if (!known) {
    if (session->models.size() >= options_.limits.models_per_session) {
      Fail(c.reply, Code::kResourceExhausted, "too many models in this session");
      return true;
    }
    session->models.push_back(*registered);
  }
  PersistModel(*registered);
  const Model& model = models_.at(*registered);
  if (c.reply)
    c.reply(RegisteredModel{.model = model.id, .name_space = model.name_space, .spec = model.spec});
  return true;
}

void EngineImpl::PersistModel(ModelId id) {
  Model& model = models_.at(id);
  for (const Tier& tier : ladder_.tiers()) {
    Persisted& persisted = model.persisted[tier.id.value];
    if (tier.has_slots() || persisted != Persisted::kNo || !tier.TakesBlocksOf(model.tenant)) continue;
    persisted = Persisted::kOrdered;
    EnqueueCold(
        {.kind = PendingJob::Kind::kPutModel, .tier = tier.id, .model = id},
        PutModelJob{.tier = tier.id,
                    .model = {.name_space = model.name_space,
                              .fields = SerializeModel(models_.TenantName(model.tenant), model.spec)}});
  }
}

void EngineImpl::OnPutModelDone(ModelId model, TierId tier, const Status& status) {
  Persisted& persisted = models_.at(model).persisted[tier.value];
  persisted = Persisted::kYes;
  if (status.ok()) return;
  ladder_.at(tier).metrics->write_errors.Add();
  if (status.code() == Code::kOutOfRange) {
    persisted = Persisted::kRefused;
    return;
  }
  persisted = Persisted::kNo;  // ordered again before the next block of the model goes to the tier
  if (IsDeviceFailure(status.code())) ladder_.at(tier).circuit.OnFailure(now_);
}

Ticket* EngineImpl::OpenTicket(Session& session, TicketId id, OpId op) {
  if (session.tickets.contains(id) || session.tickets.size() >= kMaxTicketsPerSession) return nullptr;
  Ticket& ticket = session.tickets[id];
  ticket.op = op;
  return &ticket;
}

Ticket* EngineImpl::FindTicket(SessionId session_id, TicketId id) {
  Session* session = FindSession(session_id);
  if (session == nullptr) return nullptr;
  const auto found = session->tickets.find(id);
  return found == session->tickets.end() ? nullptr : &found->second;
}

void EngineImpl::CloseTicket(SessionId session_id, TicketId id, PutReply result) {
  Ticket* ticket = FindTicket(session_id, id);
  if (ticket == nullptr) return;
  for (TicketWait& wait : ticket->waits) {
    timers_.Cancel({wait.deadline, TimerKind::kTicketWait, session_id.value, wait.id});
    if (wait.reply) wait.reply(result);
  }
  ticket->waits.clear();
  ticket->done = true;
  ticket->result = std::move(result);
  Session* session = FindSession(session_id);
  session->done_tickets.push_back(id);
  if (session->done_tickets.size() <= kDoneTicketsPerSession) return;
  session->tickets.erase(session->done_tickets.front());
  session->done_tickets.pop_front();
}

bool EngineImpl::Handle(WaitTicket& c) {
  Ticket* ticket = FindTicket(c.session, c.ticket);
  if (ticket == nullptr) {
    Fail(c.reply, Code::kStale, "no such ticket");
  } else if (ticket->done) {
    if (c.reply) c.reply(ticket->result);
  } else if (ticket->waits.size() >= kMaxWaitsPerTicket) {
    Fail(c.reply, Code::kResourceExhausted, "too many waits for this ticket");
  } else {
    const uint64_t id = next_id_++;
    timers_.Add({current_->deadline, TimerKind::kTicketWait, c.session.value, id});
    ticket->waits.push_back({.id = id, .deadline = current_->deadline, .reply = std::move(c.reply)});
  }
  return true;
}

void EngineImpl::ExpireTicketWait(SessionId session_id, uint64_t wait_id) {
  Session* session = FindSession(session_id);
  if (session == nullptr) return;
  for (auto& [id, ticket] : session->tickets) {
    const auto wait = std::find_if(ticket.waits.begin(), ticket.waits.end(),
                                   [wait_id](const TicketWait& w) { return w.id == wait_id; });
    if (wait == ticket.waits.end()) continue;
    Reply<PutReply> reply = std::move(wait->reply);
    ticket.waits.erase(wait);
    return Fail(reply, Code::kDeadlineExceeded, "the ticket is not done");
  }
}

}  // namespace kvtier
