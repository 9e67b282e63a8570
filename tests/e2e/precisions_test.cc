// Every type an engine may have, every precision a tier may keep, every type and form a destination may ask
// for.
#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <span>

#include "kernels/source_rows.h"
#include "kernels/tile.h"
#include "tests/e2e/e2e.h"

namespace kvtier::e2e {
namespace {

constexpr size_t kBlocks = 3, kTokens = kBlocks * kBlockTokens;
constexpr size_t kPlane = kHeads * kTokens * kDim;          // elements of K, or V, of a layer
constexpr size_t kElements = size_t{kLayers} * 2 * kPlane;  // [layer][K, V][head][token][channel]

constexpr std::array<float, kLayers> kKScales = {0.5f, 0.25f, 2, 1}, kVScales = {0.01f, 3, 1, 0.125f};

/// K and V of the sequence in any type, and a view of them.
class TypedKv {
 public:
  explicit TypedKv(kvtier_dtype dtype)
      : dtype_(static_cast<DType>(dtype)), bytes_(kElements * DTypeBytes(dtype_)), base_(bytes_.data()) {
    const auto element = static_cast<int64_t>(DTypeBytes(dtype_));
    view_ = api::ContiguousView(&base_, 1);
    view_.layer_stride = 2 * kPlane * element;
    view_.v_offset = kPlane * element;
    view_.head_stride = kTokens * kDim * element;
    view_.token_stride = kDim * element;
    view_.dtype = dtype;
  }
  TypedKv(const TypedKv&) = delete;
  TypedKv& operator=(const TypedKv&) = delete;

  kvtier_view& view() { return view_; }
  std::vector<std::byte>& bytes() { return bytes_; }
  /// Element i; numbers in FP8 times the scales of their layer.
  float At(size_t i) const {
    const size_t layer = i / (2 * kPlane);
    const float scale = i / kPlane % 2 == 0 ? kKScales[layer] : kVScales[layer];
    float value = 0;
    if (dtype_ == DType::kFp32) {
      memcpy(&value, &bytes_[4 * i], 4);
    } else {
      LoadTile(&bytes_[i * DTypeBytes(dtype_)], dtype_, scale, 1, &value);
    }
    return value;
  }

 private:
  DType dtype_;
  std::vector<std::byte> bytes_;
  void* base_;
  kvtier_view view_;
};

/// Relative rms distance of K (is_v 0) or V (1) of all layers.
double ErrorOf(const TypedKv& kv, const TypedKv& other, size_t is_v) {
  double square = 0, off = 0;
  for (size_t i = 0; i < kElements; ++i) {
    if (i / kPlane % 2 != is_v) continue;
    const double x = kv.At(i), y = other.At(i);
    square += x * x;
    off += (x - y) * (x - y);
  }
  return std::sqrt(off / square);
}

/// Finite FP8 of every size.
void FillFp8(TypedKv& kv, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 20);
  const bool is_e4m3 = kv.view().dtype == KVTIER_FP8_E4M3;
  for (std::byte& element : kv.bytes())
    element = static_cast<std::byte>(is_e4m3 ? E4m3FromFp32(normal(random)) : E5m2FromFp32(normal(random)));
}
void FillFp16(TypedKv& kv, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < kElements; ++i) Store16(&kv.bytes()[2 * i], Fp16FromFp32(normal(random)));
}

kvtier_model_spec SpecOf(kvtier_dtype dtype) {
  kvtier_model_spec spec = TestSpec("precisions");
  spec.dtype = dtype;
  spec.k_scales = kKScales.data();
  spec.v_scales = kVScales.data();
  return spec;
}

