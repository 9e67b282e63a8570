#include <unistd.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/bench/daemon.h"
#include "tests/bench/ladder.h"
#include "tests/bench/workload.h"

namespace kvtier::bench {
namespace {

constexpr uint32_t kTimeoutMs = 10'000;
/// INT2 of all measured blocks takes three times the host tier, so that none is there when its turn comes
/// again.
constexpr uint64_t kHotBytes = uint64_t{64} << 20, kCxlBytes = uint64_t{1} << 30;
constexpr uint32_t kBlocks = 320;
/// Put last, so that nothing that is measured is left in the host tier as it was put.
constexpr uint32_t kFillers = 32;
constexpr double kLeastGain = 1.0;

/// One daemon with its client and what was put into it.
struct Side {
  std::unique_ptr<Daemon> daemon;
  Connection connection;
  kvtier_model* model = nullptr;
  std::vector<std::vector<kvtier_block_ref>> sequences;
  Samples seconds;
};

Result<Side> MakeSide(const Options& options, const Shape& shape, uint32_t blocks, const kvtier_view& source,
                      const std::string& cxl_keys) {
  Side side;
  KVTIER_ASSIGN(
      side.daemon,
      Daemon::Start(options, {.hot_bytes = kHotBytes, .cxl_bytes = kCxlBytes, .cxl_keys = cxl_keys}));
  KVTIER_ASSIGN(side.connection, Connect(side.daemon->socket(), kTimeoutMs));
  KVTIER_ASSIGN(side.model, RegisterShape(side.connection.get(), shape, "bench-mapped"));
  for (uint32_t i = 0; i < (kBlocks + kFillers) / blocks; ++i) {
    KVTIER_ASSIGN(std::vector<kvtier_block_ref> refs,
                  SequenceKeys(side.model, shape, (i + 1) * 1'000'000, blocks));
    KVTIER_TRY(PutAndWait(side.connection.get(), side.model, refs, source, kTimeoutMs));
    if (i < kBlocks / blocks) side.sequences.push_back(std::move(refs));
  }
  return side;
}

Result<double> Promoted(const Side& side) {
  KVTIER_ASSIGN(const double moved,
                side.daemon->Metric("kvtier_moved_blocks_total{from=\"cxl\",to=\"hot\"}"));
  return moved;
}

Status MeasureShape(const Options& options, const Shape& shape, uint32_t blocks, Report& report) {
  const std::string what =
      std::to_string(blocks) + " x " + std::to_string(shape.block_bytes() >> 20) + " MiB";
  report.Progress("blocks on a CXL tier, " + what);
  KVTIER_ASSIGN(EngineCache source, EngineCache::Make(shape, blocks, PageOrder::kHeadsFirst));
  KVTIER_ASSIGN(EngineCache destination, EngineCache::Make(shape, blocks, PageOrder::kHeadsFirst));
  FillWithNoise(source.bytes());
  const std::string me = "uid:" + std::to_string(::getuid());
  std::vector<Side> sides;
  for (const std::string& keys : {std::string(), "mapped_by = \"" + me + "\"\n"}) {
    KVTIER_ASSIGN(Side side, MakeSide(options, shape, blocks, source.view(), keys));
    sides.push_back(std::move(side));
  }
  Samples gains;
  const auto sequences = static_cast<uint32_t>(sides[0].sequences.size());
  const uint32_t rounds = options.quick ? sequences / 2 : 2 * sequences;
  std::vector<std::byte> first;
  for (uint32_t round = 0; round < rounds; ++round) {
    std::array<double, 2> seconds{};
    for (size_t turn = 0; turn < sides.size(); ++turn) {
      const size_t at = (turn + round) % sides.size();
      Side& side = sides[at];
      const double start = NowSeconds();
      KVTIER_ASSIGN(const Fetched fetched,
                    FetchAll(side.model, side.sequences[round % sequences], destination.view(), kTimeoutMs));
      seconds[at] = NowSeconds() - start;
      if (fetched.result.precision != KVTIER_INT2) {
        return Status(Code::kInternal, "a block is not from the CXL tier");
      }
      if (turn == 0) first.assign(destination.bytes().begin(), destination.bytes().end());
      if (std::memcmp(first.data(), destination.bytes().data(), first.size()) != 0) {
        return Status(Code::kDataLoss, "both ways do not give the same bytes");
      }
    }
    for (size_t at = 0; at < sides.size(); ++at) sides[at].seconds.Add(seconds[at]);
    gains.Add(seconds[0] / seconds[1]);
  }
  KVTIER_ASSIGN(const double promoted, Promoted(sides[1]));
  if (promoted > 0) return Status(Code::kInternal, "blocks that are mapped were brought to DRAM");
  report.Figure("fetch of " + what + " from a CXL tier, through DRAM, p50", sides[0].seconds.Median() * 1e6,
                "us");
  report.Figure("fetch of " + what + " from a CXL tier, mapped, p50", sides[1].seconds.Median() * 1e6, "us");
  report.AtLeast("fetch of " + what + " from a CXL tier, mapped, of the way through DRAM", gains.Median(),
                 kLeastGain, "x");
  return Status::Ok();
}

}  // namespace

Status MeasureMappedStore(const Options& options, Report& report) {
  KVTIER_TRY(MeasureShape(options, kShape4MiB, 1, report));
  return MeasureShape(options, kShape4MiB, 8, report);
}

}  // namespace kvtier::bench
