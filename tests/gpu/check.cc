// The program of tests/gpu/check.sh: conformance on a GPU, then its speeds.
#include <cstdio>
#include <ctime>
#include <exception>
#include <fstream>

#include "tests/gpu/bench.h"
#include "tests/gpu/conformance.h"
#include "tests/gpu/cuda_machine.cuh"

namespace kvtier {
namespace {

constexpr int kNoGpu = 3;

int CheckConformance(const std::string& data_folder) {
  Conformance found;
  CudaMachine machine;
  CheckGolden(machine, data_folder, found);
  CheckShapes(machine, found);
  CheckAttention(machine, found);
  for (const std::string& failure : found.failures) std::printf("FAILED: %s\n", failure.c_str());
  std::printf("conformance: %d checks, %zu failed\n", found.checks, found.failures.size());
  return static_cast<int>(found.failures.size());
}

void WriteResults(const std::string& path, const char* device, int failed, const std::vector<Measured>& all) {
  std::ofstream file(path);
  char date[11];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&now));
  file << "{\n  \"device\": \"" << device << "\",\n  \"date\": \"" << date
       << "\",\n  \"failed_checks\": " << failed << ",\n  \"measured\": {";
  const char* separator = "\n";
  for (const Measured& m : all) {
    file << separator << "    \"" << m.name << "\": {\"value\": " << m.value << ", \"unit\": \"" << m.unit
         << "\"}";
    separator = ",\n";
  }
  file << "\n  }\n}\n";
}

int Main(const std::string& data_folder, const std::string& results) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    std::printf("no GPU: %s\n", cudaGetErrorString(error));
    return kNoGpu;
  }
  cudaDeviceProp device;
  if (cudaGetDeviceProperties(&device, 0) != cudaSuccess) return kNoGpu;
  std::printf("device: %s\n", device.name);
  const int failed = CheckConformance(data_folder);
  const std::vector<Measured> all = MeasureGpu();
  for (const Measured& m : all) std::printf("%-48s %10.2f %s\n", m.name.c_str(), m.value, m.unit.c_str());
  WriteResults(results, device.name, failed, all);
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace kvtier

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: kvtier-gpu-check DATA_FOLDER RESULTS_FILE\n");
    return 2;
  }
  try {
    return kvtier::Main(argv[1], argv[2]);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "kvtier-gpu-check: %s\n", failure.what());
    return 1;
  }
}
