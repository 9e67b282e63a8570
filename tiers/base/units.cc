#include "tiers/base/units.h"

#include <arpa/inet.h>

#include <array>
#include <charconv>

namespace kvtier {
namespace {

struct Unit {
  std::string_view name;
  int shift;
};
constexpr std::array<Unit, 5> kUnits = {{{"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}, {"B", 0}}};

bool IsAddress(int family, std::string_view host) {
  std::array<unsigned char, sizeof(in6_addr)> address{};
  return ::inet_pton(family, std::string(host).c_str(), address.data()) == 1;
}

}  // namespace

Result<uint64_t> ParseBytes(std::string_view text) {
  const Status bad(Code::kInvalidArgument,
                   "\"" + std::string(text) + "\" is not a size (examples: 512MiB, 4GiB, 1048576)");
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return bad;
  std::string_view rest = text.substr(static_cast<size_t>(end - text.data()));
  if (rest.empty()) return number;
  if (rest.front() == ' ') rest.remove_prefix(1);
  for (const Unit& unit : kUnits) {
    if (rest != unit.name) continue;
    if (number > (UINT64_MAX >> unit.shift)) return bad;
    return number << unit.shift;
  }
  return bad;
}

std::string FormatBytes(uint64_t bytes) {
  for (const Unit& unit : kUnits) {
    const uint64_t one = uint64_t{1} << unit.shift;
    if (bytes >= one && bytes % one == 0) return std::to_string(bytes >> unit.shift) + std::string(unit.name);
  }
  return "0B";
}

Result<HostPort> ParseHostPort(std::string_view text) {
  const Status bad(Code::kInvalidArgument,
                   "\"" + std::string(text) + "\" is not an address and port (example: 127.0.0.1:9464)");
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return bad;
  const std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  const bool bracketed = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (IsAddress(AF_INET6, bracketed ? host.substr(1, host.size() - 2) : host)) {
    return Status(Code::kInvalidArgument, "\"" + std::string(text) +
                                              "\" is an IPv6 address: only IPv4 is served (example: "
                                              "127.0.0.1:9464)");
  }
  if (!IsAddress(AF_INET, host)) return bad;
  HostPort parsed{.host = std::string(host)};
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), parsed.port);
  if (error != std::errc() || end != port.data() + port.size()) return bad;
  return parsed;
}

}  // namespace kvtier