class Precisions : public E2eTest {
 protected:
  void Start(const char* hot_codec) {
    StartDaemon({.hot_bytes = uint64_t{32} << 20,
                 .warm_bytes = uint64_t{32} << 20,
                 .cold_bytes = uint64_t{256} << 20,
                 .hot_codec = hot_codec,
                 .more = {}});
  }
  void Demote(const char* tier) {
    const ProgramResult result = Ctl(*daemon_, std::string("--json demote ") + tier);
    ASSERT_EQ(result.output, "{\"demoted\":" + std::to_string(kBlocks) + "}\n");
  }
  static void Put(const Engine& engine, const api::Sequence& sequence, TypedKv& kv) {
    const auto ticket = engine.model.Put(sequence.Query(), kv.view());
    ASSERT_TRUE(ticket) << api::LastError();
    ASSERT_EQ(engine.client.Wait(*ticket), KVTIER_OK) << api::LastError();
  }
  /// All blocks, which must be there in `precision`; the larger error that any states, of K and of V.
  static std::array<float, 2> Fetch(const Engine& engine, const api::Sequence& sequence,
                                    kvtier_precision precision, const kvtier_view& destination) {
    std::array<float, 2> errors{};
    auto lease = engine.model.Acquire(sequence.Query());
    if (!lease || lease->count() != kBlocks) {
      ADD_FAILURE() << api::LastError();
      return errors;
    }
    std::vector<kvtier_block_result> results(kBlocks);
    EXPECT_EQ(lease->Fetch(0, destination, results), KVTIER_OK) << api::LastError();
    for (const kvtier_block_result& result : results) {
      EXPECT_EQ(result.precision, precision);
      errors[0] = std::max(errors[0], result.k_error);
      errors[1] = std::max(errors[1], result.v_error);
    }
    return errors;
  }
  static void ExpectWithin(const TypedKv& kv, const TypedKv& out, const std::array<float, 2>& stated) {
    for (const size_t is_v : {0, 1}) EXPECT_LE(ErrorOf(kv, out, is_v), stated[is_v] * 1.01 + 1e-3) << is_v;
  }
};

TEST_F(Precisions, AnFp8EngineGetsItsBytesBackFromHotAndValuesWithinTheStatedErrorFromBelow) {
  for (const kvtier_dtype dtype : {KVTIER_FP8_E4M3, KVTIER_FP8_E5M2}) {
    SCOPED_TRACE(dtype);
    Start("raw16");
    const Engine engine = Connect(SpecOf(dtype));
    const api::Sequence sequence = engine.Keys(Tokens(1, kTokens));
    TypedKv kv(dtype), same(dtype), wide(KVTIER_FP32);
    FillFp8(kv, 1);
    Put(engine, sequence, kv);
    Fetch(engine, sequence, KVTIER_BITS8, same.view());
    EXPECT_EQ(same.bytes(), kv.bytes());
    Fetch(engine, sequence, KVTIER_BITS8, wide.view());
    for (size_t i = 0; i < kElements; ++i) ASSERT_EQ(wide.At(i), kv.At(i)) << i;

    Demote("hot");
    ExpectWithin(kv, wide, Fetch(engine, sequence, KVTIER_INT4, wide.view()));
    EXPECT_LT(ErrorOf(kv, wide, 0), 0.2);
    EXPECT_LT(ErrorOf(kv, wide, 1), 0.2);
    Fetch(engine, sequence, KVTIER_INT4, same.view());
    EXPECT_LT(ErrorOf(wide, same, 0), 0.1) << "FP8 destinations are the same values, rounded";
    Demote("warm");
    ExpectWithin(kv, wide, Fetch(engine, sequence, KVTIER_INT2, wide.view()));
  }
}

