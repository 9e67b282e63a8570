#include "daemon/service/event_hub.h"

#include <algorithm>

namespace kvtier {
namespace {

uint64_t MillisecondsSince1970() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(since).count());
}

}  // namespace

std::optional<v1::Event> EventWatcher::Take() {
  const std::lock_guard lock(mutex_);
  if (waiting_.empty()) return std::nullopt;
  v1::Event event = std::move(waiting_.front());
  waiting_.pop_front();
  return event;
}

std::optional<Status> EventWatcher::Over() const {
  const std::lock_guard lock(mutex_);
  return waiting_.empty() ? over_ : std::nullopt;
}

void EventWatcher::Offer(v1::Event event) {
  event.set_time_ms(MillisecondsSince1970());
  Add(event);
  TellReady();
}

void EventWatcher::Detach() {
  const std::lock_guard lock(ready_mutex_);
  ready_ = nullptr;
}

void EventWatcher::Add(const v1::Event& event) {
  const std::lock_guard lock(mutex_);
  if (over_) return;
  ++last_sequence_;
  if (waiting_.size() >= capacity_) return lost_.Add();
  waiting_.push_back(event);
  waiting_.back().set_sequence(last_sequence_);
}

void EventWatcher::End(const Status& why) {
  const std::lock_guard lock(mutex_);
  if (!over_) over_ = why;
}

bool EventWatcher::SnapshotIsDue(TimePoint now) {
  const std::lock_guard lock(mutex_);
  if (over_ || now < next_snapshot_) return false;
  next_snapshot_ = now + snapshot_every_;
  return true;
}

void EventWatcher::TellReady() {
  const std::lock_guard lock(ready_mutex_);
  if (ready_) ready_();
}

void EventHub::TellEverybody(v1::Event event) {
  Tell({.whom = For::kEverybody, .tenant = {}, .event = std::move(event)});
}

void EventHub::TellTenant(const std::string& tenant, v1::Event event) {
  Tell({.whom = For::kTenant, .tenant = tenant, .event = std::move(event)});
}

void EventHub::TellAdmins(v1::Event event) {
  Tell({.whom = For::kAdmins, .tenant = {}, .event = std::move(event)});
}

bool EventHub::IsFor(const Told& told, const WatcherIdentity& identity) {
  if (identity.admin || told.whom == For::kEverybody) return true;
  return told.whom == For::kTenant && told.tenant == identity.tenant;
}

void EventHub::Tell(Told told) {
  told.event.set_time_ms(MillisecondsSince1970());
  Watchers touched;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& watcher : watchers_) {
      if (!IsFor(told, watcher->identity())) continue;
      watcher->Add(told.event);
      touched.push_back(watcher);
    }
    told.order = ++told_;
    History& history = told.whom == For::kTenant ? of_tenants_ : of_all_;
    history.push_back(std::move(told));
    if (history.size() > options_.history) history.pop_front();
  }
  for (const auto& watcher : touched) watcher->TellReady();
}

std::vector<const EventHub::Told*> EventHub::Remembered(const WatcherIdentity& identity) const {
  std::vector<const Told*> found;
  for (const History* history : {&of_tenants_, &of_all_}) {
    for (const Told& told : *history) {
      if (IsFor(told, identity)) found.push_back(&told);
    }
  }
  std::ranges::sort(found, {}, &Told::order);
  return found;
}

Status EventHub::Admit(const WatcherIdentity& identity) const {
  if (closed_) return Status(Code::kUnavailable, "the daemon stops");
  if (watchers_.size() >= options_.watchers) return Status(Code::kResourceExhausted, "too many watch");
  if (identity.admin) return Status::Ok();
  size_t others = 0, of_tenant = 0;
  for (const auto& watcher : watchers_) {
    if (watcher->identity().admin) continue;
    ++others;
    of_tenant += watcher->identity().tenant == identity.tenant ? 1 : 0;
  }
  if (others + options_.kept_for_admins >= options_.watchers)
    return Status(Code::kResourceExhausted, "too many watch");
  if (of_tenant < options_.watchers_of_tenant) return Status::Ok();
  return Status(Code::kResourceExhausted,
                "the tenant has all its " + std::to_string(of_tenant) + " watchers");
}

Result<std::shared_ptr<EventWatcher>> EventHub::Watch(WatcherIdentity identity, WatchOptions options,
                                                      EventWatcher::Ready ready, TimePoint now) {
  const std::lock_guard lock(mutex_);
  KVTIER_TRY(Admit(identity));
  auto watcher = std::make_shared<EventWatcher>(std::move(identity), options.snapshot_every, options_.queue,
                                                metrics_.watch_events_lost);
  watcher->ready_ = std::move(ready);
  watcher->next_snapshot_ = now + options.snapshot_every;
  if (options.history) {
    for (const Told* told : Remembered(watcher->identity())) watcher->Add(told->event);
  }
  watchers_.push_back(watcher);
  metrics_.watchers.Set(static_cast<int64_t>(watchers_.size()));
  return watcher;
}

void EventHub::Forget(const std::shared_ptr<EventWatcher>& watcher) {
  const std::lock_guard lock(mutex_);
  std::erase(watchers_, watcher);
  metrics_.watchers.Set(static_cast<int64_t>(watchers_.size()));
}

void EventHub::EndSession(SessionId session) {
  Watchers touched;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& watcher : watchers_) {
      if (watcher->identity().session == session) touched.push_back(watcher);
    }
  }
  for (const auto& watcher : touched) {
    watcher->End(Status(Code::kUnauthenticated, "the session has ended"));
    watcher->TellReady();
  }
}

std::vector<std::shared_ptr<EventWatcher>> EventHub::DueForSnapshot(TimePoint now) {
  const std::lock_guard lock(mutex_);
  Watchers due;
  for (const auto& watcher : watchers_) {
    if (watcher->SnapshotIsDue(now)) due.push_back(watcher);
  }
  return due;
}

void EventHub::Close() {
  Watchers touched;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    touched = watchers_;
  }
  for (const auto& watcher : touched) {
    watcher->End(Status(Code::kUnavailable, "the daemon stops"));
    watcher->TellReady();
  }
}

size_t EventHub::watchers() const {
  const std::lock_guard lock(mutex_);
  return watchers_.size();
}

}  // namespace kvtier
