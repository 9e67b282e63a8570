#include "tests/bench/machine.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>
#include <string_view>

namespace kvtier::bench {
namespace {

/// The value of the first "key : value" line of a /proc file, "unknown" when there is none.
std::string ProcValue(const char* path, std::string_view key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    const size_t colon = line.find(':');
    if (!line.starts_with(key) || colon == std::string::npos) continue;
    const size_t start = line.find_first_not_of(" \t", colon + 1);
    return start == std::string::npos ? "" : line.substr(start);
  }
  return "unknown";
}

}  // namespace

std::vector<Field> DescribeMachine() {
  utsname system{};
  const std::string kernel =
      uname(&system) == 0 ? std::string(system.sysname) + " " + system.release : "unknown";
  return {
      {"processor", ProcValue("/proc/cpuinfo", "model name")},
      {"cores", std::to_string(sysconf(_SC_NPROCESSORS_ONLN))},
      {"memory", ProcValue("/proc/meminfo", "MemTotal")},
      {"kernel", kernel},
      {"compiler", __VERSION__},
      {"build", KVTIER_BUILD_TYPE},
      {"version", KVTIER_VERSION},
  };
}

}  // namespace kvtier::bench
