#include "client/ctl/top.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <limits>
#include <thread>
#include <vector>

#include "client/ctl/http_get.h"
#include "client/ctl/output.h"

namespace kvtier::ctl {
namespace {

using Labels = Exposition::Labels;

constexpr size_t kBarCells = 20;
constexpr double kOverload = 0.01;  ///< refused commands by calls, as the alert has it
constexpr Duration kPatience = std::chrono::seconds(5);
/// To the upper left, and what is there goes.
constexpr char kClear[] = "\x1b[H\x1b[2J";

/// Two scrapes as rates.
class Change {
 public:
  Change(const Exposition& before, const Exposition& now, double seconds)
      : before_(before), now_(now), seconds_(seconds) {}
  double Of(std::string_view name, const Labels& labels = {}) const {
    return std::max(now_.Sum(name, labels) - before_.Sum(name, labels), 0.0);
  }
  double Rate(std::string_view name, const Labels& labels = {}) const {
    return seconds_ > 0 ? Of(name, labels) / seconds_ : 0;
  }
  double Now(std::string_view name, const Labels& labels = {}) const { return now_.Sum(name, labels); }
  const Exposition& now() const { return now_; }

  /// The bound of the bucket that the quantile falls into; NaN where nothing was observed.
  double Quantile(double share, const std::string& name, const Labels& labels) const {
    std::vector<std::pair<double, double>> buckets;  // bound, observed below it
    for (const std::string& bound : now_.Values(name + "_bucket", "le")) {
      Labels one = labels;
      one["le"] = bound;
      buckets.emplace_back(
          bound == "+Inf" ? std::numeric_limits<double>::infinity() : std::strtod(bound.c_str(), nullptr),
          Of(name + "_bucket", one));
    }
    std::ranges::sort(buckets);
    const double all = buckets.empty() ? 0 : buckets.back().second;
    for (const auto& [bound, below] : buckets) {
      if (all > 0 && below >= share * all) return bound;
    }
    return std::numeric_limits<double>::quiet_NaN();
  }

