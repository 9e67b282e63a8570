// The attention bodies on lanes that share work, against the one lane of SerialTeam: near, not equal, since
// expf is the compiler's.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernels/attend.h"
#include "kernels/attend_kv8.h"
#include "kernels/attend_rows.h"
#include "kernels/quantize.h"
#include "kernels/quantize_kv8.h"
#include "tests/kernels/kv8_buffers.h"
#include "tests/kernels/plane_buffers.h"
#include "tests/kernels/team_cases.h"
#include "tests/kernels/team_launchers.h"

namespace kvtier {
namespace {

constexpr uint32_t kQueriesPerHead = 3;
constexpr double kTolerance = 1e-6;

/// o, m and l of all query heads, and how far one result is from another.
struct Attended {
  std::vector<float> values;

  double DistanceTo(const Attended& other) const {
    double difference = 0, size = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(values[i] - other.values[i], 2);
      size += std::pow(other.values[i], 2);
    }
    return std::sqrt(difference / size);
  }
};

/// A layer of normally distributed values, its encodings, and queries.
class AttendTeams {
 public:
  explicit AttendTeams(const BlockShape& shape)
      : shape_(shape), raw_(RawLayerBytes(shape)), planes_(shape, 0), kv8_(shape, 0) {
    std::mt19937 random(kSeed);
    std::normal_distribution<float> normal;
    for (size_t at = 0; at < raw_.size(); at += 2) Store16(&raw_[at], Fp16FromFp32(normal(random)));
    queries_.resize(size_t{kQueriesPerHead} * shape.kv_heads * shape.k_dim);
    for (float& value : queries_) value = normal(random);
    Encode();
  }

  /// run(launch) of each body.
  auto Planes() const {
    return [this](const auto& launch) {
      return Attend(launch, AttendPlanesArgs{.shape = shape_, .in = planes_.Read(), .query = {}, .out = {}},
                    [](const auto& team, const auto& args) { AttendPlanes(team, args); });
    };
  }
  auto PlanesInt2() const {
    return [this](const auto& launch) {
      AttendPlanesArgs args{.shape = shape_, .in = planes_.Read(), .query = {}, .out = {}};
      args.in.k_low = args.in.v_low = nullptr;
      return Attend(launch, args, [](const auto& team, const auto& a) { AttendPlanes(team, a); });
    };
  }
  auto Kv8() const {
    return [this](const auto& launch) {
      return Attend(launch, AttendKv8Args{.shape = shape_, .in = kv8_.Read(), .query = {}, .out = {}},
                    [](const auto& team, const auto& args) { AttendKv8(team, args); });
    };
  }
  auto Rows() const {
    return [this](const auto& launch) {
      return Attend(launch, AttendRowsArgs{.shape = shape_, .raw = raw_.data(), .query = {}, .out = {}},
                    [](const auto& team, const auto& args) { AttendRows(team, args); });
    };
  }

 private:
  void Encode() {
    std::vector<RowErrors> errors(size_t{2} * shape_.kv_heads * shape_.tokens);
    const QuantizeArgs args = {.shape = shape_,
                               .raw = raw_.data(),
                               .out = planes_.sections(),
                               .k_errors = errors.data(),
                               .v_errors = errors.data() + errors.size() / 2};
    LaunchSerial(QuantizeLaunch(shape_), [&](const SerialTeam& team) { Quantize(team, args); });
    std::vector<Kv8RowErrors> kv8_errors(errors.size());
    const QuantizeKv8Args kv8_args = {.source = {.shape = shape_, .raw = raw_.data()},
                                      .out = kv8_.sections(),
                                      .k_errors = kv8_errors.data(),
                                      .v_errors = kv8_errors.data() + errors.size() / 2};
    LaunchSerial(Kv8Launch(shape_), [&](const SerialTeam& team) { QuantizeKv8(team, kv8_args); });
  }

  template <typename Launch, typename Args, typename Body>
  Attended Attend(const Launch& launch, Args args, const Body& body) const {
    const uint32_t heads = kQueriesPerHead * shape_.kv_heads;
    Attended result{std::vector<float>(size_t{heads} * (shape_.v_dim + 2), NAN)};
    args.query = {
        .q = queries_.data(), .query_heads = heads, .scale = 1 / std::sqrt(static_cast<float>(shape_.k_dim))};
    float* m = result.values.data() + size_t{heads} * shape_.v_dim;
    args.out = {.o = result.values.data(), .m = m, .l = m + heads};
    launch(AttendLaunch(args.query), [&](const auto& team) { body(team, args); });
    return result;
  }

  BlockShape shape_;
  std::vector<std::byte> raw_;
  std::vector<float> queries_;
  PlaneBuffers planes_;
  Kv8Buffers kv8_;
};

std::vector<BlockShape> AttendShapes() {
  return {Shape(2, 64, 64, 64, 1, 32), Shape(1, 80, 48, 37, 4, 40), Shape(1, 256, 16, 9, 0, 252),
          Shape(1, 16, 256, 126, 0, 0)};
}

template <typename Run>
void ExpectFibersNearSerial(const Run& run) {
  const Attended expected = run(SerialLauncher());
  for (const FiberOptions& options : AllFiberOptions())
    EXPECT_LE(run(FiberLauncher{options}).DistanceTo(expected), kTolerance) << Describe(options);
}

TEST(AttendTeamsTest, AttentionIsTheSameOnFibersInEveryOrder) {
  for (const BlockShape& shape : AttendShapes()) {
    SCOPED_TRACE(Describe(shape));
    const AttendTeams layer(shape);
    ExpectFibersNearSerial(layer.Planes());
    ExpectFibersNearSerial(layer.PlanesInt2());
    ExpectFibersNearSerial(layer.Kv8());
    ExpectFibersNearSerial(layer.Rows());
  }
}

TEST(AttendTeamsTest, AttentionIsTheSameOnThreads) {
  const AttendTeams layer(FewShapes().front());
  const auto expect_near = [](const auto& run) {
    EXPECT_LE(run(ThreadLauncher{64}).DistanceTo(run(SerialLauncher())), kTolerance);
  };
  expect_near(layer.Planes());
  expect_near(layer.PlanesInt2());
  expect_near(layer.Kv8());
  expect_near(layer.Rows());
}

}  // namespace
}  // namespace kvtier
