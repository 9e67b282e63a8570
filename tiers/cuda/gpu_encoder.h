#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "kernels/batch.h"
#include "tiers/cuda/checksum.h"
#include "tiers/cuda/gpu_transfers.h"
#include "tiers/image.h"

namespace kvtier {

/// A block whose layers lie in device memory, to become an image in host memory.
struct GpuEncodeOrder {
  BlockIdentity identity;  ///< the block's own, with the nraw and nb that an encoding uses
  /// [layers], raw or kv8, their pointers on the device. They stay as they are until Encode returns.
  std::vector<CodedLayer<const uint8_t>> layers;
  /// [layers]: the bytes of each base, and the checksum that its image states; empty: nobody knows them.
  struct Check {
    uint64_t bytes = 0;
    uint32_t crc = 0;
  };
  std::vector<Check> checks;
  const Codec* codec = nullptr;  ///< of the image: kv8, or one of the plane family; supports the shape
  std::span<std::byte> out;      ///< 64-byte aligned
  /// What became of it. Errors: as RequantizeImage, kFailedPrecondition also for kv8 whose values no encoding
  /// takes (the host would store what it decodes to), and those of the device; other orders go on.
  BuiltImage built = {Status(Code::kInternal, "not encoded"), 0};
};

struct GpuEncoderOptions {
  uint64_t image_bytes = uint64_t{32} << 20;  ///< of device memory for encoded images, twice
  uint32_t layers_per_launch = 4096;
  uint32_t heads_per_launch = 65536;  ///< KV heads of all its layers
};

/// Encodes blocks on the GPU, so that their encoded bytes alone cross the bus: one launch for as many blocks
/// as fit, and while their images come down the next are encoded. Parts and checksums are those of
/// RequantizeImage; stated errors may differ in their last place. The GPU makes the checksums of the sources
/// before it encodes them, from the same memory: what damages a source in the microseconds between is not
/// found. Reading it back for the host to check would cost the bus as much as not encoding here at all.
/// Threads: single-owner.
class GpuEncoder {
 public:
  /// The device outlives it. Errors: of the device.
  static Result<std::unique_ptr<GpuEncoder>> Make(CudaDevice& device, const GpuEncoderOptions& options);
  /// Waits for what is under way.
  ~GpuEncoder();
  /// What it takes of the device's memory.
  static uint64_t DeviceBytes(const GpuEncoderOptions& options);

  /// Gives every order its `built`. Behind what is queued on `stream()`.
  void Encode(std::span<GpuEncodeOrder> orders);

  /// Where kernels run.
  CUstream_st* stream() const { return stream_.get(); }

 private:
  struct Work;
  /// What one launch uses.
  struct Lane {
    PinnedBuffer host_items, host_checks;
    DeviceBuffer items, checks, crcs, heads, images;
    CudaEvent encoded;
    std::vector<Work*> works;  ///< those of the last launch, until they have come down
    uint32_t layers = 0;       ///< that are encoded
    uint32_t checked = 0;
    uint32_t heads_max = 0;
    uint64_t used_bytes = 0;
  };

  GpuEncoder(CudaDevice& device, const GpuEncoderOptions& options) : device_(device), options_(options) {}
  void EncodeAll(std::span<Work> works);
  bool Take(Lane& lane, Work& work) const;
  Status Start(Lane& lane);
  Status QueueChecks(Lane& lane);
  Status QueueLayers(Lane& lane);
  Status Finish(Lane& lane);
  Status Drain();

  CudaDevice& device_;
  const GpuEncoderOptions options_;
  CudaStream stream_;
  std::unique_ptr<GpuTransfers> transfers_;
  std::array<Lane, 2> lanes_;
};

}  // namespace kvtier
