#pragma once

#include <atomic>
#include <stdexcept>
#include <vector>

#include "tiers/medium.h"

namespace kvtier {

/// A Medium that fails its n-th call of one kind and passes all others on. Threads: as the medium behind it;
/// Arm before use.
class FaultyMedium final : public Medium {
 public:
  enum class Call : uint8_t { kRead, kBeginWrite, kFinishWrite };
  enum class Fault : uint8_t {
    kError,    ///< kUnavailable, as an I/O error gives
    kThrow,    ///< an exception, as a failed allocation gives
    kShort,    ///< kRead: half of the bytes
    kFlipBit,  ///< kRead: one bit of the bytes, at `flip_byte`; what the medium holds stays as it is
  };

  explicit FaultyMedium(Medium& medium) : medium_(medium) {}

  /// The `nth` (from 1) call of this kind from now on has the fault.
  void Arm(Call call, Fault fault, int nth = 1, uint64_t flip_byte = 0) {
    call_ = call;
    fault_ = fault;
    flip_byte_ = flip_byte;
    countdown_ = nth;
  }
  bool fired() const { return countdown_ <= 0; }

  Result<std::span<const std::byte>> Read(const Place& place, BlockIo& io, AlignedBuffer& bounce) override {
    KVTIER_ASSIGN(const std::span<const std::byte> bytes, medium_.Read(place, io, bounce));
    if (!Fires(Call::kRead)) return bytes;
    if (fault_ == Fault::kShort) return bytes.first(bytes.size() / 2);
    if (fault_ != Fault::kFlipBit) return Fail();
    flipped_.assign(bytes.begin(), bytes.end());
    flipped_[flip_byte_] ^= std::byte{1};
    return std::span<const std::byte>(flipped_);
  }
  Result<std::span<std::byte>> BeginWrite(const Place& place, AlignedBuffer& bounce) override {
    if (Fires(Call::kBeginWrite)) return Fail();
    return medium_.BeginWrite(place, bounce);
  }
  Status FinishWrite(const Place& place, BlockIo& io, std::span<std::byte> built, uint64_t image_bytes,
                     const RecordMeta& meta) override {
    if (Fires(Call::kFinishWrite)) return Fail();
    return medium_.FinishWrite(place, io, built, image_bytes, meta);
  }

 private:
  bool Fires(Call call) { return call == call_ && --countdown_ == 0; }
  Status Fail() const {
    if (fault_ == Fault::kThrow) throw std::runtime_error("injected");
    return Status(Code::kUnavailable, "injected");
  }

  Medium& medium_;
  Call call_ = Call::kRead;
  Fault fault_ = Fault::kError;
  uint64_t flip_byte_ = 0;
  std::atomic<int> countdown_{0};
  std::vector<std::byte> flipped_;
};

}  // namespace kvtier