 private:
  const Exposition& before_;
  const Exposition& now_;
  const double seconds_;
};

std::string HumanRate(double rate) {
  return rate >= 100 ? fmt::format("{:.0f}", rate) : fmt::format("{:.1f}", rate);
}

/// Of the bound of a bucket.
std::string HumanBound(double seconds) {
  if (std::isnan(seconds)) return "-";
  return std::isinf(seconds) ? "long" : HumanSeconds(seconds);
}

std::string Percent(double part, double whole) {
  return whole > 0 ? fmt::format("{:.1f} %", 100 * part / whole) : std::string("-");
}

std::string Bar(double share) {
  const auto full = static_cast<size_t>(std::lround(std::clamp(share, 0.0, 1.0) * kBarCells));
  return "[" + std::string(full, '#') + std::string(kBarCells - full, '.') + "]";
}

std::string Bytes(double bytes) {
  return HumanBytes(bytes > 0 ? static_cast<uint64_t>(bytes) : 0);
}

/// "int4 60.0 %  bits16 40.0 %": shares of the values of one metric by precision.
std::string Mix(const Change& change, double (Change::*value)(std::string_view, const Labels&) const,
                std::string_view name, const Labels& labels) {
  std::string text;
  const double all = (change.*value)(name, labels);
  for (const std::string& precision : change.now().Values(name, "precision")) {
    Labels one = labels;
    one["precision"] = precision;
    const double part = (change.*value)(name, one);
    if (part > 0) text += (text.empty() ? "" : "  ") + precision + " " + Percent(part, all);
  }
  return text.empty() ? "-" : text;
}

std::vector<std::string> Problems(const Change& change, const std::vector<std::string>& tiers) {
  std::vector<std::string> found;
  if (const double stuck = change.Now("kvtier_unhealthy_threads"); stuck > 0) {
    found.push_back(fmt::format("{:.0f} threads make no progress", stuck));
  }
  for (const std::string& tier : tiers) {
    const Labels of = {{"tier", tier}};
    if (change.Now("kvtier_tier_circuit_open", of) > 0) {
      found.push_back("tier " + tier + " takes no blocks: its device fails or is full");
    }
    if (change.Now("kvtier_tier_read_circuit_open", of) > 0) {
      found.push_back("what tier " + tier + " holds is a miss: its device fails");
    }
    if (const double corrupt = change.Now("kvtier_tier_checksum_failures_total", of); corrupt > 0) {
      found.push_back(fmt::format("tier {} gave back {:.0f} corrupt blocks since the start", tier, corrupt));
    }
  }
  if (const double dropped = change.Now("kvtier_cold_recovery_dropped_total"); dropped > 0) {
    found.push_back(fmt::format("the start dropped {:.0f} damaged records of cold tiers", dropped));
  }
  if (const double failed = change.Rate("kvtier_put_durable_failed_total"); failed > 0) {
    found.push_back(fmt::format("{} durable blocks fail a second", HumanRate(failed)));
  }
  const double refused =
      change.Rate("kvtier_commands_rejected_total") + change.Rate("kvtier_commands_late_total");
  const double calls = change.Rate("kvtier_lookups_total") + change.Rate("kvtier_acquires_total");
  if (refused > kOverload * calls) {
    found.push_back(fmt::format("{} commands are refused a second: overloaded", HumanRate(refused)));
  }
  return found;
}

std::string Head(const std::string& address, const Change& change) {
  const auto versions = change.now().Values("kvtier_build_info", "version");
  const double started = change.Now("kvtier_start_time_seconds");
  const double up = std::max(static_cast<double>(std::time(nullptr)) - started, 0.0);
  return fmt::format("kvtierd {} at {}, up {}\n\n", versions.empty() ? "?" : Printable(versions.front()),
                     address, HumanSeconds(up));
}

std::string Use(const Change& change) {
  const double keys = change.Of("kvtier_lookup_keys_total");
  const double distinct = std::min(change.Of("kvtier_lookup_distinct_keys_total"), keys);
  const double saved = change.Now("kvtier_tier_fp16_bytes") - change.Now("kvtier_tier_used_bytes");
  const double lost = change.Rate("kvtier_put_blocks_total", {{"outcome", "rejected"}}) +
                      change.Rate("kvtier_put_blocks_total", {{"outcome", "dropped"}});
  return fmt::format(
      "hit rate  {} of keys (endless memory: {})\n"
      "a second  {} lookups  {} acquires  {} blocks served  {} missed  {} stored  {} not stored\n"
      "now       {:.0f} blocks  {:.0f} sessions  {:.0f} leases  {:.0f} commands and {:.0f} jobs wait  {} "
      "saved against 16 bits\n"
      "served    {}\n\n",
      Percent(change.Of("kvtier_lookup_hit_keys_total"), keys), Percent(keys - distinct, keys),
      HumanRate(change.Rate("kvtier_lookups_total")), HumanRate(change.Rate("kvtier_acquires_total")),
      HumanRate(change.Rate("kvtier_acquired_blocks_total")),
      HumanRate(change.Rate("kvtier_missed_blocks_total")),
      HumanRate(change.Rate("kvtier_put_blocks_total", {{"outcome", "stored"}})), HumanRate(lost),
      change.Now("kvtier_table_entries"), change.Now("kvtier_sessions"), change.Now("kvtier_leases"),
      change.Now("kvtier_command_queue_depth"), change.Now("kvtier_job_queue_depth"), Bytes(saved),
      Mix(change, &Change::Of, "kvtier_tier_hits_total", {}));
}

std::string TierRows(const Change& change, const std::vector<std::string>& tiers) {
  Table table({"tier", "fill", "used", "of", "hits/s", "p99", "in/s", "out/s", "lost/s", "stay", "blocks"});
  for (const std::string& tier : tiers) {
    const Labels of = {{"tier", tier}};
    const double used = change.Now("kvtier_tier_used_bytes", of);
    const double capacity = change.Now("kvtier_tier_capacity_bytes", of);
    table.Row(
        {tier, Bar(capacity > 0 ? used / capacity : 0), Bytes(used), Bytes(capacity),
         HumanRate(change.Rate("kvtier_tier_hits_total", of)),
         HumanBound(change.Quantile(0.99, "kvtier_acquire_latency_seconds", of)),
         HumanRate(change.Rate("kvtier_moved_blocks_total", {{"to", tier}})),
         HumanRate(change.Rate("kvtier_moved_blocks_total", {{"from", tier}})),
         HumanRate(change.Rate("kvtier_tier_evictions_total", {{"tier", tier}, {"reason", "capacity"}})),
         HumanBound(change.Quantile(0.5, "kvtier_tier_residence_seconds", of)),
         Mix(change, &Change::Now, "kvtier_tier_blocks", of)});
  }
  return table.str();
}

}  // namespace

std::string TopFrame(const std::string& address, const Exposition& before, const Exposition& now,
                     double seconds) {
  const Change change(before, now, seconds);
  const std::vector<std::string> tiers = now.Values("kvtier_tier_capacity_bytes", "tier");
  std::string frame = Head(address, change) + Use(change) + TierRows(change, tiers) + '\n';
  const std::vector<std::string> problems = Problems(change, tiers);
  for (const std::string& problem : problems) frame += "! " + Printable(problem) + '\n';
  return problems.empty() ? frame + "nothing is wrong\n" : frame;
}

Status ShowTop(const TopOptions& options, std::FILE* out) {
  const auto look = [&options]() -> Result<Exposition> {
    KVTIER_ASSIGN(const std::string text, HttpGet(options.address, "/metrics", kPatience));
    return Exposition::Parse(text);
  };
  const SteadyClock clock;
  const bool live = ::isatty(::fileno(out)) == 1;
  KVTIER_ASSIGN(Exposition before, look());
  TimePoint looked = clock.Now();
  for (uint64_t frame = 0; options.frames == 0 || frame < options.frames; ++frame) {
    std::this_thread::sleep_for(options.interval);
    Result<Exposition> now = look();
    const TimePoint at = clock.Now();
    std::string text = live ? kClear : "";
    if (now.ok()) {
      // Counters of another process say nothing about this one's.
      constexpr const char* kStart = "kvtier_start_time_seconds";
      if (before.Sum(kStart) != now->Sum(kStart)) before = *now;
      text += TopFrame(options.address, before, *now, std::chrono::duration<double>(at - looked).count());
      before = *std::move(now);
      looked = at;
    } else {
      text += Printable(now.status().ToString()) + '\n';
    }
    std::fputs(text.c_str(), out);
    if (std::fflush(out) != 0) return Status(Code::kUnavailable, "nobody reads any more");
  }
  return Status::Ok();
}

}  // namespace kvtier::ctl