TEST_F(Precisions, AHotTierOfKv8HoldsTwiceAsMuchAndPassesItOn) {
  Start("kv8");
  const Engine engine = Connect(SpecOf(KVTIER_FP16));
  const api::Sequence sequence = engine.Keys(Tokens(2, kTokens));
  TypedKv kv(KVTIER_FP16), out(KVTIER_FP16);
  FillFp16(kv, 2);
  Put(engine, sequence, kv);
  ExpectWithin(kv, out, Fetch(engine, sequence, KVTIER_BITS8, out.view()));
  EXPECT_LT(ErrorOf(kv, out, 0), 0.01);
  EXPECT_LT(ErrorOf(kv, out, 1), 0.05);
  auto lease = engine.model.Acquire(sequence.Query());
  ASSERT_TRUE(lease);
  EXPECT_LT(lease->Block(1)->image_bytes, kBlockBytes * 11 / 20);
  EXPECT_EQ(lease->Release(), KVTIER_OK);

  TypedKv kept(KVTIER_FP16);
  kept.bytes() = out.bytes();
  Demote("hot");
  // Errors are from the 8-bit values on.
  ExpectWithin(kept, out, Fetch(engine, sequence, KVTIER_INT4, out.view()));
  EXPECT_LT(ErrorOf(kv, out, 0), 0.2);
}

TEST_F(Precisions, ARotatedFetchTurnedBackIsThePlainFetch) {
  Start("raw16");
  const Engine engine = Connect(SpecOf(KVTIER_FP16));
  const api::Sequence sequence = engine.Keys(Tokens(3, kTokens));
  TypedKv kv(KVTIER_FP16), plain(KVTIER_FP32), rotated(KVTIER_FP32);
  FillFp16(kv, 3);
  rotated.view().flags = KVTIER_VIEW_ROTATED_V;
  Put(engine, sequence, kv);
  const auto compare = [&](kvtier_precision precision) {
    Fetch(engine, sequence, precision, plain.view());
    Fetch(engine, sequence, precision, rotated.view());
    TypedKv back(KVTIER_FP32);
    for (size_t first = 0; first < kElements; first += kDim) {  // a row is one group of 64
      float row[kDim];
      for (size_t i = 0; i < kDim; ++i) row[i] = rotated.At(first + i);
      if (first / kPlane % 2 == 1) RotateGroups(row, kDim);
      memcpy(&back.bytes()[first * sizeof(float)], row, sizeof row);
    }
    EXPECT_EQ(ErrorOf(plain, back, 0), 0) << "keys are not rotated";
    EXPECT_LT(ErrorOf(plain, back, 1), 1e-5);
    EXPECT_GT(ErrorOf(plain, rotated, 1), 0.5);
  };
  compare(KVTIER_BITS16);
  Demote("hot");
  compare(KVTIER_INT4);
  Demote("warm");
  compare(KVTIER_INT2);
}

TEST_F(Precisions, EveryDestinationTypeHasTheSameValuesRounded) {
  Start("raw16");
  const Engine engine = Connect(SpecOf(KVTIER_FP16));
  const api::Sequence sequence = engine.Keys(Tokens(4, kTokens));
  TypedKv kv(KVTIER_FP16), wide(KVTIER_FP32);
  FillFp16(kv, 4);
  Put(engine, sequence, kv);
  struct Type {
    kvtier_dtype dtype;
    double rounding;  // rms of a rounding to its mantissa, with room
  };
  const auto compare = [&](kvtier_precision precision) {
    Fetch(engine, sequence, precision, wide.view());
    for (const Type& type : {Type{KVTIER_FP16, 5e-4}, Type{KVTIER_BF16, 4e-3}, Type{KVTIER_FP8_E4M3, 0.05},
                             Type{KVTIER_FP8_E5M2, 0.1}}) {
      SCOPED_TRACE(type.dtype);
      TypedKv out(type.dtype);
      Fetch(engine, sequence, precision, out.view());
      EXPECT_LT(ErrorOf(wide, out, 0), type.rounding);
      EXPECT_LT(ErrorOf(wide, out, 1), type.rounding);
    }
  };
  compare(KVTIER_BITS16);
  Demote("hot");
  compare(KVTIER_INT4);
}

