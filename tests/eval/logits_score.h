#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvtier::eval {

/// How the prediction at one token differs from the right one; in nats.
struct TokenScore {
  double kl = 0;          ///< of the tried distribution from the right one
  double nll_change = 0;  ///< of the token that follows in the text
  bool same_top = true;   ///< the same most probable token
  bool hit = true;        ///< the most probable token is the one that follows
};

/// The right logits of a run of tokens. Threads: any, once made.
class RightLogits {
 public:
  /// logits [tokens][vocabulary], finite; next: the token that follows each, below vocabulary.
  RightLogits(std::span<const float> logits, std::vector<int32_t> next);
  /// `logits` of the same tokens. Equal ones give exactly 0.
  std::vector<TokenScore> Score(std::span<const float> logits) const;
  size_t tokens() const { return next_.size(); }

 private:
  std::vector<float> logits_;
  std::vector<int32_t> next_;
  size_t vocabulary_;
};

/// Of one method on one text.
struct Summary {
  double kl = 0, kl_p99 = 0;
  double top1 = 0;  ///< part of the tokens whose most probable next token is the same
  double nll_change = 0;
  double kl_error = 0, nll_error = 0;  ///< standard errors over the windows; NaN of one window
  size_t windows = 0, tokens = 0;
};

/// Means of window means, each of equally many tokens; the 99th percentile is of all tokens.
Summary Summarize(std::span<const std::vector<TokenScore>> windows);

}  // namespace kvtier::eval
