#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "monitoring/metrics.h"
#include "proto/kvtier.pb.h"
#include "tiers/base/clock.h"
#include "tiers/base/ids.h"
#include "tiers/base/status.h"

namespace kvtier {

/// Who watches. Admins are told everything.
struct WatcherIdentity {
  SessionId session;
  std::string tenant;
  bool admin = false;
};

struct WatchOptions {
  Duration snapshot_every = std::chrono::seconds(10);
  bool history = false;  ///< begins with what the hub remembers
};

/// One watcher's events on their way from the hub to whoever sends them: at most `capacity` wait, what comes
/// then is lost and leaves its number out. Threads: any. Errors: none; the hub says when it is over.
class EventWatcher {
 public:
  /// Take has something, or it is over. Called without any lock of the hub's, never again after Detach.
  using Ready = std::function<void()>;
  EventWatcher(WatcherIdentity identity, Duration snapshot_every, size_t capacity, Counter& lost)
      : identity_(std::move(identity)), snapshot_every_(snapshot_every), capacity_(capacity), lost_(lost) {}

  /// The next to be sent; none: nothing waits.
  std::optional<v1::Event> Take();
  /// Why there will be no more, when the last was taken.
  std::optional<Status> Over() const;
  /// One for this watcher alone.
  void Offer(v1::Event event);
  /// Waits for a Ready that runs.
  void Detach();
  const WatcherIdentity& identity() const { return identity_; }

 private:
  friend class EventHub;
  /// Numbers it, and keeps it where there is room.
  void Add(const v1::Event& event);
  void End(const Status& why);
  bool SnapshotIsDue(TimePoint now);
  void TellReady();

  const WatcherIdentity identity_;
  const Duration snapshot_every_;
  const size_t capacity_;
  Counter& lost_;
  mutable std::mutex mutex_;  ///< of what follows
  std::deque<v1::Event> waiting_;
  uint64_t last_sequence_ = 0;
  std::optional<Status> over_;
  TimePoint next_snapshot_{};
  std::mutex ready_mutex_;  ///< held while it runs; taken before mutex_
  Ready ready_;
};

struct EventHubOptions {
  size_t watchers = 64;
  size_t watchers_of_tenant = 4;
  size_t kept_for_admins = 4;  ///< of the watchers
  size_t queue = 1024;         ///< events that wait for one watcher
  size_t history = 256;        ///< events remembered; of tenants, and others, so many each
};

/// Tells watchers what happens. Nobody who tells waits for one who watches. Threads: any.
/// Bounds: of EventHubOptions, all.
class EventHub {
 public:
  explicit EventHub(Metrics& metrics, EventHubOptions options = {}) : metrics_(metrics), options_(options) {}

  /// To everybody, or, `tenant` given, to its watchers; to admins always.
  void TellEverybody(v1::Event event);
  void TellTenant(const std::string& tenant, v1::Event event);
  void TellAdmins(v1::Event event);

  /// `ready` may be called before this returns. Errors: kResourceExhausted; kUnavailable after Close.
  Result<std::shared_ptr<EventWatcher>> Watch(WatcherIdentity identity, WatchOptions options,
                                              EventWatcher::Ready ready, TimePoint now);
  void Forget(const std::shared_ptr<EventWatcher>& watcher);
  /// Its watchers get what waits for them, and no more.
  void EndSession(SessionId session);
  /// Those that are due for a snapshot now.
  std::vector<std::shared_ptr<EventWatcher>> DueForSnapshot(TimePoint now);
  /// Ends all watchers and takes no more. Idempotent.
  void Close();
  size_t watchers() const;

 private:
  enum class For : uint8_t { kEverybody, kTenant, kAdmins };
  struct Told {
    For whom;
    std::string tenant;
    v1::Event event;
    uint64_t order = 0;
  };
  using History = std::deque<Told>;
  using Watchers = std::vector<std::shared_ptr<EventWatcher>>;

  void Tell(Told told);
  /// In order.
  std::vector<const Told*> Remembered(const WatcherIdentity& identity) const;
  static bool IsFor(const Told& told, const WatcherIdentity& identity);
  Status Admit(const WatcherIdentity& identity) const;

  Metrics& metrics_;
  const EventHubOptions options_;
  mutable std::mutex mutex_;  ///< of what follows; taken before a watcher's mutex_
  Watchers watchers_;
  /// Apart, so that many sessions, those of kvtierctl too, do not drive out what happens seldom.
  History of_tenants_, of_all_;
  uint64_t told_ = 0;
  bool closed_ = false;
};

}  // namespace kvtier
