#pragma once

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

/// A caller's struct of this version or a later one, whose new fields are at the end; NULL means all
/// defaults.
template <typename T>
Result<T> OptionsOf(const T* options) {
  if (options == nullptr) return T{};
  if (options->struct_size < sizeof(T))
    return Status(Code::kInvalidArgument, "options: struct_size is not set");
  return *options;
}

}  // namespace kvtier::client
