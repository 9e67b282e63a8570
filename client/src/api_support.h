#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <new>

#include "client/src/errors.h"
#include "client/src/handles.h"
#include "kvtier/kvtier.h"

namespace kvtier::client {

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

/// Bytes of a struct in the first version of the library that had it. What came later is at its end, and
/// zero where the caller was built before.
template <typename T>
inline constexpr size_t kFirstVersionBytes = sizeof(T);
template <>
inline constexpr size_t kFirstVersionBytes<kvtier_model_spec> = offsetof(kvtier_model_spec, k_scales);

/// A caller's struct of any version; NULL means all defaults.
template <typename T>
Result<T> OptionsOf(const T* options) {
  T known{};
  if (options == nullptr) return known;
  if (options->struct_size < kFirstVersionBytes<T>)
    return Status(Code::kInvalidArgument, "options: struct_size is not set");
  std::memcpy(&known, options, std::min<size_t>(options->struct_size, sizeof(T)));
  return known;
}

}  // namespace kvtier::client
