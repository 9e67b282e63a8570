#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "tiers/cuda/cuda_device.h"

namespace kvtier {

/// Bytes of any host memory for device memory.
struct GpuUpload {
  std::span<const std::byte> source;
  std::byte* target = nullptr;
};
/// Bytes of device memory for any host memory.
struct GpuDownload {
  const std::byte* source = nullptr;
  std::span<std::byte> target;
};

/// Of one slot, large enough for the bus to run at full speed.
inline constexpr uint64_t kGpuStagingBytes = uint64_t{1} << 20;
inline constexpr size_t kGpuStagingSlots = 4;

/// Moves bytes over the bus through a ring of pinned slots, so that the device copies one while the host
/// fills or empties another. Many small parts share a slot, and one event. Threads: single-owner.
class GpuTransfers {
 public:
  /// The device outlives it. `slot_bytes` is a multiple of 4096. Errors: of the device.
  static Result<std::unique_ptr<GpuTransfers>> Make(CudaDevice& device,
                                                    uint64_t slot_bytes = kGpuStagingBytes);
  /// Waits for what is under way.
  ~GpuTransfers();

  /// All parts, in order, behind what is queued on `stream()`; done when it returns. On an error nothing
  /// touches source and target any more, whose content is then undefined, or the device is lost.
  Status Upload(std::span<const GpuUpload> parts);
  Status Download(std::span<const GpuDownload> parts);

  CUstream_st* stream() const { return stream_.get(); }

 private:
  /// Where a stretch of a slot goes when the device has filled it.
  struct Delivery {
    uint64_t offset = 0;
    std::span<std::byte> target;
  };
  struct Slot {
    PinnedBuffer memory;
    CudaEvent done;
    bool is_under_way = false;
    uint64_t used_bytes = 0;
    std::vector<Delivery> deliveries;
  };

  GpuTransfers(CudaDevice& device, uint64_t slot_bytes) : device_(device), slot_bytes_(slot_bytes) {}
  /// Room for up to `bytes` in a slot that is free, and where it begins. Shorter where the slot ends.
  Result<std::span<std::byte>> Reserve(uint64_t bytes);
  Status QueueUpload(const GpuUpload& part);
  Status QueueDownload(const GpuDownload& part);
  /// Nothing more goes into the slot that is being filled.
  Status Seal();
  /// Waits for a slot, and delivers what it holds.
  Status Finish(Slot& slot);
  Status FinishAll(Status queued);

  CudaDevice& device_;
  const uint64_t slot_bytes_;
  CudaStream stream_;
  std::array<Slot, kGpuStagingSlots> slots_;
  size_t next_ = 0;  ///< the slot that is being filled
};

}  // namespace kvtier
