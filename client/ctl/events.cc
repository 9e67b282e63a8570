#include "client/ctl/events.h"

#include <fmt/format.h>

#include <algorithm>

#include "client/ctl/event_text.h"
#include "client/ctl/output.h"

namespace kvtier::ctl {
namespace {

/// Who waits for the first snapshot alone soon gets another where that one is lost.
constexpr uint32_t kSnapshotMsWhenNow = 1'000, kSnapshotMs = 10'000;
/// Snapshots tell that the daemon lives, and come once a second at most.
constexpr Duration kLeastPatience = std::chrono::seconds(3);

std::string LostLine(uint64_t lost, Format format) {
  if (format == Format::kHuman) return fmt::format("({} events are missing: they came too fast)", lost);
  return JsonWriter().BeginObject().Text("event", "lost").Number("count", lost).EndObject().str();
}

}  // namespace

Status ShowEvents(client::Client& client, const EventsRequest& request, std::FILE* out) {
  const Duration patience = std::max(request.patience, kLeastPatience);
  KVTIER_ASSIGN(const std::shared_ptr<client::Connection> connection,
                client.Current(SteadyClock().Now() + patience));
  const bool now = request.until == EventsUntil::kNow;
  const auto third_ms = std::chrono::duration_cast<std::chrono::milliseconds>(patience / 3).count();
  v1::WatchRequest watch;
  watch.set_session_token(connection->token());
  watch.set_snapshot_ms(now ? kSnapshotMsWhenNow
                            : static_cast<uint32_t>(std::min<int64_t>(third_ms, kSnapshotMs)));
  watch.set_history(true);
  uint64_t shown = 0, last = 0;
  const auto show = [&](const v1::Event& event) {
    if (event.sequence() > last + 1)
      fmt::print(out, "{}\n", LostLine(event.sequence() - last - 1, request.format));
    last = event.sequence();
    fmt::print(out, "{}\n", request.format == Format::kHuman ? EventLine(event) : EventJson(event));
    // Who reads a pipe that is gone wants no more.
    if (std::fflush(out) != 0) return false;
    return !(now && event.has_snapshot()) && ++shown != request.most;
  };
  return connection->rpc().Watch(watch, patience, show);
}

}  // namespace kvtier::ctl
