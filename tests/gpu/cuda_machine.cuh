#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cuda/launch.h"
#include "tests/gpu/batch_machine.h"

namespace kvtier {

/// Batches on the current GPU, in memory that it shares with the host.
class CudaMachine : public BatchMachine {
 public:
  ~CudaMachine() override {
    for (void* memory : memory_) cudaFree(memory);
  }
  std::byte* Allocate(uint64_t bytes) override {
    void* memory = nullptr;
    if (cudaMallocManaged(&memory, bytes) != cudaSuccess) return nullptr;
    memory_.push_back(memory);
    for (uint64_t i = 0; i < bytes; ++i) static_cast<uint8_t*>(memory)[i] = 0xCD;
    return static_cast<std::byte*>(memory);
  }
  const char* Run(const AnyBatch& batch) override {
    int error = std::visit([](const auto& args) { return LaunchOne(args); }, batch);
    if (error == cudaSuccess) error = cudaDeviceSynchronize();
    return error == cudaSuccess ? nullptr : cudaGetErrorString(static_cast<cudaError_t>(error));
  }

 private:
  static int LaunchOne(const EncodeBatchArgs& args) { return cuda::LaunchEncode(args, nullptr); }
  static int LaunchOne(const RequantizeBatchArgs& args) { return cuda::LaunchRequantize(args, nullptr); }
  static int LaunchOne(const CutBatchArgs& args) { return cuda::LaunchCut(args, nullptr); }
  static int LaunchOne(const DecodeBatchArgs& args) { return cuda::LaunchDecode(args, nullptr); }
  static int LaunchOne(const AttendBatchArgs& args) { return cuda::LaunchAttend(args, nullptr); }
  static int LaunchOne(const CombineBatchArgs& args) { return cuda::LaunchCombine(args, nullptr); }

  std::vector<void*> memory_;
};

}  // namespace kvtier
