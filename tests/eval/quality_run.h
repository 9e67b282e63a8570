#pragma once

#include <map>

#include "tests/eval/commands.h"
#include "tests/eval/logits_score.h"
#include "tests/eval/texts.h"

namespace kvtier::eval {

struct QualityOptions {
  CommonOptions common;
  uint32_t windows = 4;  ///< of each text
  uint32_t context = 1024;
  uint32_t scored = 256;
  bool fp32 = false;  ///< weights in FP32: see MakeFp32Model
};

/// What became of one method on one text.
struct MethodScores {
  std::string method;
  double bits_per_element = 0;
  std::vector<std::vector<TokenScore>> windows;
};
struct TextScores {
  std::string text;
  size_t tokens = 0;  ///< of all of it
  std::vector<MethodScores> methods;
};

/// Context tokens computed in FP16, taken through each method, and the tokens behind them computed on what
/// comes back, and on the blocks as they are stored (kAttended); also with llama.cpp's own quantized caches,
/// where the context has been computed on them. Errors: the engine's, the codecs', the texts'.
Result<std::vector<TextScores>> RunQuality(const QualityOptions& options);

}  // namespace kvtier::eval
