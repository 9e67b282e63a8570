// What a reader learns about the exactness of real keys with outlier channels, and what a floor keeps.
#include <cmath>
#include <cstring>

#include "kernels/numerics.h"
#include "tests/e2e/e2e.h"
#include "tests/support/fixture.h"
#include "tests/support/paths.h"

namespace kvtier::e2e {
namespace {

/// K and V of the layers of a Qwen model, of which the first two have keys up to 161 in almost constant
/// channels: the shape and order of the test model.
Kv OutlierKv() {
  constexpr size_t kTokens = 512;
  Kv kv(kTokens);
  const auto bytes = ReadFileBytes(TestDataFolder() + "/qwen2.5-coder-0.5b.kv.f16");
  KVTIER_CHECK(bytes.ok() && bytes->size() == kv.values().size() * 2);
  std::memcpy(kv.values().data(), bytes->data(), bytes->size());
  return kv;
}

enum class Part : size_t { kK = 0, kV = 1 };

/// Root of the mean over the layers of the squared relative error of a block.
double MeasuredError(Kv& right, Kv& got, size_t block, Part part) {
  double sum = 0;
  for (size_t layer = 0; layer < kLayers; ++layer) {
    double square = 0, error = 0;
    for (size_t head = 0; head < kHeads; ++head) {
      const size_t plane = (2 * layer + static_cast<size_t>(part)) * kHeads + head;
      const size_t start = (plane * right.tokens() + block * kBlockTokens) * kDim;
      for (size_t i = start; i < start + kBlockTokens * kDim; ++i) {
        const double x = Fp32FromFp16(right.values()[i]), y = Fp32FromFp16(got.values()[i]);
        square += x * x;
        error += (x - y) * (x - y);
      }
    }
    sum += error / square;
  }
  return std::sqrt(sum / kLayers);
}

class Quality : public E2eTest {
 protected:
  void DemoteAll(const char* tier) {
    const ProgramResult result = Ctl(*daemon_, std::string("--json demote ") + tier);
    ASSERT_EQ(result.exit_code, 0) << result.output;
  }
  /// Every block comes back at `precision` with the errors that its reader measures.
  static void ExpectRung(const Engine& engine, const api::Sequence& sequence, Kv& kv,
                         kvtier_precision precision) {
    Kv out(kv.tokens());
    const auto results = engine.Fetch(sequence, out);
    ASSERT_EQ(results.size(), sequence.blocks());
    for (size_t block = 0; block < results.size(); ++block) {
      EXPECT_EQ(results[block].code, KVTIER_OK);
      EXPECT_EQ(results[block].precision, precision) << "block " << block;
      const double k = MeasuredError(kv, out, block, Part::kK), v = MeasuredError(kv, out, block, Part::kV);
      EXPECT_NEAR(results[block].k_error, k, k / 500) << "block " << block;
      EXPECT_NEAR(results[block].v_error, v, v / 500) << "block " << block;
    }
  }
};

TEST_F(Quality, S10_OutlierKeysComeBackWithTheirMeasuredErrorsAndStayAboveTheFloor) {
  StartDaemon({.hot_bytes = uint64_t{32} << 20,
               .warm_bytes = uint64_t{32} << 20,
               .cold_bytes = uint64_t{256} << 20,
               .more = {}});
  kvtier_model_spec careful_spec = TestSpec("careful");
  careful_spec.floor = KVTIER_INT4;
  const Engine any = Connect(), careful = Connect(careful_spec);
  Kv kv = OutlierKv();
  const api::Sequence any_keys = any.Keys(Tokens(1, kv.tokens()));
  const api::Sequence careful_keys = careful.Keys(Tokens(1, kv.tokens()));
  for (const auto& result : any.Put(any_keys, kv)) EXPECT_EQ(result.code, KVTIER_OK);
  for (const auto& result : careful.Put(careful_keys, kv)) EXPECT_EQ(result.code, KVTIER_OK);

  DemoteAll("hot");
  ExpectRung(any, any_keys, kv, KVTIER_INT4);
  ExpectRung(careful, careful_keys, kv, KVTIER_INT4);
  DemoteAll("warm");
  ExpectRung(any, any_keys, kv, KVTIER_INT2);
  ExpectRung(careful, careful_keys, kv, KVTIER_INT4);
}

}  // namespace
}  // namespace kvtier::e2e
