#include "tiers/cxl_system.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace kvtier {

namespace {

namespace fs = std::filesystem;

/// Of devices whose system does not say it: what the kernel takes where nobody chose.
constexpr uint64_t kDevicePageBytes = uint64_t{2} << 20;

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<uint64_t> ToNumber(std::string_view text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

/// Names in a folder, sorted; none when it cannot be read.
std::vector<std::string> Names(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// "Node 1 MemFree:  123 kB" of a node's meminfo, in bytes.
uint64_t MeminfoBytes(const std::string& path, std::string_view field) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t at = line.find(field);
    if (at == std::string::npos) continue;
    std::istringstream rest(line.substr(at + field.size()));
    uint64_t kib = 0;
    return rest >> kib ? kib << 10 : 0;
  }
  return 0;
}

/// Where sysfs describes a character device.
std::string SysfsOf(const struct stat& info, const CxlSystem& system) {
  return system.sysfs + "/dev/char/" + std::to_string(major(info.st_rdev)) + ":" +
         std::to_string(minor(info.st_rdev));
}

/// Persistent memory hangs off an NVDIMM bus, also that behind CXL; other DAX devices are memory that was set
/// aside.
bool KeepsData(const std::string& sysfs_device) {
  std::error_code error;
  const fs::path real = fs::canonical(sysfs_device, error);
  return !error && std::any_of(real.begin(), real.end(),
                               [](const fs::path& part) { return part.string().starts_with("ndbus"); });
}

Result<CxlTarget> DeviceTarget(const std::string& path, const struct stat& info, const CxlSystem& system) {
  const std::string sysfs_device = SysfsOf(info, system);
  std::error_code error;
  const fs::path subsystem = fs::read_symlink(sysfs_device + "/subsystem", error);
  if (error || subsystem.filename() != "dax") {
    return Status(Code::kFailedPrecondition, path + " is a character device, but none of device-DAX");
  }
  return CxlTarget{
      .kind = CxlKind::kDevDax,
      .path = path,
      .device_keeps_data = KeepsData(sysfs_device),
      .device_bytes = ToNumber(FirstLine(sysfs_device + "/size")).value_or(0),
      .device_page_bytes = ToNumber(FirstLine(sysfs_device + "/align")).value_or(kDevicePageBytes)};
}

bool Accepts(CxlKind asked, CxlKind found) {
  if (asked == CxlKind::kAuto || asked == found) return true;
  return asked == CxlKind::kFsDax && found == CxlKind::kFile;  // the mapping will tell
}

Result<CxlTarget> FileTarget(const CxlRequest& request, std::string path) {
  return CxlTarget{.kind = request.kind == CxlKind::kFsDax ? CxlKind::kFsDax : CxlKind::kFile,
                   .path = std::move(path),
                   .any_file = request.kind == CxlKind::kAuto};
}

Result<CxlTarget> PathTarget(const CxlRequest& request, const CxlSystem& system) {
  const std::string& path = request.path;
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    if (errno != ENOENT) return StatusFromErrno(errno, path);
    // A device that is not there must not become a file in /dev.
    const bool is_device = request.kind == CxlKind::kDevDax || path.starts_with(system.dev + "/");
    const fs::path folder = fs::path(path).parent_path();
    if (is_device || !fs::is_directory(folder)) return Status(Code::kNotFound, path + " is not there");
    return FileTarget(request, path);
  }
  Result<CxlTarget> target(Code::kFailedPrecondition, path + " is no device, folder or file");
  if (S_ISCHR(info.st_mode)) target = DeviceTarget(path, info, system);
  if (S_ISDIR(info.st_mode)) target = FileTarget(request, path + "/" + std::string(kCxlFileName));
  if (S_ISREG(info.st_mode)) target = FileTarget(request, path);
  if (target.ok() && !Accepts(request.kind, target->kind)) {
    return Status(Code::kFailedPrecondition, path + " is no " + std::string(CxlKindName(request.kind)));
  }
  return target;
}

