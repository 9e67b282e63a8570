#include "client/src/rpc.h"

#include <grpc/support/time.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <string_view>
#include <utility>

#include "client/src/async_calls.h"
#include "proto/kvtier.grpc.pb.h"

namespace kvtier::client {
namespace {

using Stub = v1::Kvtier::Stub;

/// A reply of 4,096 blocks stays far below.
constexpr int kMaxMessageBytes = 8 << 20;
/// Releases that wait for a daemon that does not answer.
constexpr uint32_t kMaxReleasesUnderWay = 1024;
constexpr int kReconnectBackoffMs = 20;
constexpr int kMaxReconnectBackoffMs = 500;

/// On the monotonic clock, so that a jump of the wall clock neither ends nor prolongs a call.
gpr_timespec GrpcDeadline(TimePoint deadline) {
  using std::chrono::duration_cast;
  const auto since = deadline.time_since_epoch();
  const auto seconds = duration_cast<std::chrono::seconds>(since);
  gpr_timespec at;
  at.tv_sec = seconds.count();
  at.tv_nsec = static_cast<int32_t>((since - seconds).count());
  at.clock_type = GPR_CLOCK_MONOTONIC;
  return at;
}

Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return Status::Ok();
  const std::string text = status.error_message();
  if (status.error_code() == grpc::StatusCode::ABORTED) {
    // Codes that gRPC does not have travel in front of the text (proto/kvtier.proto).
    for (const Code code : {Code::kStale, Code::kPending}) {
      const std::string prefix = std::string(CodeName(code)) + ": ";
      if (text.starts_with(prefix)) return Status(code, text.substr(prefix.size()));
    }
  }
  if (status.error_code() == grpc::StatusCode::UNKNOWN) return Status(Code::kInternal, text);
  return Status(static_cast<Code>(status.error_code()), text);
}

grpc::ChannelArguments LocalChannelArguments() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  // Without it a new connection would share the back-off of the one it replaces.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectBackoffMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kReconnectBackoffMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxReconnectBackoffMs);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  return arguments;
}

template <typename Request, typename Reply>
class AsyncUnary final : public AsyncCall {
 public:
  using Prepare = std::unique_ptr<grpc::ClientAsyncResponseReader<Reply>> (Stub::*)(grpc::ClientContext*,
                                                                                    const Request&,
                                                                                    grpc::CompletionQueue*);
  using Done = std::function<void(const Status&, const Reply&)>;

  AsyncUnary(Stub& stub, Prepare prepare, Request request, TimePoint deadline, Done done)
      : stub_(stub), prepare_(prepare), request_(std::move(request)), done_(std::move(done)) {
    context.set_deadline(GrpcDeadline(deadline));
  }
  void Start(grpc::CompletionQueue& queue) override {
    reader_ = (stub_.*prepare_)(&context, request_, &queue);
    reader_->StartCall();
    reader_->Finish(&reply_, &status_, this);
  }
  void Finish() override { done_(FromGrpc(status_), reply_); }

 private:
  Stub& stub_;
  const Prepare prepare_;
  const Request request_;
  const Done done_;
  Reply reply_;
  grpc::Status status_;
  std::unique_ptr<grpc::ClientAsyncResponseReader<Reply>> reader_;
};

/// A session comes before its first call, so the daemon is there: a socket that is not yet listening, or
/// whose backlog is full, is worth waiting for. Later calls fail at once when the daemon has gone.
enum class Patience : uint8_t { kNone, kUntilConnected };

}  // namespace

struct Rpc::Channel {
  std::unique_ptr<Stub> stub;
  std::atomic<uint32_t> releases_under_way = 0;
  AsyncCalls async;  ///< goes first: its calls use the others

  template <typename Request, typename Reply>
  Status Unary(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
               const Request& request, Reply& reply, TimePoint deadline,
               Patience patience = Patience::kNone) {
    grpc::ClientContext context;
    context.set_wait_for_ready(patience == Patience::kUntilConnected);
    context.set_deadline(GrpcDeadline(deadline));
    return FromGrpc((stub.get()->*method)(&context, request, &reply));
  }

  template <typename Request, typename Reply>
  void Async(typename AsyncUnary<Request, Reply>::Prepare prepare, Request request, TimePoint deadline,
             typename AsyncUnary<Request, Reply>::Done done) {
    const Status started = async.Start(
        std::make_unique<AsyncUnary<Request, Reply>>(*stub, prepare, std::move(request), deadline, done));
    if (!started.ok()) done(started, Reply());
  }
};

Rpc::Rpc(const std::string& socket) : channel_(std::make_unique<Channel>()) {
  channel_->stub = v1::Kvtier::NewStub(grpc::CreateCustomChannel(
      "unix:" + socket, grpc::InsecureChannelCredentials(), LocalChannelArguments()));
}

Rpc::~Rpc() = default;

