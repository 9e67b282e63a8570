#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/fake_cuda/memory.h"
#include "tests/support/fake_cuda/work.h"

namespace kvtier::fake_cuda {

/// How often an event of an Interprocess kind was recorded, and how many of these records have run; in a
/// memory file that processes share.
struct SharedEvent {
  uint64_t recorded = 0;
  uint64_t done = 0;
};

struct Stream {
  int device = 0;
  WorkId last = kNoWork;
};
/// Several processes may have it, if it is shared.
class Event {
 public:
  int device = 0;
  WorkId last = kNoWork;               ///< its last record here; none: it is done
  std::unique_ptr<Allocation> shared;  ///< holds a SharedEvent; null: of this process alone

  std::atomic_ref<uint64_t> recorded() const { return std::atomic_ref(counts().recorded); }
  std::atomic_ref<uint64_t> done() const { return std::atomic_ref(counts().done); }

 private:
  SharedEvent& counts() const {
    return *reinterpret_cast<SharedEvent*>(shared->Backing(shared->program_address()));
  }
};

/// Everything that there is of one machine. Guarded by its mutex.
struct Runtime {
  explicit Runtime(const Machine& spec) : machine(spec), work(spec.seed) {}

  Machine machine;
  WorkGraph work;
  MemoryMap memory;
  std::map<cudaStream_t, Stream> streams;
  std::map<cudaEvent_t, Event> events;
  std::set<int> contexts;
  std::vector<std::string> violations;
  std::map<std::string, uint64_t> calls;
  std::vector<Failure> failures;
  std::optional<std::pair<uint64_t, int>> work_failure;
  cudaError_t lost = cudaSuccess;  ///< not cudaSuccess: what every call says from now on
  bool hangs = false;
  uint64_t last_handle = 0;

  void Violation(const std::string& what) { violations.push_back(what); }
  /// Every line is one.
  void ViolationLines(const std::string& lines);
  /// Writes down who may still use the memory.
  void CheckUnused(const Allocation& memory, const std::string& who);
  /// Null: not a stream of the current device; null streams are a violation.
  Stream* FindStream(cudaStream_t stream);
  Event* FindEvent(cudaEvent_t event);
  WorkId Add(Stream& stream, Work work);
  /// One piece, towards `target` or anywhere.
  void Step(std::optional<WorkId> target);
};

/// The device of the calling thread.
int CurrentDevice();
void SetCurrentDevice(int device);

enum class CallKind : uint8_t { kNeedsContext, kNeedsNone };
/// What every call does: counts, fails as told, holds the lock, keeps the thread's last error.
cudaError_t Call(const char* name, CallKind kind, const std::function<cudaError_t(Runtime&)>& body);
cudaError_t TakeLastError();

}  // namespace kvtier::fake_cuda
