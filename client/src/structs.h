#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "tiers/base/status.h"

namespace kvtier::client {

/// Larger than any struct of the C ABI will be: a struct_size above it was never set.
inline constexpr size_t kMaxStructBytes = 4096;

/// Bytes of a struct in the first version of the ABI. Later fields are added at its end and are zero where
/// the caller was built before; a struct that has grown says here where it ended.
template <typename T>
inline constexpr size_t kFirstVersionBytes = sizeof(T);

/// The number in an enum of a caller's struct, which may be anything: a C caller can put it there, but C++
/// has no enumerator to load it into.
template <typename Enum>
uint32_t NumberOf(const Enum& field) {
  static_assert(std::is_enum_v<Enum> && sizeof(Enum) == sizeof(uint32_t));
  uint32_t number;
  std::memcpy(&number, &field, sizeof(number));
  return number;
}

/// A caller's struct of any version. Errors: kInvalidArgument when struct_size is none; kUnimplemented
/// when the caller is of a later version and has set what this one does not know, which must not be ignored.
template <typename T>
Result<T> StructOf(const T* given, const char* name) {
  const size_t bytes = given->struct_size;
  if (bytes < kFirstVersionBytes<T> || bytes > kMaxStructBytes)
    return Status(Code::kInvalidArgument,
                  std::string(name) + ": struct_size is not that of any version: " + std::to_string(bytes));
  const auto* all = reinterpret_cast<const std::byte*>(given);
  for (size_t i = sizeof(T); i < bytes; ++i) {
    if (all[i] != std::byte{0})
      return Status(Code::kUnimplemented,
                    std::string(name) + ": a field that this version does not know is set");
  }
  T known{};
  std::memcpy(&known, given, std::min(bytes, sizeof(T)));
  return known;
}

}  // namespace kvtier::client
