#include <algorithm>
#include <chrono>
#include <mutex>

#include "daemon/service/convert.h"
#include "daemon/service/grpc_service.h"

/// The stream of events: one reactor for each watcher, between the hub and gRPC.
namespace kvtier {
namespace {

constexpr uint32_t kDefaultSnapshotMs = 10'000, kMinSnapshotMs = 1'000, kMaxSnapshotMs = 3'600'000;

using WriteReactor = grpc::ServerWriteReactor<v1::Event>;

class RefusedWatch final : public WriteReactor {
 public:
  explicit RefusedWatch(const Status& why) { Finish(ToGrpc(why)); }
  void OnDone() override { delete this; }
};

WriteReactor* Refuse(const Status& why) {
  return std::make_unique<RefusedWatch>(why).release();  // deletes itself
}

/// Sends a watcher's events, one at a time: a client that does not read holds up nobody, since what waits is
/// bounded. Threads: any of gRPC's, and whoever tells the hub. Owns itself until OnDone.
class WatchReactor final : public WriteReactor {
 public:
  explicit WatchReactor(EventHub& hub) : hub_(hub) {}

  /// Before this no event is sent.
  void Start(std::shared_ptr<EventWatcher> watcher) {
    {
      const std::lock_guard lock(mutex_);
      watcher_ = std::move(watcher);
    }
    Send();
  }
  /// The next event, or the end, unless one is under way: OnWriteDone goes on.
  void Send() {
    const std::lock_guard lock(mutex_);
    if (!watcher_ || sending_ || finished_) return;
    if (!broken_) {
      if (std::optional<v1::Event> next = watcher_->Take()) {
        event_ = *std::move(next);
        sending_ = true;
        return StartWrite(&event_);
      }
    }
    const std::optional<Status> over =
        broken_ ? Status(Code::kCancelled, "the watcher has gone") : watcher_->Over();
    if (!over) return;
    finished_ = true;
    Finish(ToGrpc(*over));
  }
  void OnWriteDone(bool ok) override {
    {
      const std::lock_guard lock(mutex_);
      sending_ = false;
      broken_ |= !ok;
    }
    Send();
  }
  void OnCancel() override {
    {
      const std::lock_guard lock(mutex_);
      broken_ = true;
    }
    Send();
  }
  void OnDone() override {
    // Whoever tells the hub at this moment has done with this before Detach returns.
    watcher_->Detach();
    hub_.Forget(watcher_);
    delete this;
  }

 private:
  EventHub& hub_;
  std::mutex mutex_;  ///< of what follows
  std::shared_ptr<EventWatcher> watcher_;
  v1::Event event_;  ///< being sent
  bool sending_ = false, broken_ = false, finished_ = false;
};

}  // namespace

grpc::ServerWriteReactor<v1::Event>* GrpcService::Watch(Context* /*context*/,
                                                        const v1::WatchRequest* request) {
  const std::shared_ptr<ClientSession> session = deps_.registry.Find(request->session_token());
  const Status allowed = Allow(session.get(), Need::kSession);
  if (!allowed.ok()) return Refuse(allowed);
  const uint32_t wanted_ms = request->snapshot_ms() == 0 ? kDefaultSnapshotMs : request->snapshot_ms();
  const WatchOptions options{
      .snapshot_every = std::chrono::milliseconds(std::clamp(wanted_ms, kMinSnapshotMs, kMaxSnapshotMs)),
      .history = request->history()};
  auto reactor = std::make_unique<WatchReactor>(deps_.events);
  Result<std::shared_ptr<EventWatcher>> watcher = deps_.events.Watch(
      {.session = session->id, .tenant = session->tenant_name, .admin = session->admin}, options,
      [raw = reactor.get()] { raw->Send(); }, deps_.clock.Now());
  if (!watcher.ok()) return Refuse(watcher.status());
  WatchReactor* const started = reactor.release();
  started->Start(*watcher);
  // Whoever ended the session before the hub knew of this watcher could not end it.
  if (deps_.registry.Find(request->session_token()) == nullptr) deps_.events.EndSession(session->id);
  TakeSnapshot(*watcher);
  return started;
}

void GrpcService::TakeSnapshots() {
  for (auto& watcher : deps_.events.DueForSnapshot(deps_.clock.Now())) TakeSnapshot(std::move(watcher));
}

/// Costs the engine what a call of Stats does. Where the engine has no time for it, the next one comes.
void GrpcService::TakeSnapshot(std::shared_ptr<EventWatcher> watcher) {
  // Nobody waits for the answer: it may come after this object's end.
  const auto offer = [version = options_.version, uptime_ms = UptimeMs(),
                      watcher = std::move(watcher)](const Result<kvtier::StatsReply>& stats) {
    if (!stats.ok()) return;
    v1::Event event;
    v1::StatsReply& out = *event.mutable_snapshot()->mutable_stats();
    Fill(*stats, out);
    out.set_version(version);
    out.set_uptime_ms(uptime_ms);
    watcher->Offer(std::move(event));
  };
  Command command{.deadline = deps_.clock.Now() + options_.default_deadline,
                  .body = kvtier::Stats{.reply = offer}};
  if (deps_.commands.TryPushQuietly(std::move(command))) deps_.on_queued();
}

}  // namespace kvtier