Status Rpc::Call(const v1::RegisterModelRequest& request, v1::RegisterModelReply& reply, TimePoint deadline) {
  return channel_->Unary(&Stub::RegisterModel, request, reply, deadline, Patience::kUntilConnected);
}
Status Rpc::Call(const v1::LookupRequest& request, v1::LookupReply& reply, TimePoint deadline) {
  return channel_->Unary(&Stub::Lookup, request, reply, deadline);
}
Status Rpc::Call(const v1::AcquireRequest& request, v1::AcquireReply& reply, TimePoint deadline) {
  return channel_->Unary(&Stub::Acquire, request, reply, deadline);
}
Status Rpc::Call(const v1::ReleaseRequest& request, v1::ReleaseReply& reply, TimePoint deadline) {
  return channel_->Unary(&Stub::Release, request, reply, deadline);
}
Status Rpc::Call(const v1::RenewRequest& request, v1::RenewReply& reply, TimePoint deadline) {
  return channel_->Unary(&Stub::Renew, request, reply, deadline);
}
Status Rpc::Call(const v1::PrefetchRequest& request, v1::PrefetchReply& reply, TimePoint deadline) {
  return channel_->Unary(&Stub::Prefetch, request, reply, deadline);
}
Status Rpc::Call(const v1::CancelRequest& request, v1::CancelReply& reply, TimePoint deadline) {
  return channel_->Unary(&Stub::Cancel, request, reply, deadline);
}
Status Rpc::Call(const v1::RemoveRequest& request, v1::RemoveReply& reply, TimePoint deadline) {
  return channel_->Unary(&Stub::Remove, request, reply, deadline);
}
Status Rpc::Call(const v1::StatsRequest& request, v1::StatsReply& reply, TimePoint deadline) {
  return channel_->Unary(&Stub::Stats, request, reply, deadline);
}
Status Rpc::Call(const v1::ListModelsRequest& request, v1::ListModelsReply& reply, TimePoint deadline) {
  return channel_->Unary(&Stub::ListModels, request, reply, deadline);
}
Status Rpc::Call(const v1::ListBlocksRequest& request, v1::ListBlocksReply& reply, TimePoint deadline) {
  return channel_->Unary(&Stub::ListBlocks, request, reply, deadline);
}
Status Rpc::Demote(const v1::TierCountRequest& request, v1::CountReply& reply, TimePoint deadline) {
  return channel_->Unary(&Stub::Demote, request, reply, deadline);
}
Status Rpc::Evict(const v1::TierCountRequest& request, v1::CountReply& reply, TimePoint deadline) {
  return channel_->Unary(&Stub::Evict, request, reply, deadline);
}
Status Rpc::Call(const v1::VerifyRequest& request, v1::VerifyReply& reply, TimePoint deadline) {
  return channel_->Unary(&Stub::Verify, request, reply, deadline);
}
Status Rpc::Call(const v1::DrainRequest& request, v1::CountReply& reply, TimePoint deadline) {
  return channel_->Unary(&Stub::Drain, request, reply, deadline);
}

Status Rpc::Watch(const v1::WatchRequest& request, Duration patience,
                  const std::function<bool(const v1::Event&)>& on_event) {
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto reader = channel_->stub->PrepareAsyncWatch(&context, request, &queue);
  v1::Event event;
  grpc::Status ended;
  Status why;
  void* tag = nullptr;  // one operation at a time: it says nothing
  bool ok = false;
  const auto done = [&] {
    const gpr_timespec deadline = GrpcDeadline(SteadyClock().Now() + patience);
    if (queue.AsyncNext(&tag, &ok, deadline) == grpc::CompletionQueue::GOT_EVENT) return ok;
    why = Status(Code::kDeadlineExceeded, "the daemon tells nothing");
    context.TryCancel();
    queue.Next(&tag, &ok);
    return false;
  };
  bool enough = false;
  reader->StartCall(nullptr);
  for (bool more = done(); more && !enough;) {
    reader->Read(&event, nullptr);
    more = done();
    enough = more && !on_event(event);
  }
  if (enough) context.TryCancel();
  reader->Finish(&ended, nullptr);
  queue.Next(&tag, &ok);
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  if (enough) return Status::Ok();
  return why.ok() ? FromGrpc(ended) : why;
}

void Rpc::PutAsync(v1::PutRequest request, TimePoint deadline, PutDone done) {
  channel_->Async<v1::PutRequest, v1::PutReply>(&Stub::PrepareAsyncPut, std::move(request), deadline,
                                                std::move(done));
}

void Rpc::WaitTicketAsync(v1::WaitTicketRequest request, TimePoint deadline, PutDone done) {
  channel_->Async<v1::WaitTicketRequest, v1::PutReply>(&Stub::PrepareAsyncWaitTicket, std::move(request),
                                                       deadline, std::move(done));
}

void Rpc::ReleaseAsync(v1::ReleaseRequest request, TimePoint deadline) {
  std::atomic<uint32_t>& under_way = channel_->releases_under_way;
  const auto ended = [&under_way](const Status&, const v1::ReleaseReply&) { --under_way; };
  if (++under_way > kMaxReleasesUnderWay) {
    --under_way;
    return;
  }
  channel_->Async<v1::ReleaseRequest, v1::ReleaseReply>(&Stub::PrepareAsyncRelease, std::move(request),
                                                        deadline, ended);
}

}  // namespace kvtier::client
