#include <cmath>
#include <random>

#include "kernels/attention.h"
#include "tests/gpu/conformance.h"
#include "tests/gpu/machine_layers.h"
#include "tests/kernels/team_cases.h"

namespace kvtier {
namespace {

/// What one query attends to.
struct Sequence {
  std::vector<std::string> codecs;  ///< of its blocks
  std::vector<uint16_t> tokens;
};

/// Blocks of several precisions, encoded by the machine, and what they decode to without the last rounding of
/// a decoder (fp32 destinations).
class Attended {
 public:
  Attended(BatchMachine& machine, uint16_t heads, uint16_t k_dim, uint16_t v_dim, uint32_t per_kv_head)
      : machine_(machine),
        heads_(heads),
        k_dim_(k_dim),
        v_dim_(v_dim),
        query_heads_(heads * per_kv_head),
        random_(kSeed) {}

  void Add(const Sequence& sequence, Conformance& out) {
    first_split_.push_back(static_cast<uint32_t>(splits_.size()));
    for (size_t i = 0; i < sequence.codecs.size(); ++i) {
      AddBlock(sequence.codecs[i], sequence.tokens[i], i == 0 ? 1 : 0, out);
      const LayerCoding coding = layers_.back().coding;
      const auto item = static_cast<uint32_t>(layers_.size() - 1);
      // Blocks of one coding side by side, two at most.
      const bool joins =
          splits_.size() > first_split_.back() && splits_.back().coding == coding && splits_.back().items < 2;
      if (joins) {
        ++splits_.back().items;
      } else {
        splits_.push_back({.first_item = item,
                           .items = 1,
                           .query = static_cast<uint32_t>(first_split_.size() - 1),
                           .coding = coding});
      }
    }
    for (uint32_t i = 0; i < query_heads_ * k_dim_; ++i) queries_.push_back(normal_(random_));
  }

  void Check(const std::string& name, Conformance& out) {
    first_split_.push_back(static_cast<uint32_t>(splits_.size()));
    const auto splits = static_cast<uint32_t>(splits_.size()), items = static_cast<uint32_t>(layers_.size());
    const uint32_t queries = static_cast<uint32_t>(first_split_.size()) - 1;
    const auto floats = [&](size_t n) {
      return reinterpret_cast<float*>(machine_.Allocate(n * sizeof(float)));
    };
    const AttendBatchArgs attend = {.items = ArrayOf(machine_, layers_),
                                    .splits = ArrayOf(machine_, splits_),
                                    .split_count = splits,
                                    .kv_heads = heads_,
                                    .k_dim = k_dim_,
                                    .v_dim = v_dim_,
                                    .query_heads = query_heads_,
                                    .scale = scale(),
                                    .q = ArrayOf(machine_, queries_),
                                    .o = floats(size_t{splits} * query_heads_ * v_dim_),
                                    .m = floats(size_t{splits} * query_heads_),
                                    .l = floats(size_t{splits} * query_heads_),
                                    .lse = floats(size_t{items} * query_heads_)};
    const CombineBatchArgs combine = {.splits = attend.splits,
                                      .first_split = ArrayOf(machine_, first_split_),
                                      .queries = queries,
                                      .query_heads = query_heads_,
                                      .v_dim = v_dim_,
                                      .part_o = attend.o,
                                      .part_m = attend.m,
                                      .part_l = attend.l,
                                      .part_lse = attend.lse,
                                      .o = floats(size_t{queries} * query_heads_ * v_dim_),
                                      .m = floats(size_t{queries} * query_heads_),
                                      .l = floats(size_t{queries} * query_heads_),
                                      .mass = floats(size_t{items} * query_heads_)};
    const char* attended = machine_.Run(attend);
    const char* combined = machine_.Run(combine);
    out.Check(attended == nullptr && combined == nullptr, name + ": runs");
    for (uint32_t query = 0; query < queries; ++query)
      for (uint32_t head = 0; head < query_heads_; ++head) CheckHead(name, query, head, combine, out);
  }

 private:
  float scale() const { return 1 / std::sqrt(static_cast<float>(k_dim_)); }

  void AddBlock(const std::string& codec, uint16_t tokens, uint8_t nraw, Conformance& out) {
    const Rung rung = RungOf(codec);
    BlockShape shape = Shape(heads_, k_dim_, v_dim_, tokens, nraw, static_cast<uint8_t>(k_dim_ / 8 * 4));
    Bytes raw(RawLayerBytes(shape));
    for (size_t at = 0; at < raw.size(); at += 2) Store16(&raw[at], Fp16FromFp32(normal_(random_)));
    const EncodeItem item = {.source = ViewOf(machine_, PagedLayout("pages", shape, 2, 16, 3), DType::kFp16),
                             .target = NewLayer(machine_, rung, shape)};
    FillView(shape, item.source, raw);
    const char* encoded =
        machine_.Run(EncodeBatchArgs{.items = ArrayOf<EncodeItem>(machine_, {item}),
                                     .count = 1,
                                     .heads_max = heads_,
                                     .heads = ArrayOf(machine_, std::vector<EncodedHead>(heads_))});
    const DecodeItem back = {.source = ReadOnly(item.target),
                             .target = ViewOf(machine_, PagedLayout("pages", shape, 4, 16, 0), DType::kFp32)};
    const char* decoded = machine_.Run(
        DecodeBatchArgs{.items = ArrayOf<DecodeItem>(machine_, {back}), .count = 1, .heads_max = heads_});
    out.Check(encoded == nullptr && decoded == nullptr, "a block to attend to: " + codec);
    layers_.push_back(ReadOnly(item.target));
    shape = item.target.shape;
    const Bytes bytes = ReadView(shape, back.target);
    std::vector<float>& values = values_.emplace_back(bytes.size() / sizeof(float));
    memcpy(values.data(), bytes.data(), bytes.size());
  }

