#include "monitoring/exporter.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "tiers/base/unique_fd.h"

namespace kvtier {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

/// The whole answer to one request, head and body; at most ten seconds.
std::string Ask(uint16_t port, const std::string& request) {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  timeval patience{.tv_sec = 10, .tv_usec = 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return "no connection";
  if (::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) return "not sent";
  std::string answer;
  char bytes[4096];
  for (ssize_t n; (n = ::recv(socket.get(), bytes, sizeof(bytes), 0)) > 0;)
    answer.append(bytes, static_cast<size_t>(n));
  return answer;
}
std::string Get(uint16_t port, const std::string& path) {
  return Ask(port, "GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
}

ExporterOptions OnAnyPort() {
  ExporterOptions options;
  options.port = 0;
  options.tiers = {"hot"};
  options.version = "1";
  return options;
}

TEST(Exporter, ServesMetricsAsPrometheusText) {
  Metrics metrics;
  auto exporter = Exporter::Make(OnAnyPort(), metrics);
  ASSERT_TRUE(exporter.ok()) << exporter.status().ToString();
  const uint16_t port = (*exporter)->port();
  metrics.lookups.Add(7);
  const std::string answer = Get(port, "/metrics");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  EXPECT_THAT(answer, HasSubstr("\n# HELP kvtier_lookups_total Lookup calls answered.\n"
                                "# TYPE kvtier_lookups_total counter\n"
                                "kvtier_lookups_total 7\n"));
  metrics.lookups.Add(1);
  EXPECT_THAT(Get(port, "/metrics"), HasSubstr("\nkvtier_lookups_total 8\n"));
}

TEST(Exporter, HealthAndReadinessSayWhatIsWrong) {
  Metrics metrics;
  ExporterOptions options = OnAnyPort();
  options.health = [] { return std::string("engine thread: no progress for 9 s"); };
  auto exporter = Exporter::Make(options, metrics);
  ASSERT_TRUE(exporter.ok());
  const std::string sick = Get((*exporter)->port(), "/healthz");
  EXPECT_THAT(sick, StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(sick, HasSubstr("\r\n\r\nengine thread: no progress for 9 s\n"));
  const std::string ready = Get((*exporter)->port(), "/readyz");
  EXPECT_THAT(ready, StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(ready, HasSubstr("\r\n\r\nok\n"));
}

TEST(Exporter, ServesNothingElse) {
  Metrics metrics;
  auto exporter = Exporter::Make(OnAnyPort(), metrics);
  ASSERT_TRUE(exporter.ok());
  const uint16_t port = (*exporter)->port();
  for (const char* path : {"/", "/etc/passwd", "/../../etc/passwd", "/metrics/x", "/metricsx"}) {
    EXPECT_THAT(Get(port, path), StartsWith("HTTP/1.1 4")) << path;
  }
  EXPECT_THAT(Ask(port, "DELETE /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), StartsWith("HTTP/1.1 4"));
  EXPECT_THAT(Ask(port, "nonsense\r\n\r\n"), HasSubstr(" 400 Bad Request\r\n"));
}

TEST(Exporter, AnAddressInUseIsAnError) {
  Metrics metrics;
  auto first = Exporter::Make(OnAnyPort(), metrics);
  ASSERT_TRUE(first.ok());
  ExporterOptions options = OnAnyPort();
  options.port = (*first)->port();
  const auto second = Exporter::Make(options, metrics);
  EXPECT_EQ(second.status().code(), Code::kUnavailable);
  EXPECT_THAT(second.status().message(),
              testing::StartsWith("metrics: cannot listen on 127.0.0.1:" + std::to_string(options.port)));
  EXPECT_THAT(second.status().message(), testing::HasSubstr("Address already in use"));
}

}  // namespace
}  // namespace kvtier
