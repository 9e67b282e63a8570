#pragma once

#include <string_view>

#include "kvtier/kvtier.h"
#include "tiers/base/status.h"

namespace kvtier::client {

/// Codes of the C ABI and of Status have the same numbers.
constexpr kvtier_code ToC(Code code) {
  return static_cast<kvtier_code>(code);
}

/// Keeps the text for kvtier_last_error of this thread and returns the code.
kvtier_code Fail(const Status& status);
kvtier_code Fail(Code code, std::string_view message);

/// Status from here on is what a C function answers.
inline kvtier_code Answer(const Status& status) {
  return status.ok() ? KVTIER_OK : Fail(status);
}

const char* LastError();

}  // namespace kvtier::client
