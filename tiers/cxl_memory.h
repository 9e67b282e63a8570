#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tiers/base/status.h"

namespace kvtier {

/// What makes stored bytes survive a power cut. libpmem2 says it of each mapping.
enum class CxlPersistence : uint8_t {
  kByte,       ///< the store itself
  kCacheLine,  ///< flushed cache lines
  kPage,       ///< msync
  kNone,       ///< nothing
};

/// Memory that a CXL store keeps its bytes in. Threads: any, for different bytes.
class CxlMemory {
 public:
  virtual ~CxlMemory() = default;
  virtual std::span<const std::byte> span() const = 0;
  virtual CxlPersistence persistence() const = 0;
  /// Whether bytes that were there are gone: they read as zeros, and what is written may go nowhere.
  virtual bool lost() const = 0;
  /// Below it something of anybody's may stand from before; 0: the memory is new. It may lie beyond span():
  /// who maps the memory sees that too. Zero and Persist reach as far.
  virtual uint64_t stale_bytes() const = 0;
  /// What a later call writes is persistent only after this is, but where pages are synced: there any of it
  /// may be, and all of it after Persist.
  virtual void Write(uint64_t offset, std::span<const std::byte> bytes) = 0;
  virtual void Zero(uint64_t offset, uint64_t bytes) = 0;
  /// After OK what was written there survives what persistence() says. Errors: kUnavailable; then it may be
  /// lost.
  virtual Status Persist(uint64_t offset, uint64_t bytes) = 0;
};

}  // namespace kvtier
