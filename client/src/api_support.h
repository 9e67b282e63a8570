#pragma once

#include <cstddef>
#include <exception>
#include <new>
#include <span>
#include <string>

#include "client/src/errors.h"
#include "client/src/handles.h"
#include "client/src/structs.h"
#include "kvtier/kvtier.h"

namespace kvtier::client {

/// More than any daemon puts into one lease: a count above it cannot be the size of the caller's results.
inline constexpr size_t kMaxLeaseBlocks = size_t{1} << 16;

/// Runs the body of a C function: nothing is thrown into the host, whatever a library below does.
template <typename Body>
kvtier_code Guard(Body&& body) {
  try {
    return Answer(body());
  } catch (const std::bad_alloc&) {
    return Fail(Code::kResourceExhausted, "out of memory");
  } catch (const std::exception& error) {
    return Fail(Code::kInternal, error.what());
  }
}

/// A caller's options; NULL means all defaults.
template <typename T>
Result<T> OptionsOf(const T* options) {
  if (options == nullptr) return T{};
  return StructOf(options, "options");
}

/// OK when every block is; else the first that is not.
inline Status FirstFailure(size_t first, std::span<const kvtier_block_result> results, const char* what) {
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].code != KVTIER_OK)
      return Status(static_cast<Code>(results[i].code), "block " + std::to_string(first + i) + what);
  }
  return Status::Ok();
}

}  // namespace kvtier::client
