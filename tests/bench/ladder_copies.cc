#include <cstring>

#include "tests/bench/daemon.h"
#include "tests/bench/ladder.h"
#include "tests/bench/workload.h"

namespace kvtier::bench {
namespace {

constexpr uint32_t kBlocks = 64;
constexpr uint64_t kHotBytes = uint64_t{3}
                               << 30;  // a session may lease a quarter of a tier: the set is 256 MiB
constexpr uint32_t kTimeoutMs = 10'000;
constexpr double kLeastOfMemcpy = 0.4;

struct Speeds {
  Samples memcpy;
  Samples put;
  Samples fetch;
};

struct Set {
  kvtier_client* handle;
  kvtier_model* model;
  Shape shape;
  EngineCache source;
  EngineCache destination;
};

Result<Set> MakeSet(kvtier_client* handle, const Shape& shape, uint32_t blocks, PageOrder order,
                    const char* name) {
  KVTIER_ASSIGN(kvtier_model* const model, RegisterShape(handle, shape, name));
  KVTIER_ASSIGN(EngineCache source, EngineCache::Make(shape, blocks, order));
  KVTIER_ASSIGN(EngineCache destination, EngineCache::Make(shape, blocks, order));
  FillWithNoise(source.bytes());
  return Set{handle, model, shape, std::move(source), std::move(destination)};
}

template <typename Work>
Result<double> Seconds(const Work& work) {
  const double start = NowSeconds();
  KVTIER_TRY(work());
  return NowSeconds() - start;
}

/// memcpy, put and fetch of the whole set, one after the other; the fetched bytes are compared with the
/// source.
Status OneRound(Set& set, uint32_t sequence, Speeds* seconds) {
  const auto source = set.source.bytes();
  const auto destination = set.destination.bytes();
  const auto blocks = static_cast<uint32_t>(source.size() / set.shape.block_bytes());
  KVTIER_ASSIGN(const auto refs, SequenceKeys(set.model, set.shape, sequence, blocks));
  KVTIER_ASSIGN(const double copied, Seconds([&] {
                  std::memcpy(destination.data(), source.data(), source.size());
                  return Status::Ok();
                }));
  KVTIER_ASSIGN(const double put, Seconds([&] {
                  return PutAndWait(set.handle, set.model, refs, set.source.view(), kTimeoutMs);
                }));
  std::memset(destination.data(), 0, destination.size());
  KVTIER_ASSIGN(const double fetched, Seconds([&] {
                  return FetchAll(set.model, refs, set.destination.view(), kTimeoutMs).status();
                }));
  if (std::memcmp(source.data(), destination.data(), source.size()) != 0) {
    return Status(Code::kDataLoss, "fetched FP16 differs from what was put");
  }
  const kvtier_query query = QueryOf(refs);
  KVTIER_TRY(StatusOf(kvtier_remove(set.model, &query, nullptr, kTimeoutMs), "remove"));
  if (seconds != nullptr) {
    seconds->memcpy.Add(copied);
    seconds->put.Add(put);
    seconds->fetch.Add(fetched);
  }
  return Status::Ok();
}

Result<Speeds> Rounds(Set& set, int rounds, uint32_t* sequence) {
  Speeds seconds;
  for (int round = 0; round <= rounds; ++round) {  // the first makes arenas and maps them
    KVTIER_TRY(OneRound(set, *sequence += 1'000'000, round == 0 ? nullptr : &seconds));
  }
  return seconds;
}

Status MeasureThroughput(kvtier_client* handle, const Options& options, uint32_t* sequence, Report& report) {
  for (const PageOrder order : {PageOrder::kHeadsFirst, PageOrder::kTokensFirst}) {
    const bool heads_first = order == PageOrder::kHeadsFirst;
    report.Progress(heads_first ? "put and fetch, pages [head][token]"
                                : "put and fetch, pages [token][head]");
    KVTIER_ASSIGN(Set set,
                  MakeSet(handle, kShape4MiB, kBlocks, order, heads_first ? "bench-hnd" : "bench-nhd"));
    KVTIER_ASSIGN(const Speeds seconds, Rounds(set, options.quick ? 5 : 21, sequence));
    const double gigabytes = static_cast<double>(set.source.bytes().size()) / 1e9;
    const double memcpy_s = seconds.memcpy.Median();
    const std::string suffix = heads_first ? "" : ", pages [token][head]";
    report.Figure("memcpy of 256 MiB" + suffix, gigabytes / memcpy_s, "GB/s");
    report.Figure("put, 64 blocks of 4 MiB a call" + suffix, gigabytes / seconds.put.Median(), "GB/s");
    report.Figure("fetch, 64 blocks of 4 MiB a call" + suffix, gigabytes / seconds.fetch.Median(), "GB/s");
    if (heads_first) {
      report.AtLeast("put, of memcpy", memcpy_s / seconds.put.Median(), kLeastOfMemcpy, "x");
      report.AtLeast("fetch, of memcpy", memcpy_s / seconds.fetch.Median(), kLeastOfMemcpy, "x");
    }
  }
  return Status::Ok();
}

Status MeasureSingleBlocks(kvtier_client* handle, const Options& options, uint32_t* sequence,
                           Report& report) {
  for (const Shape& shape : {kShape1MiB, kShape32MiB}) {
    const std::string name = std::to_string(shape.block_bytes() >> 20) + " MiB block";
    report.Progress("latency, " + name);
    KVTIER_ASSIGN(Set set, MakeSet(handle, shape, 1, PageOrder::kHeadsFirst, name.c_str()));
    KVTIER_ASSIGN(const Speeds seconds, Rounds(set, options.quick ? 20 : 100, sequence));
    report.Figure("put of one " + name + ", p50", seconds.put.Median() * 1e6, "us");
    report.Figure("fetch of one " + name + ", p50", seconds.fetch.Median() * 1e6, "us");
    report.Figure("memcpy of the same, p50", seconds.memcpy.Median() * 1e6, "us");
  }
  return Status::Ok();
}

}  // namespace

Status MeasureCopies(const Options& options, Report& report) {
  KVTIER_ASSIGN(const auto daemon, Daemon::Start(options, {.hot_bytes = kHotBytes}));
  KVTIER_ASSIGN(const Connection connection, Connect(daemon->socket(), kTimeoutMs));
  uint32_t sequence = 0;
  KVTIER_TRY(MeasureThroughput(connection.get(), options, &sequence, report));
  return MeasureSingleBlocks(connection.get(), options, &sequence, report);
}

}  // namespace kvtier::bench
