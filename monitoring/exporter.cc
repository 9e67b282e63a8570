#include "monitoring/exporter.h"

#include <CivetServer.h>
#include <arpa/inet.h>
#include <prometheus/text_serializer.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "monitoring/exporter_families.h"
#include "tiers/base/unique_fd.h"

namespace kvtier {
namespace {

constexpr char kMetricsType[] = "text/plain; version=0.0.4; charset=utf-8";
constexpr char kPlainType[] = "text/plain; charset=utf-8";

void Respond(mg_connection* connection, const char* status, const char* type, const std::string& body) {
  mg_printf(connection,
            "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nCache-Control: no-store\r\n"
            "Connection: close\r\n\r\n",
            status, type, body.size());
  mg_write(connection, body.data(), body.size());
}

/// Connects to the port and hangs up.
void Knock(const std::string& host, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (::inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) return;
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  [[maybe_unused]] const int connected =
      ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
}

/// What Civetweb said first on this thread since it was cleared: its exception does not tell why. The call
/// that starts a server reports on its own thread.
thread_local std::string first_complaint;

int KeepComplaint(const mg_connection*, const char* message) {
  if (first_complaint.empty()) first_complaint = message;
  return 1;
}

class MetricsHandler final : public CivetHandler {
 public:
  MetricsHandler(const Metrics& metrics, ExporterLabels labels)
      : metrics_(metrics), labels_(std::move(labels)) {}
  bool handleGet(CivetServer*, mg_connection* connection) override {
    Respond(connection, "200 OK", kMetricsType,
            prometheus::TextSerializer().Serialize(CollectFamilies(metrics_, labels_)));
    return true;
  }

 private:
  const Metrics& metrics_;
  const ExporterLabels labels_;
};

class CheckHandler final : public CivetHandler {
 public:
  explicit CheckHandler(std::function<std::string()> problem) : problem_(std::move(problem)) {}
  bool handleGet(CivetServer*, mg_connection* connection) override {
    const std::string problem = problem_ ? problem_() : std::string();
    if (problem.empty()) {
      Respond(connection, "200 OK", kPlainType, "ok\n");
    } else {
      Respond(connection, "503 Service Unavailable", kPlainType, problem + "\n");
    }
    return true;
  }

 private:
  const std::function<std::string()> problem_;
};

class ExporterImpl final : public Exporter {
 public:
  ExporterImpl(ExporterOptions options, const Metrics& metrics)
      : host_(options.host),
        metrics_handler_(metrics, {.tiers = std::move(options.tiers), .version = std::move(options.version)}),
        health_handler_(std::move(options.health)),
        readiness_handler_(std::move(options.readiness)) {}

  /// Civetweb's listener sleeps for two seconds at a time: knock until it looks up and sees that it should
  /// stop.
  ~ExporterImpl() override {
    if (!server_) return;
    std::atomic<bool> closed{false};
    std::thread closer([&] {
      server_->close();
      closed.store(true);
    });
    while (!closed.load()) {
      Knock(host_, port_);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    closer.join();
  }

  Status Listen(const std::string& address) {
    CivetCallbacks callbacks;
    callbacks.log_message = KeepComplaint;
    first_complaint.clear();
    try {
      // A request that dawdles may hold one of the threads for a while, not for good.
      server_ = std::make_unique<CivetServer>(
          std::vector<std::string>{"listening_ports", address, "num_threads", "2", "request_timeout_ms",
                                   "5000", "keep_alive_timeout_ms", "0"},
          &callbacks);
    } catch (const CivetException& error) {
      return Status(Code::kUnavailable, "metrics: cannot listen on " + address +
                                            (first_complaint.empty() ? "" : ": " + first_complaint));
    }
    server_->addHandler("/metrics$", metrics_handler_);
    server_->addHandler("/healthz$", health_handler_);
    server_->addHandler("/readyz$", readiness_handler_);
    const std::vector<int> ports = server_->getListeningPorts();
    if (ports.empty()) return Status(Code::kUnavailable, "metrics: no port on " + address);
    port_ = static_cast<uint16_t>(ports.front());
    return Status::Ok();
  }
  uint16_t port() const override { return port_; }

 private:
  const std::string host_;
  MetricsHandler metrics_handler_;
  CheckHandler health_handler_, readiness_handler_;
  uint16_t port_ = 0;
  std::unique_ptr<CivetServer> server_;  ///< last: its threads use the handlers
};

}  // namespace

Result<std::unique_ptr<Exporter>> Exporter::Make(ExporterOptions options, const Metrics& metrics) {
  const std::string address = options.host + ":" + std::to_string(options.port);
  auto exporter = std::make_unique<ExporterImpl>(std::move(options), metrics);
  KVTIER_TRY(exporter->Listen(address));
  return std::unique_ptr<Exporter>(std::move(exporter));
}

}  // namespace kvtier
