#pragma once

#include <string>
#include <vector>

#include "tiers/base/status.h"

namespace kvtier::eval {

struct Text {
  std::string name;
  std::string contents;
};

/// Of NAME=FILE[,FILE...], the files one after the other. Errors: kInvalidArgument; kNotFound naming the
/// file.
Result<Text> LoadText(const std::string& option);

/// Where `count` windows of `window` tokens begin, evenly through `tokens` of them. Errors: kInvalidArgument
/// when they do not fit without overlap.
Result<std::vector<size_t>> WindowStarts(size_t tokens, size_t window, size_t count);

}  // namespace kvtier::eval
