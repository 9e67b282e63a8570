#include "tests/bench/attention_work.h"

#include <cmath>
#include <cstring>
#include <random>

#include "kernels/numerics.h"
#include "kernels/simd/attend_simd.h"

namespace kvtier::bench {
namespace {

constexpr uint32_t kSeed = 1;

}  // namespace

Result<AttentionContext> AttentionContext::Make(const Codec& codec, uint32_t tokens) {
  AttentionContext context;
  context.codec_ = &codec;
  context.shape_ = LayerShapeOf(codec, kAttentionShape, SourcesOf(codec).front());
  context.planes_ = EncodedPlanes(codec, context.shape_);
  for (int region = 0; region < kRegions; ++region)
    context.block_bytes_ += PartBytes(codec.id, context.shape_, context.planes_, static_cast<Region>(region));
  context.blocks_ = tokens / kAttentionShape.tokens;
  KVTIER_ASSIGN(context.bytes_, context.memory_.Reserve(context.blocks_ * context.block_bytes_));
  context.Fill();
  return context;
}

void AttentionContext::Attend(const AttentionQuery& query, const AttentionPartial& part,
                              const AttentionPartial& all) const {
  for (uint32_t h = 0; h < query.query_heads; ++h) {
    all.m[h] = -INFINITY;
    all.l[h] = 0;
  }
  for (uint32_t block = 0; block < blocks_; ++block) {
    ConstLayerParts parts;
    const LayerParts at = PartsOf(block);
    for (int region = 0; region < kRegions; ++region) parts.part[region] = at.part[region];
    codec_->attend(shape_, planes_, parts, query, part);
    MergeAttentionSimd(part, query.query_heads, kAttentionShape.dim, all);
  }
}

LayerParts AttentionContext::PartsOf(uint32_t block) const {
  LayerParts parts;
  std::byte* at = bytes_.data() + block * block_bytes_;
  for (int region = 0; region < kRegions; ++region) {
    const uint64_t bytes = PartBytes(codec_->id, shape_, planes_, static_cast<Region>(region));
    parts.part[region] = {at, bytes};
    at += bytes;
  }
  return parts;
}

void AttentionContext::Fill() {
  std::vector<std::byte> raw(RawLayerBytes(shape_));
  std::mt19937 random(kSeed);
  std::normal_distribution<float> normal;
  for (size_t i = 0; i + 2 <= raw.size(); i += 2) {
    const uint16_t half = Fp16FromFp32(normal(random));
    // FP8: codes of moderate size, none of them NaN.
    Store16(raw.data() + i, DTypeBytes(shape_.dtype) == 1 ? half & 0xb7b7 : half);
  }
  codec_->encode(shape_, {.raw = raw}, PartsOf(0));
  for (uint32_t block = 1; block < blocks_; ++block)
    std::memcpy(bytes_.data() + block * block_bytes_, bytes_.data(), block_bytes_);
}

DecodeStep::DecodeStep(uint32_t group) : heads_(group * kAttentionShape.heads) {
  std::mt19937 random(kSeed);
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < size_t{heads_} * kAttentionShape.dim; ++i) q_.push_back(normal(random));
  for (std::vector<float>* o : {&part_o_, &all_o_}) o->resize(q_.size());
  for (std::vector<float>* x : {&part_m_, &part_l_, &all_m_, &all_l_}) x->resize(heads_);
}

void DecodeStep::Attend(const AttentionContext& context) {
  const float scale = 1 / std::sqrt(static_cast<float>(kAttentionShape.dim));
  context.Attend({.q = q_.data(), .query_heads = heads_, .scale = scale},
                 {.o = part_o_.data(), .m = part_m_.data(), .l = part_l_.data()},
                 {.o = all_o_.data(), .m = all_m_.data(), .l = all_l_.data()});
}

}  // namespace kvtier::bench
