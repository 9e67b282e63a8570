#include "tests/bench/daemon.h"
#include "tests/bench/echo.h"
#include "tests/bench/ladder.h"
#include "tests/bench/workload.h"

namespace kvtier::bench {
namespace {

constexpr uint32_t kKeys = 512;
constexpr uint32_t kPutBatch = 64;
constexpr uint32_t kCallsInARow = 50;
constexpr uint32_t kSetupTimeoutMs = 5'000;
constexpr double kMostOverEchoUs = 60;
// Serialized sizes of LookupRequest and LookupReply for 512 keys that all hit (proto/kvtier.proto): token 18,
// model 2, parent 34 and the keys; one byte a block and its length.
constexpr size_t kRequestBytes = 18 + 2 + 34 + kKeys * KVTIER_KEY_BYTES + 4;
constexpr size_t kReplyBytes = kKeys;

Status PutSmallBlocks(kvtier_client* handle, kvtier_model* model, std::span<const kvtier_block_ref> refs) {
  KVTIER_ASSIGN(EngineCache cache, EngineCache::Make(kShape4KiB, kPutBatch, PageOrder::kHeadsFirst));
  FillWithNoise(cache.bytes());
  for (uint32_t first = 0; first < kKeys; first += kPutBatch) {
    KVTIER_TRY(PutAndWait(handle, model, refs.subspan(first, kPutBatch), cache.view(), kSetupTimeoutMs));
  }
  return Status::Ok();
}

template <typename Call>
Status TimeCalls(Samples& samples_us, const Call& call) {
  for (uint32_t i = 0; i < kCallsInARow; ++i) {
    const double start = NowSeconds();
    KVTIER_TRY(call());
    samples_us.Add((NowSeconds() - start) * 1e6);
  }
  return Status::Ok();
}

}  // namespace

Status MeasureLookup(const Options& options, Report& report) {
  report.Progress("lookup of 512 keys");
  KVTIER_ASSIGN(const auto daemon, Daemon::Start(options, {.hot_bytes = uint64_t{256} << 20}));
  KVTIER_ASSIGN(const Connection connection, Connect(daemon->socket(), kSetupTimeoutMs));
  KVTIER_ASSIGN(kvtier_model* const model, RegisterShape(connection.get(), kShape4KiB, "bench-lookup"));
  KVTIER_ASSIGN(const auto refs, SequenceKeys(model, kShape4KiB, 1, kKeys));
  KVTIER_TRY(PutSmallBlocks(connection.get(), model, refs));

  KVTIER_ASSIGN(const auto folder, TemporaryFolder::Make());
  const std::string socket = folder->path() + "/echo.sock";
  KVTIER_ASSIGN(const auto server,
                ChildProcess::Start({ProgramFolder() + "/kvtier-bench", "echo-server", socket},
                                    folder->path() + "/echo.log"));
  KVTIER_ASSIGN(const auto echo, EchoClient::Make(socket, kRequestBytes, kReplyBytes));

  const kvtier_query query = QueryOf(refs);
  const auto lookup = [&]() -> Status {
    kvtier_lookup_result result{};
    KVTIER_TRY(StatusOf(kvtier_lookup(model, &query, nullptr, &result, 0), "lookup"));
    if (result.blocks == kKeys) return Status::Ok();
    return Status(Code::kNotFound, "lookup: " + std::to_string(result.blocks) + " blocks hit");
  };
  Samples warm_up;
  Samples lookup_us;
  Samples echo_us;
  const int rounds = options.quick ? 20 : 100;
  for (int round = 0; round <= rounds; ++round) {  // in turns, so that both see the same machine
    KVTIER_TRY(TimeCalls(round == 0 ? warm_up : lookup_us, lookup));
    KVTIER_TRY(TimeCalls(round == 0 ? warm_up : echo_us, [&] { return echo->Call(); }));
  }
  report.Figure("lookup of 512 keys, p50", lookup_us.Median(), "us");
  report.Figure("lookup of 512 keys, p99", lookup_us.Percentile(99), "us");
  report.Figure("gRPC echo of the same bytes, p50", echo_us.Median(), "us");
  report.Figure("gRPC echo of the same bytes, p99", echo_us.Percentile(99), "us");
  report.AtMost("lookup over echo, p50", lookup_us.Median() - echo_us.Median(), kMostOverEchoUs, "us");
  return Status::Ok();
}

}  // namespace kvtier::bench
