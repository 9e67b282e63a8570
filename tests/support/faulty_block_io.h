#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "tiers/base/block_io.h"

namespace kvtier {

/// A BlockIo that does what a test arranged to the n-th request of an operation, counted from 1 since
/// construction. Requests of a batch run one by one, in order, so that the count is the same in every run.
/// Threads: single-owner.
class FaultyBlockIo final : public BlockIo {
 public:
  using Op = IoRequest::Op;

  explicit FaultyBlockIo(BlockIo& inner) : inner_(inner) {}

  /// Nothing is moved; the request reports `status`.
  void FailNth(Op op, uint64_t n, Status status) { At(op, n).status = std::move(status); }
  /// From the n-th on, until Heal().
  void FailFrom(Op op, uint64_t n, Status status) {
    FailNth(op, n, std::move(status));
    faults_.back().last = UINT64_MAX;
  }
  /// Only the first `bytes` are moved (a multiple of 4096 for O_DIRECT); the request reports kUnavailable.
  void ShortenNth(Op op, uint64_t n, uint64_t bytes) { At(op, n).moved_bytes = bytes; }
  /// Runs `action` instead of going on at once: to wait, or to die.
  void BeforeNth(Op op, uint64_t n, std::function<void()> action) { At(op, n).before = std::move(action); }
  void AfterNth(Op op, uint64_t n, std::function<void()> action) { At(op, n).after = std::move(action); }
  /// Forgets every fault.
  void Heal() { faults_.clear(); }

  /// Requests of each submission so far.
  const std::vector<size_t>& submissions() const { return submissions_; }
  uint64_t count(Op op) const { return counts_[static_cast<size_t>(op)]; }

  Status RunBatch(std::span<IoRequest> requests, TimePoint deadline) override {
    Status first;
    submissions_.push_back(requests.size());
    for (IoRequest& request : requests) {
      RunOne(request, deadline);
      if (first.ok()) first = request.status;
    }
    return first;
  }
  const char* name() const override { return inner_.name(); }

 private:
  struct Fault {
    Op op;
    uint64_t first, last;
    std::optional<Status> status;
    std::optional<uint64_t> moved_bytes;
    std::function<void()> before, after;
  };

  Fault& At(Op op, uint64_t n) {
    faults_.push_back(
        {.op = op, .first = n, .last = n, .status = {}, .moved_bytes = {}, .before = {}, .after = {}});
    return faults_.back();
  }

  void RunOne(IoRequest& request, TimePoint deadline) {
    const uint64_t n = ++counts_[static_cast<size_t>(request.op)];
    std::vector<Fault> hits;
    for (const Fault& fault : faults_) {
      if (fault.op == request.op && fault.first <= n && n <= fault.last) hits.push_back(fault);
    }
    const Fault* refused = nullptr;
    for (const Fault& fault : hits) {
      if (fault.before) fault.before();
      if (fault.moved_bytes.has_value()) {
        IoRequest part = request;
        part.memory = request.memory.first(std::min<size_t>(*fault.moved_bytes, request.memory.size()));
        if (!part.memory.empty())
          inner_.RunBatch({&part, 1}, deadline).IgnoreBecause("the request fails anyway");
        request.status = Status(Code::kUnavailable, "injected: short");
        refused = &fault;
      }
      if (fault.status.has_value()) {
        request.status = *fault.status;
        refused = &fault;
      }
    }
    if (refused == nullptr) inner_.RunBatch({&request, 1}, deadline).IgnoreBecause("the request carries it");
    for (const Fault& fault : hits) {
      if (fault.after) fault.after();
    }
  }

  BlockIo& inner_;
  std::vector<Fault> faults_;
  std::vector<size_t> submissions_;
  uint64_t counts_[3] = {};
};

}  // namespace kvtier
