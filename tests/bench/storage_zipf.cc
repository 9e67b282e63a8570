#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <random>

#include "tests/bench/daemon.h"
#include "tests/bench/storage.h"
#include "tests/bench/workload.h"

namespace kvtier::bench {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr Shape kShape{.layers = 2, .kv_heads = 4, .dim = 64, .tokens = 64};  // 128 KiB
constexpr uint64_t kHotBytes = 16 * kMiB;
constexpr double kSkew = 0.9;
constexpr uint32_t kSeed = 7, kTimeoutMs = 20'000;
constexpr std::array<const char*, 4> kCauses = {"put", "demotion", "rewrite", "metadata"};

struct Scale {
  uint64_t cold_bytes;
  uint32_t names;  ///< blocks that are asked for; the tier holds about a third
  uint32_t warm_up, measured;
};
constexpr Scale kFull{.cold_bytes = 128 * kMiB, .names = 15'000, .warm_up = 40'000, .measured = 40'000};
constexpr Scale kQuick{.cold_bytes = 32 * kMiB, .names = 3'500, .warm_up = 10'000, .measured = 10'000};

struct Policy {
  const char* name;
  const char* keys;  ///< of the cold tier's section
};
constexpr Policy kPolicies[] = {
    {"everything", ""},
    {"rewrites", "rewrite_share = 0.25\n"},
    {"frequency", "admission = \"frequency\"\n"},
    {"frequency and rewrites", "admission = \"frequency\"\nrewrite_share = 0.25\n"},
};

/// Numbers from 0 to n - 1, the i-th with weight 1 / (i + 1)^skew.
class Zipf {
 public:
  Zipf(uint32_t n, double skew, uint32_t seed) : random_(seed), sums_(n) {
    for (uint32_t i = 0; i < n; ++i) sums_[i] = std::pow(i + 1.0, -skew);
    std::partial_sum(sums_.begin(), sums_.end(), sums_.begin());
  }
  uint32_t Next() {
    const double at = std::uniform_real_distribution<double>(0, sums_.back())(random_);
    const auto found = std::upper_bound(sums_.begin(), sums_.end(), at);
    return std::min(static_cast<uint32_t>(found - sums_.begin()), static_cast<uint32_t>(sums_.size() - 1));
  }

 private:
  std::mt19937_64 random_;
  std::vector<double> sums_;
};

/// What the daemon has written so far.
struct Written {
  double asked = 0;
  std::array<double, kCauses.size()> by_cause{};
  double all() const { return std::accumulate(by_cause.begin(), by_cause.end(), 0.0); }
};

Result<Written> ReadWritten(const Daemon& daemon) {
  Written written;
  KVTIER_ASSIGN(written.asked, daemon.Metric("kvtier_tier_asked_bytes_total{tier=\"cold\"}"));
  for (size_t i = 0; i < kCauses.size(); ++i) {
    const std::string sample =
        std::string("kvtier_tier_written_bytes_total{tier=\"cold\",cause=\"") + kCauses[i] + "\"}";
    KVTIER_ASSIGN(written.by_cause[i], daemon.Metric(sample));
  }
  return written;
}

/// An engine's way: ask, and put what is not there.
class Client {
 public:
  static Result<std::unique_ptr<Client>> Make(const Daemon& daemon, const Scale& scale) {
    std::unique_ptr<Client> client(new Client(scale));
    KVTIER_ASSIGN(client->connection_, Connect(daemon.socket(), kTimeoutMs));
    KVTIER_ASSIGN(client->model_, RegisterShape(client->connection_.get(), kShape, "bench-zipf"));
    KVTIER_ASSIGN(client->bytes_, client->memory_.Reserve(2 * kShape.block_bytes()));
    FillWithNoise(client->bytes_);
    client->source_ = client->bytes_.data();
    client->destination_ = client->bytes_.data() + kShape.block_bytes();
    return client;
  }
  /// Returns how many of `requests` hit.
  Result<uint32_t> Run(uint32_t requests) {
    uint32_t hits = 0;
    for (uint32_t i = 0; i < requests; ++i) {
      KVTIER_ASSIGN(const auto refs, SequenceKeys(model_, kShape, (zipf_.Next() + 1) * 1000, 1));
      const Result<Fetched> fetched =
          FetchAll(model_, refs, ContiguousView(kShape, &destination_), kTimeoutMs);
      if (fetched.ok()) {
        ++hits;
      } else if (fetched.status().code() != Code::kNotFound) {
        return fetched.status();
      } else {
        KVTIER_TRY(PutAndWait(connection_.get(), model_, refs, ContiguousView(kShape, &source_), kTimeoutMs));
      }
    }
    return hits;
  }

 private:
  explicit Client(const Scale& scale) : zipf_(scale.names, kSkew, kSeed) {}

  Zipf zipf_;
  AlignedBuffer memory_;
  std::span<std::byte> bytes_;
  void* source_ = nullptr;
  void* destination_ = nullptr;
  Connection connection_;
  kvtier_model* model_ = nullptr;
};

Status RunPolicy(const Policy& policy, const Scale& scale, const StorageOptions& options, Report& report) {
  report.Progress(std::string("amplification: ") + policy.name);
  const std::string keys = std::string("segment = \"1MiB\"\n") + policy.keys;
  KVTIER_ASSIGN(const auto daemon, Daemon::Start(options.common, {.hot_bytes = kHotBytes,
                                                                  .cold_bytes = scale.cold_bytes,
                                                                  .cold_keys = keys,
                                                                  .folder = options.folder}));
  KVTIER_ASSIGN(const auto client, Client::Make(*daemon, scale));
  KVTIER_TRY(client->Run(scale.warm_up).status());
  KVTIER_ASSIGN(const Written before, ReadWritten(*daemon));
  KVTIER_ASSIGN(const uint32_t hits, client->Run(scale.measured));
  KVTIER_ASSIGN(const Written after, ReadWritten(*daemon));

  const std::string name = std::string("Zipf, ") + policy.name;
  const double asked = after.asked - before.asked;
  report.Figure(name + ": hits", 100.0 * hits / scale.measured, "%");
  report.Figure(name + ": asked to write", asked / 1e6, "MB");
  for (size_t i = 0; i < kCauses.size(); ++i) {
    report.Figure(name + ": written, " + kCauses[i], (after.by_cause[i] - before.by_cause[i]) / 1e6, "MB");
  }
  if (asked > 0) report.Figure(name + ": amplification", (after.all() - before.all()) / asked, "x");
  report.Figure(name + ": written a request", (after.all() - before.all()) / scale.measured, "bytes");
  return Status::Ok();
}

}  // namespace

void MeasureStorageAmplification(const StorageOptions& options, Report& report) {
  for (const Policy& policy : kPolicies) {
    const Status status = RunPolicy(policy, options.common.quick ? kQuick : kFull, options, report);
    if (!status.ok()) report.Failed(std::string("amplification, ") + policy.name, status);
  }
}

}  // namespace kvtier::bench