/// Attention of query head `head` (one for each KV head) over all tokens of a layer, in double precision.
std::vector<double> AttentionOver(const TypedKv& kv, size_t layer, size_t head, std::span<const float> q,
                                  double scale) {
  const size_t k = layer * 2 * kPlane + head * kTokens * kDim, v = k + kPlane;
  std::vector<double> weights(kTokens), out(kDim);
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t c = 0; c < kDim; ++c) weights[t] += scale * q[c] * kv.At(k + t * kDim + c);
  }
  const double largest = std::ranges::max(weights);
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(weight - largest);
  for (size_t t = 0; t < kTokens; ++t)
    for (size_t c = 0; c < kDim; ++c) out[c] += weights[t] / sum * kv.At(v + t * kDim + c);
  return out;
}

TEST_F(Precisions, AttentionOverFp8CountsTheScalesOfTheLayer) {
  Start("raw16");
  const Engine engine = Connect(SpecOf(KVTIER_FP8_E4M3));
  const api::Sequence sequence = engine.Keys(Tokens(6, kTokens));
  TypedKv kv(KVTIER_FP8_E4M3);
  FillFp8(kv, 6);
  Put(engine, sequence, kv);
  kvtier_lease* lease = nullptr;
  const kvtier_query query = sequence.Query();
  const kvtier_acquire_options options = api::AcquireOptions();
  ASSERT_EQ(kvtier_acquire(engine.model.get(), &query, &options, &lease), KVTIER_OK);
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  std::vector<float> q(kHeads * kDim), o(kHeads * kDim), m(kHeads), l(kHeads);
  for (float& value : q) value = normal(random);
  const kvtier_attention attention = {.struct_size = sizeof(kvtier_attention),
                                      .q = q.data(),
                                      .query_heads = kHeads,
                                      .scale = 0.01f,
                                      .o = o.data(),
                                      .m = m.data(),
                                      .l = l.data(),
                                      .mass = nullptr};
  std::array<kvtier_block_result, kBlocks> results;
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    ASSERT_EQ(kvtier_attend(lease, 0, kBlocks, layer, &attention, results.data()), KVTIER_OK)
        << api::LastError();
    for (size_t head = 0; head < kHeads; ++head) {
      const std::vector<double> expected =
          AttentionOver(kv, layer, head, std::span(q).subspan(head * kDim, kDim), attention.scale);
      for (size_t c = 0; c < kDim; ++c) {
        const double got = o[head * kDim + c] / l[head];
        ASSERT_NEAR(got, expected[c], 1e-4 * (1 + std::fabs(expected[c])))
            << "layer " << layer << ", channel " << c;
      }
    }
  }
  EXPECT_EQ(kvtier_release(lease), KVTIER_OK);
}

TEST_F(Precisions, S21_OtherScalesHitNothing) {
  Start("raw16");
  const Engine engine = Connect(SpecOf(KVTIER_FP8_E4M3));
  TypedKv kv(KVTIER_FP8_E4M3);
  FillFp8(kv, 5);
  Put(engine, engine.Keys(Tokens(5, kTokens)), kv);
  EXPECT_EQ(engine.Hits(engine.Keys(Tokens(5, kTokens))), kBlocks);
  std::array<float, kLayers> other = kKScales;
  other[3] = 1.5f;
  kvtier_model_spec spec = SpecOf(KVTIER_FP8_E4M3);
  spec.k_scales = other.data();
  const Engine others = Connect(spec);
  EXPECT_EQ(others.Hits(others.Keys(Tokens(5, kTokens))), 0u);
}

TEST_F(Precisions, ScalesThatCannotBeAreRefused) {
  Start("raw16");
  const Engine engine = Connect();
  std::array<float, kLayers> wrong = kVScales;
  wrong[2] = -1;
  kvtier_model_spec spec = SpecOf(KVTIER_FP8_E4M3);
  spec.v_scales = wrong.data();
  EXPECT_EQ(engine.client.RegisterModel(spec).code(), KVTIER_INVALID_ARGUMENT);
  EXPECT_NE(api::LastError().find("v_scales"), std::string::npos) << api::LastError();
}

}  // namespace
}  // namespace kvtier::e2e