  /// One query head in fp64.
  void CheckHead(const std::string& name, uint32_t query, uint32_t head, const CombineBatchArgs& got,
                 Conformance& out) const {
    const uint32_t kv_head = head / (query_heads_ / heads_);
    const uint64_t at = uint64_t{query} * query_heads_ + head;
    const AttendSplit &first = splits_[first_split_[query]], &last = splits_[first_split_[query + 1] - 1];
    const uint32_t end = last.first_item + last.items;
    std::vector<double> sums(v_dim_), layer_sums(end - first.first_item);
    double all = 0;
    for (uint32_t item = first.first_item; item < end; ++item) {
      const uint32_t tokens = layers_[item].shape.tokens;
      const float* k = values_[item].data() + size_t{kv_head} * tokens * k_dim_;
      const float* v =
          values_[item].data() + size_t{heads_} * tokens * k_dim_ + size_t{kv_head} * tokens * v_dim_;
      for (uint32_t token = 0; token < tokens; ++token) {
        double score = 0;
        for (uint32_t c = 0; c < k_dim_; ++c)
          score += double{queries_[at * k_dim_ + c]} * k[size_t{token} * k_dim_ + c];
        const double weight = std::exp(score * scale());
        for (uint32_t c = 0; c < v_dim_; ++c) sums[c] += weight * v[size_t{token} * v_dim_ + c];
        layer_sums[item - first.first_item] += weight;
        all += weight;
      }
    }
    double off = 0, size = 0;
    for (uint32_t c = 0; c < v_dim_; ++c) {
      const double expected = sums[c] / all, value = double{got.o[at * v_dim_ + c]} / got.l[at];
      off += std::pow(value - expected, 2);
      size += std::pow(expected, 2);
    }
    constexpr double kBound = 1e-5;
    out.Check(std::sqrt(off / size) <= kBound, name + ": result of head " + std::to_string(head));
    out.Check(std::abs(LogSumExp(got.m[at], got.l[at]) - std::log(all)) <= kBound,
              name + ": log-sum-exp of head " + std::to_string(head));
    double whole = 0;
    bool near = true;
    for (uint32_t item = first.first_item; item < end; ++item) {
      const double mass = got.mass[uint64_t{item} * query_heads_ + head];
      near = near && std::abs(mass - layer_sums[item - first.first_item] / all) <= kBound;
      whole += mass;
    }
    out.Check(near && std::abs(whole - 1) <= kBound, name + ": mass of head " + std::to_string(head));
  }

  BatchMachine& machine_;
  uint16_t heads_, k_dim_, v_dim_;
  uint32_t query_heads_;
  std::mt19937 random_;
  std::normal_distribution<float> normal_;
  std::vector<CodedLayer<const uint8_t>> layers_;
  std::vector<std::vector<float>> values_;  ///< K, then V
  std::vector<AttendSplit> splits_;
  std::vector<uint32_t> first_split_;
  std::vector<float> queries_;
};

}  // namespace

void CheckShortSequence(BatchMachine& machine, Conformance& out) {
  Attended attended(machine, 1, 64, 64, 2);
  attended.Add({{"kv2p", "kv4p", "kv8", "raw16"}, {8, 4, 5, 3}}, out);
  attended.Check("attention to a short sequence", out);
}

void CheckAttention(BatchMachine& machine, Conformance& out) {
  const Sequence mixed = {{"kv2p", "kv2p", "kv2p", "kv42", "kv8", "kv4p", "kv4p", "raw16", "raw16"},
                          {64, 64, 64, 128, 64, 37, 128, 64, 5}};
  const Sequence int4 = {{"kv4p"}, {128}}, raw_first = {{"kv8", "raw16", "kv4p"}, {33, 64, 4}};
  const struct {
    const char* name;
    uint16_t heads, k_dim, v_dim;
    uint32_t per_kv_head;
  } kinds[] = {{"attention, one query per KV head", 2, 64, 64, 1},
               {"attention, groups of 5 of 128 channels", 2, 128, 128, 5},
               {"attention, heads that end in a part of a tile", 1, 80, 48, 4}};
  for (const auto& kind : kinds) {
    Attended attended(machine, kind.heads, kind.k_dim, kind.v_dim, kind.per_kv_head);
    for (const Sequence& sequence : {mixed, int4, raw_first}) attended.Add(sequence, out);
    attended.Check(kind.name, out);
  }
}

}  // namespace kvtier
