#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/numerics.h"
#include "tests/bench/daemon.h"
#include "tests/bench/ladder.h"
#include "tests/bench/workload.h"

namespace kvtier::bench {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kNoiseBytes = 64 * kMiB;
constexpr uint32_t kTimeoutMs = 20'000;
constexpr uint32_t kCheckedLayers = 4;  // of a block, spread; each with all its heads and tokens
// What a fetch may differ from the source over what the daemon says: the stored errors are fp16, over all
// layers.
constexpr double kErrorSlack = 1.15;
constexpr double kErrorFloor = 0.002;

struct Flood {
  Shape shape;
  uint32_t puts;
  bool with_cold;
  std::string name;
};

/// Every offered block, and what became of it. `lost` is what must not be: acknowledged, and afterwards
/// either not found by a lookup at once, or in the end neither found nor counted by the daemon as evicted, or
/// found with other bytes.
struct Ledger {
  uint32_t offered = 0;
  uint32_t acknowledged = 0;
  uint32_t refused = 0;  ///< put or wait said so
  uint32_t missing_at_once = 0;
  uint32_t missing = 0;
  uint32_t wrong = 0;
  double evicted = 0;  ///< by the daemon's own count
  double lost() const { return missing_at_once + wrong + std::max(0.0, missing - evicted); }
};

/// sqrt(sum (x - y)^2 / sum x^2) over n FP16 values.
double RelativeError(const std::byte* expected, const std::byte* got, uint64_t n) {
  double square = 0;
  double difference = 0;
  for (uint64_t i = 0; i < n; ++i) {
    uint16_t pair[2];
    std::memcpy(&pair[0], expected + 2 * i, 2);
    std::memcpy(&pair[1], got + 2 * i, 2);
    const double x = Fp32FromFp16(pair[0]);
    const double y = Fp32FromFp16(pair[1]);
    square += x * x;
    difference += (x - y) * (x - y);
  }
  return std::sqrt(difference / square);
}

/// Whether a fetched block is the one that was put, as exactly as its precision promises.
bool IsTheBlock(const Shape& shape, const std::byte* expected, const std::byte* got, const Fetched& fetched) {
  if (fetched.result.precision == KVTIER_BITS16) return std::memcmp(expected, got, shape.block_bytes()) == 0;
  const uint64_t plane = shape.plane_bytes();
  const uint32_t step = std::max(1u, shape.layers / kCheckedLayers);
  for (uint32_t layer = 0; layer < shape.layers; layer += step) {
    const uint64_t k_at = 2 * layer * plane;
    const double k_error = RelativeError(expected + k_at, got + k_at, plane / 2);
    const double v_error = RelativeError(expected + k_at + plane, got + k_at + plane, plane / 2);
    if (!(k_error <= fetched.result.k_error * kErrorSlack + kErrorFloor)) return false;
    if (!(v_error <= fetched.result.v_error * kErrorSlack + kErrorFloor)) return false;
  }
  return true;
}

class FloodRun {
 public:
  FloodRun(const Flood& flood, kvtier_client* handle, kvtier_model* model, std::span<std::byte> noise)
      : flood_(flood), handle_(handle), model_(model), noise_(noise) {}

  Status PutAll(Ledger& ledger);
  Status FetchAllAgain(Ledger& ledger) const;

 private:
  /// Each block is another window of the noise.
  std::byte* Content(uint32_t block) const {
    const uint64_t room = noise_.size() - flood_.shape.block_bytes();
    return noise_.data() + room / flood_.puts / 64 * 64 * block;
  }

