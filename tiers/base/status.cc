#include "tiers/base/status.h"

#include <cerrno>
#include <cstring>

namespace kvtier {

std::string_view CodeName(Code code) {
  switch (code) {
    case Code::kOk:
      return "OK";
    case Code::kCancelled:
      return "CANCELLED";
    case Code::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case Code::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case Code::kNotFound:
      return "NOT_FOUND";
    case Code::kAlreadyExists:
      return "PRESENT";
    case Code::kPermissionDenied:
      return "PERMISSION_DENIED";
    case Code::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case Code::kFailedPrecondition:
      return "FAILED_PRECONDITION";
    case Code::kAborted:
      return "ABORTED";
    case Code::kOutOfRange:
      return "OUT_OF_RANGE";
    case Code::kUnimplemented:
      return "UNSUPPORTED";
    case Code::kInternal:
      return "INTERNAL";
    case Code::kUnavailable:
      return "UNAVAILABLE";
    case Code::kDataLoss:
      return "CORRUPT";
    case Code::kUnauthenticated:
      return "UNAUTHENTICATED";
    case Code::kStale:
      return "STALE";
    case Code::kPending:
      return "PENDING";
  }
  return "UNKNOWN";
}

std::string Status::ToString() const {
  if (ok()) return "OK";
  return std::string(CodeName(code_)) + ": " + message_;
}

Status Status::WithContext(std::string_view context) const {
  if (ok()) return *this;
  return Status(code_, std::string(context) + ": " + message_);
}

Status StatusFromErrno(int error_number, std::string_view what) {
  Code code = Code::kUnavailable;
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
      code = Code::kResourceExhausted;
      break;
    case EACCES:
    case EPERM:
    case EROFS:
      code = Code::kPermissionDenied;
      break;
    case ENOENT:
      code = Code::kNotFound;
      break;
    default:
      break;
  }
  return Status(code, std::string(what) + ": " + std::strerror(error_number));
}

}  // namespace kvtier
