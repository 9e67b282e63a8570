#include "tiers/cuda/gpu_transfers.h"

#include <algorithm>
#include <cstring>

#include "tiers/place.h"

namespace kvtier {
namespace {

/// Parts in a slot begin where a copy runs at full speed.
constexpr uint64_t kPartAlign = 256;

}  // namespace

Result<std::unique_ptr<GpuTransfers>> GpuTransfers::Make(CudaDevice& device, uint64_t slot_bytes) {
  KVTIER_CHECK(slot_bytes > 0 && slot_bytes % kSlotAlign == 0);
  std::unique_ptr<GpuTransfers> transfers(new GpuTransfers(device, slot_bytes));
  KVTIER_ASSIGN(transfers->stream_, device.MakeStream());
  for (Slot& slot : transfers->slots_) {
    KVTIER_ASSIGN(slot.memory, device.AllocatePinned(slot_bytes));
    KVTIER_ASSIGN(slot.done, device.MakeEvent(EventSharing::kThisProcess));
  }
  return transfers;
}

GpuTransfers::~GpuTransfers() {
  FinishAll(Status::Ok()).IgnoreBecause("a device that does not answer is lost, and keeps its memory");
}

Status GpuTransfers::Upload(std::span<const GpuUpload> parts) {
  Status queued;
  for (const GpuUpload& part : parts) {
    if (queued.ok()) queued = QueueUpload(part);
  }
  return FinishAll(std::move(queued));
}

Status GpuTransfers::Download(std::span<const GpuDownload> parts) {
  Status queued;
  for (const GpuDownload& part : parts) {
    if (queued.ok()) queued = QueueDownload(part);
  }
  return FinishAll(std::move(queued));
}

Status GpuTransfers::QueueUpload(const GpuUpload& part) {
  std::span<const std::byte> left = part.source;
  for (std::byte* target = part.target; !left.empty();) {
    KVTIER_ASSIGN(const std::span<std::byte> room, Reserve(left.size()));
    std::memcpy(room.data(), left.data(), room.size());
    KVTIER_TRY(device_.CopyToDevice(target, room, stream()));
    left = left.subspan(room.size());
    target += room.size();
  }
  return Status::Ok();
}

Status GpuTransfers::QueueDownload(const GpuDownload& part) {
  const std::byte* source = part.source;
  for (std::span<std::byte> left = part.target; !left.empty();) {
    KVTIER_ASSIGN(const std::span<std::byte> room, Reserve(left.size()));
    KVTIER_TRY(device_.CopyToHost(room, source, stream()));
    Slot& slot = slots_[next_];
    slot.deliveries.push_back({.offset = static_cast<uint64_t>(room.data() - slot.memory.data()),
                               .target = left.first(room.size())});
    left = left.subspan(room.size());
    source += room.size();
  }
  return Status::Ok();
}

Result<std::span<std::byte>> GpuTransfers::Reserve(uint64_t bytes) {
  if (slots_[next_].used_bytes == slot_bytes_) KVTIER_TRY(Seal());
  Slot& slot = slots_[next_];
  if (slot.is_under_way) KVTIER_TRY(Finish(slot));
  const uint64_t room = std::min(bytes, slot_bytes_ - slot.used_bytes);
  const std::span<std::byte> reserved = slot.memory.span().subspan(slot.used_bytes, room);
  slot.used_bytes = std::min(AlignUp(slot.used_bytes + room, kPartAlign), slot_bytes_);
  return reserved;
}

Status GpuTransfers::Seal() {
  Slot& slot = slots_[next_];
  if (slot.used_bytes == 0 || slot.is_under_way) return Status::Ok();
  slot.is_under_way = true;
  next_ = (next_ + 1) % slots_.size();
  const Status recorded = device_.Record(slot.done.get(), stream());
  // A wait for this event would end with the round before.
  return recorded.ok() ? recorded : device_.Lose(recorded);
}

Status GpuTransfers::Finish(Slot& slot) {
  const Status waited = device_.WaitFor(slot.done.get());
  for (const Delivery& delivery : slot.deliveries) {
    if (!waited.ok()) break;
    std::memcpy(delivery.target.data(), slot.memory.data() + delivery.offset, delivery.target.size());
  }
  slot.deliveries.clear();  // never later: their targets are the caller's
  // The copies may be under way, and the caller is about to give their memory away.
  if (!waited.ok()) return device_.Lose(waited);
  slot.used_bytes = 0;
  slot.is_under_way = false;
  return Status::Ok();
}

Status GpuTransfers::FinishAll(Status queued) {
  const Status sealed = Seal();
  if (queued.ok()) queued = sealed;
  // The oldest first: the host empties one while the device fills those after it.
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[(next_ + i) % slots_.size()];
    if (!slot.is_under_way) continue;
    const Status finished = Finish(slot);
    if (queued.ok()) queued = finished;
  }
  return queued;
}

}  // namespace kvtier
