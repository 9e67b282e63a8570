#include "daemon/policy/model_spec.h"

#include <gtest/gtest.h>

#include <cmath>

#include "codecs/image_layout.h"

namespace kvtier {
namespace {

ModelSpec Spec() {
  ModelSpec spec;
  spec.model_id = "m";
  spec.layers = 24;
  spec.kv_heads = 2;
  spec.k_dim = 64;
  spec.v_dim = 64;
  spec.boost_channels = DefaultBoost(64);
  return spec;
}

ModelSpec FullSpec() {
  ModelSpec spec = Spec();
  spec.revision = "abc";
  spec.lora = std::string("l\0ra", 4);
  spec.config_digest = "rope";
  spec.kv_scales = "scales";
  spec.layout_id = "hnd";
  spec.layer_group = 70000;
  spec.dtype = DType::kBf16;
  spec.tokens_per_block = 64;
  spec.tensor = {.rank = 1, .size = 4};
  spec.pipeline = {.rank = 2, .size = 3};
  spec.context = {.rank = 0, .size = 2};
  spec.first_raw_rows = 4;
  spec.floor = Precision::kK4V2;
  spec.k_scales.assign(24, 0.5f);
  spec.v_scales.assign(24, 0.01f);
  return spec;
}

void ExpectRefused(Code code, void (*change)(ModelSpec&), std::string_view named) {
  ModelSpec spec = Spec();
  change(spec);
  const Status status = ValidateModelSpec(spec);
  EXPECT_EQ(status.code(), code) << named;
  EXPECT_NE(status.message().find(named), std::string::npos) << status.message();
}

TEST(ModelSpec, AcceptsWhatThisVersionStores) {
  EXPECT_TRUE(ValidateModelSpec(Spec()).ok());
  EXPECT_TRUE(ValidateModelSpec(FullSpec()).ok());
}

TEST(ModelSpec, RefusesWhatIsWrongAndNamesTheField) {
  ExpectRefused(
      Code::kInvalidArgument, [](ModelSpec& s) { s.model_id.clear(); }, "model_id");
  ExpectRefused(
      Code::kInvalidArgument, [](ModelSpec& s) { s.lora.assign(1025, 'x'); }, "lora");
  ExpectRefused(
      Code::kInvalidArgument, [](ModelSpec& s) { s.layers = 0; }, "layers");
  ExpectRefused(
      Code::kInvalidArgument, [](ModelSpec& s) { s.layers = 1025; }, "layers");
  ExpectRefused(
      Code::kInvalidArgument, [](ModelSpec& s) { s.kv_heads = 0; }, "kv_heads");
  ExpectRefused(
      Code::kInvalidArgument, [](ModelSpec& s) { s.k_dim = 0; }, "k_dim");
  ExpectRefused(
      Code::kInvalidArgument, [](ModelSpec& s) { s.dtype = DType{9}; }, "dtype");
  ExpectRefused(
      Code::kInvalidArgument, [](ModelSpec& s) { s.tokens_per_block = 32; }, "tokens_per_block");
  ExpectRefused(
      Code::kInvalidArgument, [](ModelSpec& s) { s.tensor = {.rank = 2, .size = 2}; }, "tensor");
  ExpectRefused(
      Code::kInvalidArgument, [](ModelSpec& s) { s.context = {.rank = 0, .size = 0}; }, "context");
  ExpectRefused(
      Code::kInvalidArgument, [](ModelSpec& s) { s.first_raw_rows = 5; }, "first_raw_rows");
  ExpectRefused(
      Code::kInvalidArgument, [](ModelSpec& s) { s.boost_channels = 6; }, "boost_channels");
  ExpectRefused(
      Code::kInvalidArgument, [](ModelSpec& s) { s.boost_channels = 68; }, "boost_channels");
  ExpectRefused(
      Code::kInvalidArgument, [](ModelSpec& s) { s.floor = Precision{6}; }, "floor");
  ExpectRefused(
      Code::kInvalidArgument, [](ModelSpec& s) { s.kv_heads = 4096; }, "64 MiB");
}

TEST(ModelSpec, AcceptsFp8WithItsScalesAndAFloorOfEightBits) {
  ModelSpec spec = Spec();
  for (const DType dtype : {DType::kE4m3, DType::kE5m2}) {
    spec.dtype = dtype;
    spec.floor = Precision::kBits8;
    EXPECT_TRUE(ValidateModelSpec(spec).ok());
    spec.k_scales.assign(24, 0.02f);
    spec.v_scales.assign(24, 3.0f);
    EXPECT_TRUE(ValidateModelSpec(spec).ok());
  }
  EXPECT_EQ(ScalesOf(spec, 7), (Fp8Scales{.k = 0.02f, .v = 3.0f}));
  EXPECT_EQ(ScalesOf(Spec(), 7), (Fp8Scales{.k = 1, .v = 1}));
}

TEST(ModelSpec, RefusesScalesThatCannotBeAndFloorsThatFp8CannotMeet) {
  ExpectRefused(
      Code::kInvalidArgument, [](ModelSpec& s) { s.k_scales.assign(23, 1.0f); }, "k_scales");
  for (const float bad : {0.0f, -1.0f, 1e-39f, INFINITY, NAN}) {
    ModelSpec spec = Spec();
    spec.v_scales.assign(24, 1.0f);
    spec.v_scales[23] = bad;
    EXPECT_EQ(ValidateModelSpec(spec).code(), Code::kInvalidArgument) << bad;
  }
  ExpectRefused(
      Code::kInvalidArgument, [](ModelSpec& s) { s.dtype = DType::kE5m2, s.floor = Precision::kBits16; },
      "floor");
}

TEST(ModelSpec, SaysUnsupportedForLatentAttentionOddDimsAndFp32) {
  ExpectRefused(
      Code::kUnimplemented, [](ModelSpec& s) { s.k_dim = 576, s.v_dim = 512; }, "latent");
  ExpectRefused(
      Code::kUnimplemented, [](ModelSpec& s) { s.v_dim = 0; }, "latent");
  ExpectRefused(
      Code::kUnimplemented, [](ModelSpec& s) { s.k_dim = 72; }, "multiples of 16");
  ExpectRefused(
      Code::kUnimplemented, [](ModelSpec& s) { s.dtype = DType::kFp32; }, "fp32");
}

TEST(ModelSpec, GivesRawRowsOnlyToTheBlockAtPositionZero) {
  const ModelSpec spec = FullSpec();
  EXPECT_EQ(ShapeOf(spec, 0, 64).nraw, 4);
  EXPECT_EQ(ShapeOf(spec, 0, 2).nraw, 2);
  EXPECT_EQ(ShapeOf(spec, 64, 64).nraw, 0);
  EXPECT_EQ(ShapeOf(spec, 64, 64).nb, 32);
  EXPECT_EQ(ShapeOf(spec, 64, 64).dtype, DType::kBf16);
}

TEST(StoredModel, ComesBackAsItWas) {
  for (const ModelSpec& spec : {Spec(), FullSpec()}) {
    const auto stored = ParseModel(SerializeModel("uid:1000", spec));
    ASSERT_TRUE(stored.ok()) << stored.status().ToString();
    EXPECT_EQ(stored->tenant, "uid:1000");
    EXPECT_EQ(stored->spec, spec);
  }
}

TEST(StoredModel, IsRefusedWhenCutLengthenedOrOfAnotherVersion) {
  const std::string good = SerializeModel("uid:1000", FullSpec());
  for (size_t bytes = 0; bytes < good.size(); ++bytes) {
    EXPECT_EQ(ParseModel(std::string_view(good).substr(0, bytes)).status().code(), Code::kDataLoss) << bytes;
  }
  EXPECT_EQ(ParseModel(good + "x").status().code(), Code::kDataLoss);
  std::string newer = good;
  newer[0] = 3;
  EXPECT_EQ(ParseModel(newer).status().code(), Code::kUnimplemented);
}

TEST(StoredModel, IsRefusedWhenANumberDoesNotFitItsField) {
  std::string fields = SerializeModel("t", Spec());
  fields[fields.size() - 9] = 1;  // floor, before two empty lists of scales, becomes 1 << 24
  EXPECT_EQ(ParseModel(fields).status().code(), Code::kDataLoss);
}

}  // namespace
}  // namespace kvtier
