#pragma once

#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "daemon/engine/command.h"
#include "tiers/base/bounded_queue.h"

namespace kvtier {

/// Stands where the engine thread stands: takes commands from the queue and answers them by a function of the
/// test. Commands that the function leaves alone (returns false) are kept, unanswered.
class FakeEngine {
 public:
  using Handler = std::function<bool(Command&)>;
  FakeEngine(BoundedQueue<Command>& commands, Handler handler)
      : commands_(commands), handler_(std::move(handler)) {
    thread_ = std::thread([this] { Run(); });
  }
  ~FakeEngine() {
    commands_.Close();
    thread_.join();
  }
  FakeEngine(const FakeEngine&) = delete;
  FakeEngine& operator=(const FakeEngine&) = delete;

  /// Closed sessions, in order.
  std::vector<SessionId> closed() const {
    std::lock_guard lock(mutex_);
    return closed_;
  }
  std::vector<ArenaUnmapped> unmapped() const {
    std::lock_guard lock(mutex_);
    return unmapped_;
  }
  std::vector<StoreMapped> mapped() const {
    std::lock_guard lock(mutex_);
    return mapped_;
  }
  std::vector<OpenSession> opened() const {
    std::lock_guard lock(mutex_);
    return opened_;
  }

 private:
  void Run() {
    while (true) {
      std::optional<Command> command =
          commands_.PopUntil(std::chrono::steady_clock::now() + std::chrono::seconds(1));
      if (!command) {
        if (commands_.closed()) return;
        continue;
      }
      Note(*command);
      if (!handler_(*command)) kept_.push_back(std::move(*command));
    }
  }
  void Note(const Command& command) {
    std::lock_guard lock(mutex_);
    if (const auto* close = std::get_if<CloseSession>(&command.body)) closed_.push_back(close->session);
    if (const auto* unmapped = std::get_if<ArenaUnmapped>(&command.body)) unmapped_.push_back(*unmapped);
    if (const auto* mapped = std::get_if<StoreMapped>(&command.body)) mapped_.push_back(*mapped);
    if (const auto* open = std::get_if<OpenSession>(&command.body)) opened_.push_back(*open);
  }

  BoundedQueue<Command>& commands_;
  const Handler handler_;
  mutable std::mutex mutex_;
  std::vector<SessionId> closed_;
  std::vector<ArenaUnmapped> unmapped_;
  std::vector<StoreMapped> mapped_;
  std::vector<OpenSession> opened_;
  std::vector<Command> kept_;
  std::thread thread_;
};

/// A condition that another thread makes true: looks until it is, at most ten seconds.
template <typename Condition>
bool Eventually(Condition condition) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > give_up) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace kvtier
