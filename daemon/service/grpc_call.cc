#include "daemon/service/grpc_call.h"

#include <algorithm>

namespace kvtier {

TimePoint DeadlineOf(const grpc::CallbackServerContext& context, uint32_t deadline_ms,
                     Duration default_deadline, TimePoint now) {
  // gRPC's deadline is wall time; only the distance from now crosses to the monotonic clock. A day bounds
  // both, so that the sums cannot overflow.
  constexpr Duration kLongest = std::chrono::hours(24);
  const auto wall = context.deadline();
  const bool has_grpc_deadline = wall != std::chrono::system_clock::time_point::max();
  Duration left = has_grpc_deadline || deadline_ms > 0 ? kLongest : default_deadline;
  if (has_grpc_deadline) {
    const auto wall_now = std::chrono::system_clock::now();
    if (wall < wall_now + kLongest) left = std::chrono::duration_cast<Duration>(wall - wall_now);
  }
  if (deadline_ms > 0) left = std::min<Duration>(left, std::chrono::milliseconds(deadline_ms));
  return now + std::max(left, Duration::zero());
}

grpc::Status ToGrpc(const Status& status) {
  if (static_cast<int>(status.code()) >= 100) return {grpc::StatusCode::ABORTED, status.ToString()};
  return {static_cast<grpc::StatusCode>(status.code()), status.message()};
}

}  // namespace kvtier
