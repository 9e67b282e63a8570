#pragma once

#include <cstdint>
#include <cstdio>

#include "client/ctl/verbs.h"

namespace kvtier::ctl {

/// kNow: what the daemon remembers, up to the first snapshot.
enum class EventsUntil : uint8_t { kNow, kForever };

struct EventsRequest {
  EventsUntil until = EventsUntil::kNow;
  uint64_t most = 0;  ///< events; 0: no bound
  Format format = Format::kHuman;
  Duration patience = std::chrono::seconds(600);  ///< between two events
};

/// Prints a line for each event, as it comes, and one for those that were lost before it.
/// Errors: kUnavailable when the daemon ends or is away, and those of Rpc::Watch.
Status ShowEvents(client::Client& client, const EventsRequest& request, std::FILE* out);

}  // namespace kvtier::ctl
