#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "tiers/base/check.h"

namespace kvtier {

/// Numbered like gRPC's codes, so that they cross the wire without a table; kvtier's own start at 100.
enum class Code : int {
  kOk = 0,
  kCancelled = 1,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,       ///< a miss
  kAlreadyExists = 6,  ///< PRESENT
  kPermissionDenied = 7,
  kResourceExhausted = 8,  ///< full: shed, not an error of the caller
  kFailedPrecondition = 9,
  kAborted = 10,  ///< try again
  kOutOfRange = 11,
  kUnimplemented = 12,  ///< UNSUPPORTED: version, codec, layout
  kInternal = 13,
  kUnavailable = 14,  ///< the daemon or a device is not there
  kDataLoss = 15,     ///< CORRUPT: a checksum or a size is wrong
  kUnauthenticated = 16,
  kStale = 100,    ///< a lease or slot was given away; the bytes read are invalid
  kPending = 101,  ///< being stored right now
};

std::string_view CodeName(Code code);

/// The outcome of an operation that can fail. Dropped only by name, with a reason.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {
    KVTIER_CHECK(code != Code::kOk);
  }
  static Status Ok() { return Status(); }

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  /// "NOT_FOUND: message", for people.
  std::string ToString() const;
  /// The same code, with `context` in front of the message.
  Status WithContext(std::string_view context) const;
  void IgnoreBecause(std::string_view /*reason*/) const {}

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

/// "what: strerror(error_number)"; ENOSPC and EDQUOT map to kResourceExhausted, EACCES and EPERM to
/// kPermissionDenied, ENOENT to kNotFound, the rest to kUnavailable.
Status StatusFromErrno(int error_number, std::string_view what);

/// A value or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {
    KVTIER_CHECK(!status_.ok());
  }  // NOLINT(google-explicit-constructor)
  Result(Code code, std::string message) : status_(code, std::move(message)) {}

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & {
    KVTIER_CHECK(ok());
    return *value_;
  }
  const T& value() const& {
    KVTIER_CHECK(ok());
    return *value_;
  }
  T&& value() && {
    KVTIER_CHECK(ok());
    return std::move(*value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace kvtier

#define KVTIER_CONCAT_INNER(a, b) a##b
#define KVTIER_CONCAT(a, b) KVTIER_CONCAT_INNER(a, b)

/// Returns from the enclosing function when `expression` (a Status) is not OK.
#define KVTIER_TRY(expression)                                                           \
  do {                                                                                   \
    if (::kvtier::Status try_status = (expression); !try_status.ok()) return try_status; \
  } while (false)

/// `KVTIER_ASSIGN(auto fd, OpenFile(path));` declares fd or returns the Status.
#define KVTIER_ASSIGN(declaration, expression) \
  KVTIER_ASSIGN_INNER(KVTIER_CONCAT(assign_result_, __LINE__), declaration, expression)
#define KVTIER_ASSIGN_INNER(result, declaration, expression) \
  auto result = (expression);                                \
  if (!result.ok()) return result.status();                  \
  declaration = std::move(result).value()
