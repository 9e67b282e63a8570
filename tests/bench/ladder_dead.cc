#include <signal.h>

#include "tests/bench/daemon.h"
#include "tests/bench/ladder.h"
#include "tests/bench/workload.h"

namespace kvtier::bench {
namespace {

constexpr int kCalls = 20;
constexpr double kDeadlineMs = 100;  // the library's default
// A call that waits until its deadline comes back a little after it, by the scheduler of a busy machine.
constexpr double kWakeUpMs = 20;

/// How long some lookups take, all of which must be misses.
Result<Samples> MissesMs(kvtier_model* model, const kvtier_query& query) {
  Samples ms;
  for (int i = 0; i < kCalls; ++i) {
    kvtier_lookup_result result{};
    const double start = NowSeconds();
    const kvtier_code code = kvtier_lookup(model, &query, nullptr, &result, KVTIER_TIMEOUT_DEFAULT);
    ms.Add((NowSeconds() - start) * 1e3);
    const bool miss =
        code == KVTIER_NOT_FOUND || code == KVTIER_UNAVAILABLE || code == KVTIER_DEADLINE_EXCEEDED;
    if (!miss)
      return Status(Code::kInternal, std::string("a dead daemon answered ") + kvtier_code_name(code));
  }
  return ms;
}

}  // namespace

Status MeasureDeadDaemon(const Options& options, Report& report) {
  report.Progress("dead daemon");
  KVTIER_ASSIGN(const auto daemon, Daemon::Start(options, {.hot_bytes = uint64_t{64} << 20}));
  KVTIER_ASSIGN(const Connection connection, Connect(daemon->socket(), 0));
  KVTIER_ASSIGN(kvtier_model* const model, RegisterShape(connection.get(), kShape1MiB, "bench-dead"));
  KVTIER_ASSIGN(const auto refs, SequenceKeys(model, kShape1MiB, 1, 1));
  const kvtier_query query = QueryOf(refs);

  daemon->process().Pause();
  KVTIER_ASSIGN(const Samples hung_ms, MissesMs(model, query));
  daemon->process().Signal(SIGCONT);
  daemon->process().Kill();
  KVTIER_ASSIGN(const Samples killed_ms, MissesMs(model, query));
  report.AtMost("daemon killed: slowest of 20 misses", killed_ms.Max(), kDeadlineMs, "ms");
  report.AtMost("daemon hung: p50 of 20 misses", hung_ms.Median(), kDeadlineMs + kWakeUpMs, "ms");
  return Status::Ok();
}

}  // namespace kvtier::bench