  const Flood& flood_;
  kvtier_client* handle_;
  kvtier_model* model_;
  std::span<std::byte> noise_;
  std::vector<std::pair<uint32_t, kvtier_block_ref>> acknowledged_;
};

Status FloodRun::PutAll(Ledger& ledger) {
  for (uint32_t block = 0; block < flood_.puts; ++block) {
    KVTIER_ASSIGN(const auto refs, SequenceKeys(model_, flood_.shape, (block + 1) * 1000, 1));
    void* const base = Content(block);
    ++ledger.offered;
    if (!PutAndWait(handle_, model_, refs, ContiguousView(flood_.shape, &base), kTimeoutMs).ok()) {
      ++ledger.refused;
      continue;
    }
    ++ledger.acknowledged;
    acknowledged_.emplace_back(block, refs[0]);
    const kvtier_query query = QueryOf(refs);
    kvtier_lookup_result found{};
    if (kvtier_lookup(model_, &query, nullptr, &found, kTimeoutMs) != KVTIER_OK || found.blocks != 1) {
      ++ledger.missing_at_once;
    }
  }
  return Status::Ok();
}

Status FloodRun::FetchAllAgain(Ledger& ledger) const {
  AlignedBuffer memory;
  KVTIER_ASSIGN(const auto destination, memory.Reserve(flood_.shape.block_bytes()));
  void* const base = destination.data();
  const kvtier_view view = ContiguousView(flood_.shape, &base);
  for (const auto& [block, ref] : acknowledged_) {
    const Result<Fetched> fetched = FetchAll(model_, {&ref, 1}, view, kTimeoutMs);
    if (!fetched.ok() && fetched.status().code() != Code::kNotFound) return fetched.status();
    if (!fetched.ok()) {
      ++ledger.missing;
    } else if (!IsTheBlock(flood_.shape, Content(block), destination.data(), *fetched)) {
      ++ledger.wrong;
    }
  }
  return Status::Ok();
}

Status RunFlood(const Flood& flood, const Options& options, std::span<std::byte> noise, Report& report) {
  report.Progress("over capacity: " + flood.name);
  const uint64_t scale = options.quick ? 4 : 1;
  KVTIER_ASSIGN(const auto daemon,
                Daemon::Start(options, {.hot_bytes = 896 * kMiB / scale,
                                        .warm_bytes = 128 * kMiB / scale,
                                        .cold_bytes = flood.with_cold ? 4096 * kMiB / scale : 0}));
  KVTIER_ASSIGN(const Connection connection, Connect(daemon->socket(), kTimeoutMs));
  KVTIER_ASSIGN(kvtier_model* const model, RegisterShape(connection.get(), flood.shape, "bench-flood"));
  FloodRun run(flood, connection.get(), model, noise);
  Ledger ledger;
  const double start = NowSeconds();
  KVTIER_TRY(run.PutAll(ledger));
  const double seconds = NowSeconds() - start;
  KVTIER_TRY(run.FetchAllAgain(ledger));
  KVTIER_ASSIGN(ledger.evicted, daemon->Metric("kvtier_tier_evictions_total"));

  const double gigabytes = static_cast<double>(flood.shape.block_bytes() * flood.puts) / 1e9;
  report.Figure(flood.name + ": put", gigabytes / seconds, "GB/s");
  report.Figure(flood.name + ": offered", ledger.offered, "blocks");
  report.Figure(flood.name + ": acknowledged", ledger.acknowledged, "blocks");
  report.Figure(flood.name + ": refused, and said so", ledger.refused, "blocks");
  report.Figure(flood.name + ": evicted by the daemon's count", ledger.evicted, "blocks");
  report.AtMost(flood.name + ": acknowledged and lost", ledger.lost(), 0, "blocks");
  if (flood.with_cold) report.AtMost(flood.name + ": not found at the end", ledger.missing, 0, "blocks");
  return Status::Ok();
}

}  // namespace

Status MeasureOverCapacity(const Options& options, Report& report) {
  AlignedBuffer memory;
  KVTIER_ASSIGN(const auto noise, memory.Reserve(kNoiseBytes));
  FillWithNoise(noise);
  const uint32_t scale = options.quick ? 4 : 1;
  for (const bool with_cold : {true, false}) {
    const std::string suffix = with_cold ? ", with cold" : ", without cold";
    for (const auto& [shape, puts] : {std::pair{kShape32MiB, 60u}, std::pair{kShape1MiB, 1500u}}) {
      const uint32_t count = puts / scale;
      const Flood flood{
          shape, count, with_cold,
          std::to_string(count) + " x " + std::to_string(shape.block_bytes() / kMiB) + " MiB" + suffix};
      KVTIER_TRY(RunFlood(flood, options, noise, report));
    }
  }
  return Status::Ok();
}

}  // namespace kvtier::bench
