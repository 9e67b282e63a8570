#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tiers/base/status.h"

namespace kvtier {

/// Where the memory of a CXL tier comes from. kFile and kFsDax differ in what the mapping turns out to be.
enum class CxlKind : uint8_t { kAuto, kDevDax, kFsDax, kFile, kNuma };
std::string_view CxlKindName(CxlKind kind);

/// What an operator asked for.
struct CxlRequest {
  CxlKind kind = CxlKind::kAuto;
  std::string path = {};  ///< device, folder or file; empty: none named
  std::optional<uint32_t> numa_node = {};
  uint64_t bytes = 0;
};

/// What that is on this machine.
struct CxlTarget {
  CxlKind kind = CxlKind::kFile;  ///< kDevDax, kNuma, or kFsDax / kFile for a path in a file system
  std::string path = {};
  uint32_t numa_node = 0;
  bool any_file = false;           ///< kFile: a DAX file system is as welcome
  bool device_keeps_data = false;  ///< kDevDax: persistent memory, not memory that a power cut empties
  uint64_t device_bytes = 0;       ///< kDevDax: its size; 0: the system does not say
  uint64_t device_page_bytes = 0;  ///< kDevDax: what it is mapped in multiples of
};

struct NumaNode {
  uint32_t id = 0;
  bool has_cpus = false;
  uint64_t total_bytes = 0, free_bytes = 0;
};

/// The files in which the system says what it has. Tests put others in their place.
struct CxlSystem {
  std::string sysfs = "/sys";
  std::string dev = "/dev";
  std::string mounts = "/proc/self/mounts";
};

/// The file that a CXL tier makes in a folder.
inline constexpr std::string_view kCxlFileName = "kvtier.cxl";

/// Nodes with memory, by number.
std::vector<NumaNode> ListNumaNodes(const CxlSystem& system);

/// Finds what `request` means. A path alone is a device, a folder or a file by what it is. Without path and
/// node, the first that is there of: a device-DAX device large enough, a mounted DAX file system, a NUMA node
/// without CPUs. Errors: kNotFound (nothing of the kind on this machine), kFailedPrecondition (it is, but of
/// another kind), kResourceExhausted (a node without so much free memory).
Result<CxlTarget> ResolveCxl(const CxlRequest& request, const CxlSystem& system);

}  // namespace kvtier
