#pragma once

#include <exception>
#include <new>

#include "client/src/errors.h"
#include "client/src/handles.h"
#include "client/src/structs.h"
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

/// A caller's options; NULL means all defaults.
template <typename T>
Result<T> OptionsOf(const T* options) {
  if (options == nullptr) return T{};
  return StructOf(options, "options");
}

}  // namespace kvtier::client
