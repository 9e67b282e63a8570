#include "tests/bench/echo.h"

#include <grpcpp/grpcpp.h>

#include <chrono>

#include "tests/bench/echo.grpc.pb.h"

namespace kvtier::bench {
namespace {

constexpr auto kStartPatience = std::chrono::seconds(10);
constexpr auto kCallPatience = std::chrono::seconds(5);

/// The callback API, as kvtierd serves.
class EchoService final : public Echo::CallbackService {
 public:
  grpc::ServerUnaryReactor* Call(grpc::CallbackServerContext* context, const EchoRequest* request,
                                 EchoReply* reply) override {
    reply->mutable_payload()->assign(request->reply_bytes(), 'x');
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

}  // namespace

int ServeEcho(const std::string& socket) {
  EchoService service;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + socket, grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  server->Wait();
  return 0;
}

struct EchoClient::Impl {
  std::unique_ptr<Echo::Stub> stub;
  EchoRequest request;
};

EchoClient::EchoClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EchoClient::~EchoClient() = default;

Result<std::unique_ptr<EchoClient>> EchoClient::Make(const std::string& socket, size_t request_bytes,
                                                     size_t reply_bytes) {
  const auto channel = grpc::CreateChannel("unix:" + socket, grpc::InsecureChannelCredentials());
  if (!channel->WaitForConnected(std::chrono::system_clock::now() + kStartPatience)) {
    return Status(Code::kUnavailable, "the echo server does not answer");
  }
  auto impl = std::make_unique<Impl>();
  impl->stub = Echo::NewStub(channel);
  impl->request.set_reply_bytes(static_cast<uint32_t>(reply_bytes));
  while (impl->request.ByteSizeLong() < request_bytes) {
    const size_t missing = request_bytes - impl->request.ByteSizeLong();
    impl->request.mutable_payload()->append(std::max<size_t>(missing / 2, 1), 'x');
  }
  return std::unique_ptr<EchoClient>(new EchoClient(std::move(impl)));
}

Status EchoClient::Call() {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCallPatience);
  EchoReply reply;
  const grpc::Status status = impl_->stub->Call(&context, impl_->request, &reply);
  if (!status.ok()) return Status(Code::kUnavailable, "echo: " + status.error_message());
  return Status::Ok();
}

}  // namespace kvtier::bench
