#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

/// A CUDA runtime for tests: linked in place of cudart, it answers the calls of include/cuda_runtime_api.h.
/// Work on streams is queued and runs only while the host waits, in a seeded order that keeps to streams and
/// events alone. Copies read their source when they run. Device memory is not the host's to touch: whoever
/// does dies. What a program may not rely on is written down as a violation, also when the bytes came out
/// right this time. Threads: any.
namespace kvtier::fake_cuda {

struct Machine {
  uint64_t seed = 1;
  int devices = 1;                             ///< 0: no GPU, as without a driver
  uint64_t device_bytes = uint64_t{64} << 20;  ///< of each
};

/// A program begins with a machine of this kind; KVTIER_FAKE_CUDA_LOSES_CONTEXT_AFTER in its environment is
/// the `after` of FailWork. A new machine: no context, no memory, no failures, no violations. What came from
/// the one before is gone.
void Reset(const Machine& machine);

/// What the program did wrong, in order: work on the same memory that nothing orders, memory freed or
/// staging written while work may still use it, a copy to or from memory that is not pinned, the default
/// stream.
std::vector<std::string> Violations();

/// Memory, streams and events that were made and not given back.
uint64_t LiveObjects();
/// Whether anything was called that makes a context on the device.
bool HasContext(int device);
/// Calls of `function` ("cudaMalloc"); "" counts all.
uint64_t Calls(const std::string& function);

/// A call that fails.
struct Failure {
  std::string function = "";   ///< "" is any call
  uint64_t after = 0;          ///< so many calls of it succeed first
  int error = 0;               ///< cudaError_t
  bool loses_context = false;  ///< every call after it fails likewise
};
void Fail(const Failure& failure);
/// Forgets failures that have not come yet.
void FailNoMore();
/// The `after`-th piece of work from now on fails when it runs: the context is lost, the calls after that say
/// so.
void FailWork(uint64_t after, int error);
/// Nothing runs any more, as on a GPU that hangs; waits find nothing done.
void Hang();
/// Runs all work that is queued, as time alone would.
void RunAll();

/// Memory that a kernel reads or writes.
struct Range {
  const void* data = nullptr;
  uint64_t bytes = 0;
  bool is_written = false;
};
/// Queues `body`, as a kernel launch does. While it runs, device memory can be touched through the pointers
/// that the program has. `find_ranges` gives those that stand in device memory, and is called likewise.
/// Returns a cudaError_t.
int Launch(const std::string& kernel, void* stream, std::vector<Range> ranges, std::function<void()> body,
           std::function<std::vector<Range>()> find_ranges = nullptr);

}  // namespace kvtier::fake_cuda
