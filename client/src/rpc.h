#pragma once

#include <functional>
#include <memory>
#include <string>

#include "proto/kvtier.pb.h"
#include "tiers/base/clock.h"
#include "tiers/base/status.h"

namespace kvtier::client {

/// The command plane: one gRPC channel over the daemon's UNIX socket.
/// Threads: any. Every call ends by its deadline. Errors: those of the daemon; kUnavailable when it is not
/// there.
class Rpc {
 public:
  explicit Rpc(const std::string& socket);
  ~Rpc();

  Status Call(const v1::RegisterModelRequest& request, v1::RegisterModelReply& reply, TimePoint deadline);
  Status Call(const v1::LookupRequest& request, v1::LookupReply& reply, TimePoint deadline);
  Status Call(const v1::AcquireRequest& request, v1::AcquireReply& reply, TimePoint deadline);
  Status Call(const v1::ReleaseRequest& request, v1::ReleaseReply& reply, TimePoint deadline);
  Status Call(const v1::RenewRequest& request, v1::RenewReply& reply, TimePoint deadline);
  Status Call(const v1::PrefetchRequest& request, v1::PrefetchReply& reply, TimePoint deadline);
  Status Call(const v1::CancelRequest& request, v1::CancelReply& reply, TimePoint deadline);
  Status Call(const v1::RemoveRequest& request, v1::RemoveReply& reply, TimePoint deadline);
  Status Call(const v1::StatsRequest& request, v1::StatsReply& reply, TimePoint deadline);

  // For the admin identity.
  Status Call(const v1::ListModelsRequest& request, v1::ListModelsReply& reply, TimePoint deadline);
  Status Call(const v1::ListBlocksRequest& request, v1::ListBlocksReply& reply, TimePoint deadline);
  Status Demote(const v1::TierCountRequest& request, v1::CountReply& reply, TimePoint deadline);
  Status Evict(const v1::TierCountRequest& request, v1::CountReply& reply, TimePoint deadline);
  Status Call(const v1::VerifyRequest& request, v1::VerifyReply& reply, TimePoint deadline);
  Status Call(const v1::DrainRequest& request, v1::CountReply& reply, TimePoint deadline);

  /// Hands on each event until `on_event` returns false (then OK) or the stream ends. Errors:
  /// kDeadlineExceeded when nothing comes for `patience`: longer than the time between two snapshots, it
  /// means that the daemon hangs.
  Status Watch(const v1::WatchRequest& request, Duration patience,
               const std::function<bool(const v1::Event&)>& on_event);

  /// `done` runs exactly once: on a thread of this object's, also with kCancelled while the object is being
  /// destroyed (which waits for it); on the caller's where the call could not be started. It must not block
  /// nor own this object.
  using PutDone = std::function<void(const Status& status, const v1::PutReply& reply)>;
  void PutAsync(v1::PutRequest request, TimePoint deadline, PutDone done);
  void WaitTicketAsync(v1::WaitTicketRequest request, TimePoint deadline, PutDone done);
  /// Sent and forgotten; dropped when too many are under way. The lease then ends by its TTL.
  void ReleaseAsync(v1::ReleaseRequest request, TimePoint deadline);

 private:
  struct Channel;
  std::unique_ptr<Channel> channel_;
};

}  // namespace kvtier::client