Result<CxlTarget> NodeTarget(const CxlRequest& request, const CxlSystem& system) {
  const std::vector<NumaNode> nodes = ListNumaNodes(system);
  const auto node = std::find_if(nodes.begin(), nodes.end(), [&](const NumaNode& one) {
    return request.numa_node ? one.id == *request.numa_node : !one.has_cpus;
  });
  if (node == nodes.end()) {
    return Status(Code::kNotFound, request.numa_node
                                       ? "NUMA node " + std::to_string(*request.numa_node) + " has no memory"
                                       : "no NUMA node without CPUs");
  }
  if (node->free_bytes < request.bytes) {
    return Status(Code::kResourceExhausted, "NUMA node " + std::to_string(node->id) + " has " +
                                                std::to_string(node->free_bytes) + " bytes free, not " +
                                                std::to_string(request.bytes));
  }
  return CxlTarget{.kind = CxlKind::kNuma, .path = {}, .numa_node = node->id};
}

std::optional<CxlTarget> FirstDevice(const CxlRequest& request, const CxlSystem& system) {
  for (const std::string& name : Names(system.sysfs + "/bus/dax/devices")) {
    const std::string path = system.dev + "/" + name;
    const auto bytes = ToNumber(FirstLine(system.sysfs + "/bus/dax/devices/" + name + "/size"));
    struct stat info {};
    if (!bytes || *bytes < request.bytes || ::stat(path.c_str(), &info) != 0 || !S_ISCHR(info.st_mode))
      continue;
    Result<CxlTarget> target = DeviceTarget(path, info, system);
    if (target.ok()) return *target;
  }
  return std::nullopt;
}

/// A file system mounted with the option "dax" or "dax=always".
std::optional<CxlTarget> FirstDaxMount(const CxlSystem& system) {
  std::ifstream mounts(system.mounts);
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream fields(line);
    std::string device, folder, type, options;
    fields >> device >> folder >> type >> options;
    std::istringstream list(options);
    for (std::string option; std::getline(list, option, ',');) {
      if (option != "dax" && option != "dax=always") continue;
      return CxlTarget{.kind = CxlKind::kFsDax, .path = folder + "/" + std::string(kCxlFileName)};
    }
  }
  return std::nullopt;
}

}  // namespace

std::string_view CxlKindName(CxlKind kind) {
  switch (kind) {
    case CxlKind::kAuto:
      return "auto";
    case CxlKind::kDevDax:
      return "devdax";
    case CxlKind::kFsDax:
      return "fsdax";
    case CxlKind::kFile:
      return "file";
    case CxlKind::kNuma:
      return "numa";
  }
  return "unknown";
}

std::vector<NumaNode> ListNumaNodes(const CxlSystem& system) {
  const std::string folder = system.sysfs + "/devices/system/node";
  std::vector<NumaNode> nodes;
  for (const std::string& name : Names(folder)) {
    if (!name.starts_with("node")) continue;
    const auto id = ToNumber(std::string_view(name).substr(4));
    if (!id) continue;
    const std::string of_node = folder + "/" + name;
    NumaNode node{.id = static_cast<uint32_t>(*id),
                  .has_cpus = !FirstLine(of_node + "/cpulist").empty(),
                  .total_bytes = MeminfoBytes(of_node + "/meminfo", "MemTotal:"),
                  .free_bytes = MeminfoBytes(of_node + "/meminfo", "MemFree:")};
    if (node.total_bytes > 0) nodes.push_back(node);
  }
  std::sort(nodes.begin(), nodes.end(), [](const NumaNode& a, const NumaNode& b) { return a.id < b.id; });
  return nodes;
}

Result<CxlTarget> ResolveCxl(const CxlRequest& request, const CxlSystem& system) {
  if (!request.path.empty()) return PathTarget(request, system);
  if (request.kind == CxlKind::kNuma || request.numa_node) return NodeTarget(request, system);
  const auto wants = [&](CxlKind kind) { return request.kind == CxlKind::kAuto || request.kind == kind; };
  if (wants(CxlKind::kDevDax)) {
    if (const auto device = FirstDevice(request, system)) return *device;
  }
  if (wants(CxlKind::kFsDax)) {
    if (const auto mount = FirstDaxMount(system)) return *mount;
  }
  if (request.kind == CxlKind::kAuto) {
    Result<CxlTarget> node = NodeTarget(request, system);
    if (node.status().code() != Code::kNotFound) return node;
  }
  return Status(Code::kNotFound, request.kind == CxlKind::kAuto
                                     ? "no DAX device, no DAX file system and no NUMA node without CPUs"
                                     : "no " + std::string(CxlKindName(request.kind)));
}

}  // namespace kvtier
