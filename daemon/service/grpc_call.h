#pragma once

#include <grpcpp/grpcpp.h>

#include "daemon/engine/command.h"

namespace kvtier {

/// A call's deadline as the engine gets it: the earlier of the gRPC deadline and `deadline_ms`; the default
/// when the client set neither.
TimePoint DeadlineOf(const grpc::CallbackServerContext& context, uint32_t deadline_ms,
                     Duration default_deadline, TimePoint now);

/// Codes above gRPC's travel as ABORTED "STALE: ...".
grpc::Status ToGrpc(const Status& status);

/// An engine's reply that finishes the call: `fill(value, *reply)` copies a success into the message. The
/// reactor and the message live until Finish, whatever the client does meanwhile.
template <typename Value, typename Message, typename FillReply>
Reply<Value> FinishWith(grpc::ServerUnaryReactor* reactor, Message* reply, FillReply fill) {
  return [reactor, reply, fill](Result<Value> result) {
    if (result.ok()) fill(*result, *reply);
    reactor->Finish(result.ok() ? grpc::Status::OK : ToGrpc(result.status()));
  };
}

}  // namespace kvtier
