#include "deploy/quickstart/ladder.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <set>

namespace kvtier::quickstart {
namespace {

// The stored error is an fp16: half an ulp of rounding, and as much again for another order of summation.
constexpr double kReportTolerance = 1.0 / 1024;

bool SameError(double measured, double reported) {
  return std::abs(measured - reported) <= kReportTolerance * std::max(measured, 1e-4);
}

/// Relative error of one layer's K or V over the tokens of one block.
double LayerError(const RealKv& real, uint32_t layer, uint32_t k_or_v, uint32_t block,
                  const std::vector<uint16_t>& kv) {
  ErrorSums sums;
  for (uint32_t head = 0; head < real.kv_heads; ++head) {
    const uint64_t at = real.Row(layer, k_or_v, head, block * kTokensPerBlock);
    AddFp16(&real.kv[at], &kv[at], uint64_t{kTokensPerBlock} * RealKv::kDim, &sums);
  }
  return sums.relative();
}

double AttentionError(const RealKv& real, const std::vector<double>& exact, const std::vector<uint16_t>& kv) {
  const std::vector<double> got = AttentionOutput(real, kv);
  ErrorSums sums;
  for (size_t i = 0; i < exact.size(); ++i) {
    sums.square += exact[i] * exact[i];
    sums.difference += (exact[i] - got[i]) * (exact[i] - got[i]);
  }
  return sums.relative();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

}  // namespace

Status Ladder::Fetch(const Conversation& conversation) {
  const RealKv& real = conversation.real();
  std::vector<uint16_t> kv(real.kv.size());
  std::set<RungId> seen;
  for (uint32_t block = 0; block < kBlocks; ++block) {
    KVTIER_ASSIGN(const RungId id, FetchBlock(conversation, block, &kv));
    seen.insert(id);
  }
  // Attention reads the whole sequence, so it is the error of one rung only when all blocks came from there.
  Rung& rung = rungs_[*seen.begin()];
  if (seen.size() == 1 && !rung.attention_error) {
    std::vector<double>& exact = exact_attention_[real.name];
    if (exact.empty()) exact = AttentionOutput(real, real.kv);
    rung.attention_error = AttentionError(real, exact, kv);
    errors_[real.name + ",attention,,," + kvtier_precision_name(seen.begin()->precision)] =
        *rung.attention_error;
  }
  return Status::Ok();
}

Result<Ladder::RungId> Ladder::FetchBlock(const Conversation& conversation, uint32_t block,
                                          std::vector<uint16_t>* kv) {
  const RealKv& real = conversation.real();
  KVTIER_ASSIGN(const FetchedBlock fetched, conversation.Fetch(block, kv));
  const RungId id{real.name, fetched.info.served_from, fetched.info.precision};
  Rung& rung = rungs_[id];
  KVTIER_TRY(CheckLayers(real, block, fetched, *kv, &rung));
  ++rung.blocks;
  ++blocks_;
  rung.image_bits += 8.0 * static_cast<double>(fetched.info.image_bytes);
  rung.values += 2.0 * RealKv::kLayers * real.kv_heads * kTokensPerBlock * RealKv::kDim;
  rung.fetch_us.push_back(fetched.fetch_us);
  return id;
}

Status Ladder::CheckLayers(const RealKv& real, uint32_t block, const FetchedBlock& fetched,
                           const std::vector<uint16_t>& kv, Rung* rung) {
  const kvtier_precision precision = fetched.info.precision;
  for (uint32_t layer = 0; layer < RealKv::kLayers; ++layer) {
    const double k = LayerError(real, layer, 0, block, kv);
    const double v = LayerError(real, layer, 1, block, kv);
    const std::string where =
        "," + std::to_string(layer) + "," + std::to_string(block) + "," + kvtier_precision_name(precision);
    if (precision == KVTIER_BITS16 && (k != 0 || v != 0))
      return Status(Code::kDataLoss, real.name + where + " is not bit-exact");
    if (!SameError(k, fetched.k_reported[layer]) || !SameError(v, fetched.v_reported[layer])) {
      return Status(Code::kDataLoss, real.name + where + ": measured K " + std::to_string(k) + " V " +
                                         std::to_string(v) + ", reported K " +
                                         std::to_string(fetched.k_reported[layer]) + " V " +
                                         std::to_string(fetched.v_reported[layer]));
    }
    errors_[real.name + ",k" + where] = k;
    errors_[real.name + ",v" + where] = v;
    rung->k_measured += k * k;
    rung->v_measured += v * v;
    rung->k_reported += fetched.k_reported[layer] * fetched.k_reported[layer];
    rung->v_reported += fetched.v_reported[layer] * fetched.v_reported[layer];
  }
  return Status::Ok();
}

uint64_t Ladder::BlocksFrom(uint32_t tier) const {
  uint64_t blocks = 0;
  for (const auto& [id, rung] : rungs_) blocks += id.tier == tier ? rung.blocks : 0;
  return blocks;
}

void Ladder::PrintTable(const std::vector<std::string>& tier_names) const {
  std::printf("%-20s %-5s %-9s %6s %6s %6s  %-15s  %-15s  %9s %8s\n", "", "", "", "", "bits/", "ratio",
              "relative error K", "relative error V", "attention", "fetch");
  std::printf("%-20s %-5s %-9s %6s %6s %6s  %7s %8s  %7s %8s  %9s %8s\n", "model", "tier", "precision",
              "blocks", "elem.", "to 16", "measured", "reported", "measured", "reported", "output",
              "us/block");
  for (const auto& [id, rung] : rungs_) {
    const double bits = rung.image_bits / rung.values;
    const double samples = double{RealKv::kLayers} * rung.blocks;
    const auto rms = [samples](double sum) { return std::sqrt(sum / samples); };
    char attention[16] = "-";
    if (rung.attention_error) std::snprintf(attention, sizeof attention, "%.4f", *rung.attention_error);
    std::printf("%-20s %-5s %-9s %6u %6.2f %5.2fx  %8.4f %8.4f  %8.4f %8.4f  %9s %8.0f\n", id.model.c_str(),
                tier_names[id.tier].c_str(), kvtier_precision_name(id.precision), rung.blocks, bits,
                16 / bits, rms(rung.k_measured), rms(rung.k_reported), rms(rung.v_measured),
                rms(rung.v_reported), attention, Median(rung.fetch_us));
  }
}

Status Ladder::WriteErrors(const std::string& path) const {
  std::ofstream file(path);
  file << "model,what,layer,block,precision,error\n";
  file.precision(9);
  for (const auto& [what, error] : errors_) file << what << "," << error << "\n";
  file.close();
  return file ? Status::Ok() : Status(Code::kUnavailable, "cannot write " + path);
}

}  // namespace kvtier::quickstart
