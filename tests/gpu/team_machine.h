#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "kernels/batch_attend.h"
#include "kernels/batch_combine.h"
#include "kernels/batch_cut.h"
#include "kernels/batch_decode.h"
#include "kernels/batch_encode.h"
#include "tests/gpu/batch_machine.h"

namespace kvtier {

/// Batches on lanes of the CPU: launch(shape, body) runs a body.
template <typename Launch>
class TeamMachine : public BatchMachine {
 public:
  explicit TeamMachine(Launch launch) : launch_(launch) {}

  std::byte* Allocate(uint64_t bytes) override {
    memory_.emplace_back(static_cast<std::byte*>(::operator new(bytes, kAlign)));
    memset(memory_.back().get(), 0xCD, bytes);
    return memory_.back().get();
  }
  const char* Run(const AnyBatch& batch) override {
    std::visit([this](const auto& args) { RunOne(args); }, batch);
    return nullptr;
  }

 private:
  static constexpr std::align_val_t kAlign{256};
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete(memory, kAlign); }
  };

  void RunOne(const EncodeBatchArgs& args) { RunEncode(args, launch_); }
  void RunOne(const RequantizeBatchArgs& args) { RunRequantize(args, launch_); }
  void RunOne(const DecodeBatchArgs& args) { RunDecode(args, launch_); }
  void RunOne(const AttendBatchArgs& args) { RunAttend(args, launch_); }
  void RunOne(const CutBatchArgs& args) {
    launch_(CutBatchLaunch(args), [args](const auto& team) { CutBatch(team, args); });
  }
  void RunOne(const CombineBatchArgs& args) {
    launch_(CombineBatchLaunch(args), [args](const auto& team) { CombineBatch(team, args); });
  }

  Launch launch_;
  std::vector<std::unique_ptr<std::byte, Free>> memory_;
};

}  // namespace kvtier
