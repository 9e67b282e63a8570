#pragma once

#include <grpcpp/grpcpp.h>

#include "daemon/service/grpc_server.h"
#include "proto/kvtier.grpc.pb.h"
#include "tests/service/session_fixture.h"

namespace kvtier {

/// Both servers with a fake engine behind them, and one open session whose token calls can use.
class GrpcFixture : public SessionFixture {
 protected:
  void StartAll() {
    Start();
    grpc_options_.socket_path = folder_.File("s");
    grpc_options_.tiers = 3;
    grpc_options_.version = "1.2.3";
    auto server = GrpcServer::Make(grpc_options_, {.commands = commands_,
                                                   .on_queued = [this] { commands_.Wake(); },
                                                   .registry = registry_,
                                                   .metrics = metrics_,
                                                   .clock = clock_,
                                                   .events = hub_});
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    grpc_ = std::move(server).value();
    session_.emplace(Open());
    token_ = welcome_.session_token();
    stub_ = v1::Kvtier::NewStub(
        grpc::CreateChannel("unix:" + grpc_options_.socket_path, grpc::InsecureChannelCredentials()));
  }
  void TearDown() override {
    stub_.reset();
    if (grpc_) grpc_->Stop();
  }

  /// A request with the session's token.
  template <typename Request>
  Request Signed() const {
    Request request;
    request.set_session_token(token_);
    return request;
  }
  /// Calls a method of the stub with a deadline of ten seconds, so that a hang is a failure.
  template <typename Request, typename Reply>
  grpc::Status Call(grpc::Status (v1::Kvtier::Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                    const Request& request, Reply* reply,
                    std::chrono::milliseconds deadline = std::chrono::seconds(10)) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + deadline);
    return (stub_.get()->*method)(&context, request, reply);
  }
  static std::string KeyBytes(char fill) { return std::string(32, fill); }
  static v1::ModelSpec SmallSpec() {
    v1::ModelSpec spec;
    spec.set_model_id("m");
    spec.set_layers(2);
    spec.set_kv_heads(1);
    spec.set_k_dim(64);
    spec.set_v_dim(64);
    spec.set_dtype(1);
    spec.set_tokens_per_block(64);
    return spec;
  }
  static constexpr uint64_t kSmallBlockBytes = 2 * 64 * (64 + 64) * 2;

  bool Answer(Command& command) override {
    if (auto* model = std::get_if<RegisterModel>(&command.body)) {
      RegisteredModel registered;
      registered.model = ModelId{5};
      registered.spec = model->spec;
      model->reply(registered);
      return true;
    }
    return SessionFixture::Answer(command);
  }
  void RegisterSmall() {
    auto request = Signed<v1::RegisterModelRequest>();
    *request.mutable_spec() = SmallSpec();
    v1::RegisterModelReply reply;
    const grpc::Status status = Call(&v1::Kvtier::Stub::RegisterModel, request, &reply);
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_EQ(reply.model(), 5u);
  }

  GrpcServerOptions grpc_options_;
  std::unique_ptr<GrpcServer> grpc_;
  std::optional<RawClient> session_;
  std::string token_;
  std::unique_ptr<v1::Kvtier::Stub> stub_;
};

}  // namespace kvtier
