#include "client/ctl/event_text.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <optional>
#include <string_view>
#include <vector>

#include "client/ctl/output.h"

namespace kvtier::ctl {
namespace {

using v1::DaemonChange;
using v1::Event;
using v1::SessionChange;
using v1::TierChange;

/// A kind of event that counts; both forms are made of it.
struct Counted {
  struct Count {
    const char* name;  ///< in JSON
    const char* what;  ///< for people
    uint64_t count;
  };
  const char* name;
  std::string tier;  ///< empty: of the daemon
  const char* title;
  std::vector<Count> counts;
};

std::optional<Counted> CountedOf(const Event& event) {
  if (event.has_evictions()) {
    const v1::Evictions& evictions = event.evictions();
    return Counted{.name = "evictions",
                   .tier = evictions.tier(),
                   .title = "evicted from",
                   .counts = {{"for_room", "for room", evictions.for_room()},
                              {"removed", "removed", evictions.removed()},
                              {"corrupt", "corrupt", evictions.corrupt()},
                              {"superseded", "superseded", evictions.superseded()}}};
  }
  if (event.has_damage()) {
    const v1::Damage& damage = event.damage();
    return Counted{.name = "damage",
                   .tier = damage.tier(),
                   .title = "damage in",
                   .counts = {{"checksum_failures", "checksum failures", damage.checksum_failures()},
                              {"found_by_scrub", "of them found by the scrub", damage.found_by_scrub()},
                              {"write_errors", "write errors", damage.write_errors()},
                              {"read_errors", "read errors", damage.read_errors()}}};
  }
  if (event.has_tier_refusals()) {
    const v1::TierRefusals& refusals = event.tier_refusals();
    return Counted{.name = "tier_refusals",
                   .tier = refusals.tier(),
                   .title = "not admitted to",
                   .counts = {{"seldom_used", "seldom used", refusals.seldom_used()},
                              {"over_budget", "over the write budget", refusals.over_budget()}}};
  }
  if (!event.has_refusals()) return std::nullopt;
  const v1::Refusals& refusals = event.refusals();
  return Counted{
      .name = "refusals",
      .tier = {},
      .title = "refused",
      .counts = {{"rejected_put_blocks", "blocks put", refusals.rejected_put_blocks()},
                 {"dropped_put_blocks", "blocks put, for want of room", refusals.dropped_put_blocks()},
                 {"sessions", "sessions", refusals.sessions()},
                 {"full_queue", "calls, the queue is full", refusals.full_queue()},
                 {"unauthenticated", "calls without a session", refusals.unauthenticated()}}};
}

std::string TextOf(const Counted& counted) {
  std::string text = counted.title;
  if (!counted.tier.empty()) text += ' ' + counted.tier;
  const char* before = ": ";
  for (const Counted::Count& one : counted.counts) {
    if (one.count == 0) continue;
    text += fmt::format("{}{} {}", before, one.count, one.what);
    before = "; ";
  }
  return text;
}

std::string TextOf(const v1::Snapshot& snapshot) {
  const v1::StatsReply& stats = snapshot.stats();
  std::string text = fmt::format("{} blocks of {} models, {} sessions, {} leases", stats.table_entries(),
                                 stats.models(), stats.sessions(), stats.leases_live());
  for (const v1::TierStats& tier : stats.tiers()) {
    text += fmt::format("; {} {} of {}", tier.name(), HumanBytes(tier.used_bytes()),
                        HumanBytes(tier.capacity_bytes()));
    if (!tier.accepts_writes()) text += ", sheds writes";
  }
  return stats.draining() ? text + "; draining" : text;
}

std::string TextOf(const SessionChange& change) {
  const std::string who = fmt::format("session {} of {}", change.session(), change.tenant());
  return change.kind() == SessionChange::OPENED
             ? fmt::format("{} opened by uid {}, process {}", who, change.uid(), change.pid())
             : who + " ended: " + change.reason();
}

struct Words {
  const char* name;  ///< in JSON
  const char* text;  ///< for people
};

Words WordsOf(TierChange::Kind kind) {
  switch (kind) {
    case TierChange::SHEDS_WRITES:
      return {"sheds_writes", "takes no blocks: writes fail"};
    case TierChange::TAKES_WRITES:
      return {"takes_writes", "takes blocks again"};
    case TierChange::SHEDS_READS:
      return {"sheds_reads", "serves no blocks: reads fail"};
    case TierChange::SERVES_READS:
      return {"serves_reads", "serves blocks again"};
    case TierChange::MEMORY_LOST:
      return {"memory_lost", "the memory lost bytes: clients have to unmap it"};
    default:
      return {"unknown", "changed in a way that this kvtierctl does not know"};
  }
}

Words WordsOf(DaemonChange::Kind kind) {
  switch (kind) {
    case DaemonChange::DRAINING:
      return {"draining", "the daemon drains: it takes no more puts"};
    case DaemonChange::STOPPING:
      return {"stopping", "the daemon stops"};
    case DaemonChange::THREADS_STUCK:
      return {"threads_stuck", "threads make no progress"};
    case DaemonChange::THREADS_WELL:
      return {"threads_well", "all threads make progress again"};
    default:
      return {"unknown", "the daemon changed in a way that this kvtierctl does not know"};
  }
}

std::string TextOf(const Event& event) {
  if (const std::optional<Counted> counted = CountedOf(event)) return TextOf(*counted);
  switch (event.body_case()) {
    case Event::kSnapshot:
      return TextOf(event.snapshot());
    case Event::kSession:
      return TextOf(event.session());
    case Event::kTier:
      return event.tier().tier() + ": " + WordsOf(event.tier().kind()).text;
    case Event::kDaemon:
      return WordsOf(event.daemon().kind()).text;
    default:
      return "an event that this kvtierctl does not know";
  }
}

void Write(const v1::Snapshot& snapshot, JsonWriter& json) {
  const v1::StatsReply& stats = snapshot.stats();
  json.Text("event", "snapshot").Number("blocks", stats.table_entries()).Number("models", stats.models());
  json.Number("sessions", stats.sessions()).Number("leases", stats.leases_live());
  json.Bool("draining", stats.draining()).BeginArray("tiers");
  for (const v1::TierStats& tier : stats.tiers()) {
    json.BeginObject().Text("name", tier.name()).Number("used_bytes", tier.used_bytes());
    json.Number("capacity_bytes", tier.capacity_bytes()).Bool("accepts_writes", tier.accepts_writes());
    json.EndObject();
  }
  json.EndArray();
}

void Write(const SessionChange& change, JsonWriter& json) {
  const bool opened = change.kind() == SessionChange::OPENED;
  json.Text("event", "session").Text("kind", opened ? "opened" : "ended").Number("session", change.session());
  json.Text("tenant", change.tenant()).Number("uid", change.uid());
  json.Number("pid", static_cast<uint64_t>(change.pid()));
  if (!opened) json.Text("reason", change.reason());
}

void Write(const Counted& counted, JsonWriter& json) {
  json.Text("event", counted.name);
  if (!counted.tier.empty()) json.Text("tier", counted.tier);
  for (const Counted::Count& one : counted.counts) json.Number(one.name, one.count);
}

}  // namespace

std::string EventLine(const Event& event) {
  const auto seconds = static_cast<std::time_t>(event.time_ms() / 1000);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z  {}", fmt::gmtime(seconds), event.time_ms() % 1000,
                     Printable(TextOf(event)));
}

std::string EventJson(const Event& event) {
  JsonWriter json;
  json.BeginObject().Number("sequence", event.sequence()).Number("time_ms", event.time_ms());
  if (const std::optional<Counted> counted = CountedOf(event)) {
    Write(*counted, json);
  } else if (event.has_snapshot()) {
    Write(event.snapshot(), json);
  } else if (event.has_session()) {
    Write(event.session(), json);
  } else if (event.has_tier()) {
    json.Text("event", "tier").Text("kind", WordsOf(event.tier().kind()).name);
    json.Text("tier", event.tier().tier());
  } else if (event.has_daemon()) {
    json.Text("event", "daemon").Text("kind", WordsOf(event.daemon().kind()).name);
  } else {
    json.Text("event", "unknown");
  }
  return json.EndObject().str();
}

}  // namespace kvtier::ctl
