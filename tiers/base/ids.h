#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>

namespace kvtier {

/// A number that names one kind of thing; two kinds do not convert into each other.
template <typename Tag, typename Int>
struct Id {
  Int value = 0;
  friend auto operator<=>(const Id&, const Id&) = default;
};

using TierId = Id<struct TierTag, uint8_t>;       ///< index into the ladder: 0 is the highest tier configured
using TenantId = Id<struct TenantTag, uint32_t>;  ///< daemon-local number of a tenant name such as "uid:1000"
using SessionId = Id<struct SessionTag, uint64_t>;  ///< never reused within one boot
using ModelId = Id<struct ModelTag, uint32_t>;      ///< daemon-local number of a namespace
using LeaseId = Id<struct LeaseTag, uint64_t>;      ///< chosen by the client, unique in its session
using TicketId = Id<struct TicketTag, uint64_t>;    ///< chosen by the client, unique in its session
using JobId = Id<struct JobTag, uint64_t>;
using ArenaId = Id<struct ArenaTag, uint32_t>;  ///< never reused within one boot

/// 256 bits from SHA-256. Key and namespace digest have the same form but never mix.
template <typename Tag>
struct Digest256 {
  std::array<std::byte, 32> bytes{};
  /// By words: the defaulted comparison goes byte by byte, and a lookup compares hundreds.
  friend bool operator==(const Digest256& a, const Digest256& b) {
    return std::memcmp(a.bytes.data(), b.bytes.data(), 32) == 0;
  }
  friend auto operator<=>(const Digest256& a, const Digest256& b) {
    return std::memcmp(a.bytes.data(), b.bytes.data(), 32) <=> 0;
  }
  std::string ToHex() const {
    static constexpr char kDigits[] = "0123456789abcdef";
    std::string hex;
    hex.reserve(64);
    for (std::byte b : bytes) {
      hex.push_back(kDigits[static_cast<uint8_t>(b) >> 4]);
      hex.push_back(kDigits[static_cast<uint8_t>(b) & 15]);
    }
    return hex;
  }
  std::string_view AsStringView() const {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
};

using Key = Digest256<struct KeyTag>;                    ///< names a block (DESIGN.md "Keys")
using NamespaceDigest = Digest256<struct NamespaceTag>;  ///< everything besides tokens that changes K/V bytes

}  // namespace kvtier

template <typename Tag, typename Int>
struct std::hash<kvtier::Id<Tag, Int>> {
  size_t operator()(kvtier::Id<Tag, Int> id) const noexcept { return std::hash<Int>{}(id.value); }
};
template <typename Tag>
struct std::hash<kvtier::Digest256<Tag>> {
  /// SHA-256 output is uniform: its first word is as good a hash as any.
  size_t operator()(const kvtier::Digest256<Tag>& digest) const noexcept {
    size_t word;
    std::memcpy(&word, digest.bytes.data(), sizeof(word));
    return word;
  }
};
