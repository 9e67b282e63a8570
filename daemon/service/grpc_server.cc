#include "daemon/service/grpc_server.h"

#include <grpcpp/grpcpp.h>
#include <sys/stat.h>

#include "daemon/service/grpc_service.h"
#include "daemon/service/socket_path.h"

namespace kvtier {
namespace {

constexpr size_t kGrpcBufferBytes = size_t{64} << 20;  ///< what messages in flight may take together
constexpr int kStreamsPerConnection = 256;
/// How long Stop lets calls run before it cancels them towards the client.
constexpr auto kStopPatience = std::chrono::milliseconds(200);

class GrpcServerImpl final : public GrpcServer {
 public:
  GrpcServerImpl(GrpcServerOptions options, Deps deps) : service_(std::move(options), deps) {}
  ~GrpcServerImpl() override { Stop(); }

  Status Start(const std::string& socket_path, uint32_t mode) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + socket_path, grpc::InsecureServerCredentials());
    builder.RegisterService(&service_);
    builder.SetMaxReceiveMessageSize(kMaxGrpcMessageBytes);
    builder.SetMaxSendMessageSize(kMaxGrpcMessageBytes);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsPerConnection);
    builder.SetResourceQuota(grpc::ResourceQuota("kvtierd").Resize(kGrpcBufferBytes));
    // gRPC creates the socket file itself: at no moment may others connect.
    const mode_t before = ::umask(0777 & ~mode);
    server_ = builder.BuildAndStart();
    ::umask(before);
    if (!server_) return Status(Code::kUnavailable, "gRPC cannot listen on " + socket_path);
    return Status::Ok();
  }
  void TakeSnapshots() override { service_.TakeSnapshots(); }
  void Stop() override {
    if (!server_) return;
    server_->Shutdown(std::chrono::system_clock::now() + kStopPatience);
    server_->Wait();
    server_.reset();
  }

 private:
  GrpcService service_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

Result<std::unique_ptr<GrpcServer>> GrpcServer::Make(GrpcServerOptions options, Deps deps) {
  const std::string socket_path = options.socket_path;
  const uint32_t mode = options.socket_mode;
  KVTIER_TRY(PrepareSocketPath(socket_path));
  auto server = std::make_unique<GrpcServerImpl>(std::move(options), deps);
  KVTIER_TRY(server->Start(socket_path, mode));
  return std::unique_ptr<GrpcServer>(std::move(server));
}

}  // namespace kvtier
