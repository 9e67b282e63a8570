#include "tests/eval/logits_score.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tiers/base/check.h"

namespace kvtier::eval {
namespace {

size_t Top(std::span<const float> logits) {
  return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

/// log of the sum of exponentials, in double precision.
double LogSum(std::span<const float> logits) {
  const double largest = logits[Top(logits)];
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum);
}

struct MeanAndError {
  double mean = 0, error = std::numeric_limits<double>::quiet_NaN();
};
MeanAndError Of(const std::vector<double>& values) {
  MeanAndError of;
  for (const double value : values) of.mean += value;
  const auto count = static_cast<double>(values.size());
  of.mean /= count;
  if (values.size() < 2) return of;
  double squares = 0;
  for (const double value : values) squares += (value - of.mean) * (value - of.mean);
  of.error = std::sqrt(squares / (count - 1) / count);
  return of;
}

}  // namespace

RightLogits::RightLogits(std::span<const float> logits, std::vector<int32_t> next)
    : logits_(logits.begin(), logits.end()),
      next_(std::move(next)),
      vocabulary_(next_.empty() ? 0 : logits_.size() / next_.size()) {
  KVTIER_CHECK(!next_.empty() && vocabulary_ * next_.size() == logits_.size());
}

std::vector<TokenScore> RightLogits::Score(std::span<const float> logits) const {
  KVTIER_CHECK(logits.size() == logits_.size());
  std::vector<TokenScore> scores;
  for (size_t token = 0; token < next_.size(); ++token) {
    const std::span<const float> right(&logits_[token * vocabulary_], vocabulary_);
    const std::span<const float> tried = logits.subspan(token * vocabulary_, vocabulary_);
    const double right_sum = LogSum(right), tried_sum = LogSum(tried);
    const auto next = static_cast<size_t>(next_[token]);
    TokenScore score;
    for (size_t i = 0; i < vocabulary_; ++i) {
      const double log_p = right[i] - right_sum, log_q = tried[i] - tried_sum;
      score.kl += std::exp(log_p) * (log_p - log_q);
    }
    score.nll_change = (right[next] - right_sum) - (tried[next] - tried_sum);
    score.same_top = Top(right) == Top(tried);
    score.hit = Top(tried) == next;
    scores.push_back(score);
  }
  return scores;
}

Summary Summarize(std::span<const std::vector<TokenScore>> windows) {
  std::vector<double> kl_means, nll_means, kl_all;
  double same = 0;
  for (const std::vector<TokenScore>& window : windows) {
    KVTIER_CHECK(!window.empty());
    double kl = 0, nll = 0;
    for (const TokenScore& token : window) {
      kl += token.kl;
      nll += token.nll_change;
      same += token.same_top ? 1 : 0;
      kl_all.push_back(token.kl);
    }
    kl_means.push_back(kl / static_cast<double>(window.size()));
    nll_means.push_back(nll / static_cast<double>(window.size()));
  }
  if (kl_all.empty()) return {};
  const auto p99 = kl_all.begin() + static_cast<ptrdiff_t>((kl_all.size() - 1) * 99 / 100);
  std::nth_element(kl_all.begin(), p99, kl_all.end());
  const MeanAndError kl = Of(kl_means), nll = Of(nll_means);
  return {.kl = kl.mean,
          .kl_p99 = *p99,
          .top1 = same / static_cast<double>(kl_all.size()),
          .nll_change = nll.mean,
          .kl_error = kl.error,
          .nll_error = nll.error,
          .windows = windows.size(),
          .tokens = kl_all.size()};
}

}  // namespace kvtier::eval
