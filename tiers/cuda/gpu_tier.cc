#include "tiers/cuda/gpu_tier.h"

#include <algorithm>
#include <utility>

#include "tiers/cuda/gpu_encoder.h"
#include "tiers/cuda/gpu_worker.h"

namespace kvtier {
namespace {

/// Of the capacity, for images while they are encoded: enough for a launch to be worth it, and no more than a
/// small part.
constexpr uint64_t kMaxEncoderBytes = uint64_t{32} << 20;
constexpr uint64_t kEncoderShare = 16;
/// As many as the blocks of one round have (kMaxGpuJobs), of any but the largest models.
constexpr uint32_t kEncoderLayers = 2048, kEncoderHeads = 8;

class GpuTierImpl final : public GpuTier {
 public:
  GpuTierImpl(std::unique_ptr<CudaDevice> device, const GpuTierOptions& options, Facts facts)
      : options_(options),
        facts_(std::move(facts)),
        device_(std::move(device)),
        arenas_(*device_,
                {.capacity_bytes = facts_.arena_bytes, .concurrent_calls = options.other_threads + 1}) {}
  ~GpuTierImpl() override { Stop(); }

  Status MakeEncoder(const GpuEncoderOptions& options) {
    KVTIER_ASSIGN(std::unique_ptr<GpuEncoder> encoder, GpuEncoder::Make(*device_, options));
    arenas_.EncodeWith(std::move(encoder));
    return Status::Ok();
  }

  Status Start(Work work) override {
    worker_ = std::make_unique<GpuWorker>(GpuWorker::Deps{.device = *device_,
                                                          .arenas = arenas_,
                                                          .jobs = work.jobs,
                                                          .completions = work.completions,
                                                          .metrics = work.metrics},
                                          options_.layer_helpers, std::move(work.on_completion));
    return worker_->Start();
  }
  void Stop() override {
    if (worker_ != nullptr) worker_->Stop();
  }
  Status Usable() const override { return device_->Usable(); }
  Medium& medium() override { return arenas_; }
  TimePoint last_progress() const override { return worker_->last_progress(); }
  const Facts& facts() const override { return facts_; }

 private:
  const GpuTierOptions options_;
  const Facts facts_;
  std::unique_ptr<CudaDevice> device_;
  GpuArenas arenas_;
  std::unique_ptr<GpuWorker> worker_;
};

}  // namespace

Result<std::unique_ptr<GpuTier>> GpuTier::Open(const GpuTierOptions& options, const Clock& clock) {
  KVTIER_ASSIGN(std::unique_ptr<CudaDevice> device, CudaDevice::Make(options.ordinal, clock));
  KVTIER_ASSIGN(const CudaDevice::MemoryInfo memory, device->Memory());
  GpuEncoderOptions encoder;
  encoder.layers_per_launch = kEncoderLayers;
  encoder.heads_per_launch = kEncoderLayers * kEncoderHeads;
  encoder.image_bytes = std::min(kMaxEncoderBytes, options.capacity_bytes / (2 * kEncoderShare));
  const uint64_t encoder_bytes = GpuEncoder::DeviceBytes(encoder);
  if (encoder_bytes >= options.capacity_bytes) {
    return Status(Code::kInvalidArgument,
                  "a tier on a GPU needs more than " + std::to_string(encoder_bytes >> 20) + " MiB");
  }
  GpuTier::Facts facts{.arena_bytes = options.capacity_bytes - encoder_bytes,
                       .free_bytes = memory.free_bytes,
                       .description = "gpu:" + std::to_string(options.ordinal)};
  auto tier = std::make_unique<GpuTierImpl>(std::move(device), options, std::move(facts));
  KVTIER_TRY(tier->MakeEncoder(encoder));
  return std::unique_ptr<GpuTier>(std::move(tier));
}

}  // namespace kvtier
