#include "tests/support/fake_cuda/runtime.h"

#include <cstdlib>
#include <sstream>

namespace kvtier::fake_cuda {
namespace {

std::mutex machine_mutex;
/// A program's first machine, for programs that are no tests.
std::unique_ptr<Runtime> FirstMachine() {
  auto first = std::make_unique<Runtime>(Machine{});
  const char* const pieces = std::getenv("KVTIER_FAKE_CUDA_LOSES_CONTEXT_AFTER");
  if (pieces != nullptr) {
    first->work_failure = {std::strtoull(pieces, nullptr, 10), cudaErrorECCUncorrectable};
  }
  return first;
}

std::unique_ptr<Runtime> machine = FirstMachine();
thread_local cudaError_t last_error = cudaSuccess;
thread_local int current_device = 0;

/// What this call is to fail with.
cudaError_t InjectedError(Runtime& runtime, const std::string& name) {
  for (auto failure = runtime.failures.begin(); failure != runtime.failures.end(); ++failure) {
    if (!failure->function.empty() && failure->function != name) continue;
    if (failure->after-- > 0) continue;
    const auto error = static_cast<cudaError_t>(failure->error);
    if (failure->loses_context) runtime.lost = error;
    runtime.failures.erase(failure);
    return error;
  }
  return cudaSuccess;
}

cudaError_t Answer(Runtime& runtime, const char* name, CallKind kind,
                   const std::function<cudaError_t(Runtime&)>& body) {
  ++runtime.calls[name];
  if (runtime.lost != cudaSuccess) return runtime.lost;
  if (const cudaError_t error = InjectedError(runtime, name); error != cudaSuccess) return error;
  if (kind == CallKind::kNeedsContext) {
    if (runtime.machine.devices == 0) return cudaErrorInsufficientDriver;
    runtime.contexts.insert(current_device);
  }
  const cudaError_t error = body(runtime);
  return runtime.lost != cudaSuccess ? runtime.lost : error;
}

}  // namespace

void Runtime::ViolationLines(const std::string& lines) {
  std::istringstream in(lines);
  for (std::string line; std::getline(in, line);) Violation(line);
}

void Runtime::CheckUnused(const Allocation& used, const std::string& who) {
  const Work* user = work.UserOf(used.program_address(), used.bytes());
  if (user != nullptr) Violation(who + " gives back memory that " + user->name + " may still use");
}

Stream* Runtime::FindStream(cudaStream_t stream) {
  if (stream == nullptr) Violation("work on the default stream, which waits for all others");
  const auto found = streams.find(stream);
  return found == streams.end() || found->second.device != current_device ? nullptr : &found->second;
}

Event* Runtime::FindEvent(cudaEvent_t event) {
  const auto found = events.find(event);
  return found == events.end() || found->second.device != current_device ? nullptr : &found->second;
}

WorkId Runtime::Add(Stream& stream, Work added) {
  if (stream.last != kNoWork) added.after.push_back(stream.last);
  const WorkId id = work.NewId();
  ViolationLines(work.Add(id, std::move(added)));
  stream.last = id;
  return id;
}

void Runtime::Step(std::optional<WorkId> target) {
  if (hangs || lost != cudaSuccess) return;
  const int error = work.RunOne(target);
  if (error != 0) lost = static_cast<cudaError_t>(error);
}

int CurrentDevice() {
  return current_device;
}
void SetCurrentDevice(int device) {
  current_device = device;
}

cudaError_t Call(const char* name, CallKind kind, const std::function<cudaError_t(Runtime&)>& body) {
  std::lock_guard lock(machine_mutex);
  const cudaError_t error = Answer(*machine, name, kind, body);
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

cudaError_t TakeLastError() {
  std::lock_guard lock(machine_mutex);
  if (machine->lost != cudaSuccess) return machine->lost;
  return std::exchange(last_error, cudaSuccess);
}

void Reset(const Machine& spec) {
  std::lock_guard lock(machine_mutex);
  machine = std::make_unique<Runtime>(spec);
  last_error = cudaSuccess;
  current_device = 0;
}

std::vector<std::string> Violations() {
  std::lock_guard lock(machine_mutex);
  return machine->violations;
}

uint64_t LiveObjects() {
  std::lock_guard lock(machine_mutex);
  return machine->memory.size() + machine->streams.size() + machine->events.size();
}

bool HasContext(int device) {
  std::lock_guard lock(machine_mutex);
  return machine->contexts.contains(device);
}

uint64_t Calls(const std::string& function) {
  std::lock_guard lock(machine_mutex);
  uint64_t calls = 0;
  for (const auto& [name, count] : machine->calls) calls += function.empty() || name == function ? count : 0;
  return calls;
}

void Fail(const Failure& failure) {
  std::lock_guard lock(machine_mutex);
  machine->failures.push_back(failure);
}

void FailNoMore() {
  std::lock_guard lock(machine_mutex);
  machine->failures.clear();
}

void FailWork(uint64_t after, int error) {
  std::lock_guard lock(machine_mutex);
  machine->work_failure = {after, error};
}

void Hang() {
  std::lock_guard lock(machine_mutex);
  machine->hangs = true;
}

void RunAll() {
  std::lock_guard lock(machine_mutex);
  while (machine->lost == cudaSuccess && !machine->hangs && machine->work.CanRunAny()) {
    machine->Step(std::nullopt);
  }
}

}  // namespace kvtier::fake_cuda
