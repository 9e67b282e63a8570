#include "client/src/leased_image.h"

#include <utility>

#include "client/src/query.h"

namespace kvtier::client {

Status Torn() {
  return Status(Code::kStale, "the slot was given away while it was read");
}

Result<std::shared_ptr<CheckedBlock>> CheckBlock(std::span<const std::byte> bytes,
                                                 const BlockIdentity& expected, const SlotGuard& guard) {
  if (!guard.HoldsBefore()) return Torn();
  Result<ImageView> image = ParseImage(bytes);
  // A slot that changes hands can look like anything: that it is stale comes first.
  if (!guard.HoldsAfter()) return Torn();
  KVTIER_TRY(image.status());
  KVTIER_TRY(MatchIdentity(*image, expected));
  return std::make_shared<CheckedBlock>(std::move(*image));
}

Result<LeasedImage> OpenBlock(Lease& lease, size_t index) {
  const LeasedBlock& block = lease.blocks[index];
  KVTIER_TRY(lease.CheckAndRenew(SteadyClock().Now()));
  LeasedImage opened{.arena = lease.connection->arenas().Find(block.arena),
                     .block = nullptr,
                     .slot = block.slot,
                     .epoch = block.slot_epoch};
  if (opened.arena == nullptr) return Status(Code::kStale, "the arena of the block was given back");
  KVTIER_ASSIGN(const std::span<const std::byte> bytes,
                opened.arena->At(block.slot, block.offset, block.bytes));
  opened.block = lease.checked.Find(index, bytes.data());
  if (opened.block == nullptr) {
    const auto tokens = static_cast<uint16_t>(block.info.tokens);
    const BlockIdentity expected = {.key = KeyOf(block.info.key),
                                    .name_space = lease.model->name_space,
                                    .first_position = block.info.position,
                                    .shape = ShapeOf(lease.model->spec, block.info.position, tokens)};
    KVTIER_ASSIGN(opened.block, CheckBlock(bytes, expected, opened.guard()));
    lease.checked.Set(index, opened.block);
  }
  return opened;
}

}  // namespace kvtier::client
