// libFuzzer over one target of the table:
//   kvtier_fuzz --target=NAME [--seeds=FOLDER] [libFuzzer's own options]
// With --seeds it writes what the target begins with there, and ends; --targets prints all names.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "tests/fuzz/target.h"
#include "tiers/base/check.h"

namespace {

const kvtier::FuzzTarget* target = nullptr;  // LLVMFuzzerInitialize

void WriteSeeds(const std::string& folder) {
  int number = 0;
  for (const kvtier::FuzzTarget::Bytes& seed : target->seeds()) {
    std::ofstream file(folder + "/seed" + std::to_string(number++), std::ios::binary);
    file.write(reinterpret_cast<const char*>(seed.data()), static_cast<std::streamsize>(seed.size()));
    KVTIER_CHECK(file.good());
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  constexpr std::string_view kTarget = "--target=", kSeeds = "--seeds=";
  std::string seeds;
  for (int i = 1; i < *argc; ++i) {
    const std::string_view argument = (*argv)[i];
    if (argument.starts_with(kTarget)) target = kvtier::FindFuzzTarget(argument.substr(kTarget.size()));
    if (argument.starts_with(kSeeds)) seeds = argument.substr(kSeeds.size());
    if (argument != "--targets") continue;
    for (const kvtier::FuzzTarget& one : kvtier::FuzzTargets()) std::printf("%s\n", one.name.data());
    std::exit(0);
  }
  if (target == nullptr) {
    std::fprintf(stderr, "usage: kvtier_fuzz --target=NAME [--seeds=FOLDER] [options of libFuzzer]\n");
    std::exit(2);
  }
  if (seeds.empty()) return 0;
  WriteSeeds(seeds);
  std::exit(0);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  target->run(std::as_bytes(std::span(data, size)));
  return 0;
}
