#include "client/engines/llamacpp/block_fetch.h"

#include <string>
#include <utility>

namespace kvtier::llamacpp {
namespace {

/// The end of a ticket that was cancelled or has been waited for.
constexpr uint32_t kEndedMs = 1;

}  // namespace

Status StatusOf(kvtier_code code, const char* call) {
  if (code == KVTIER_OK) return Status::Ok();
  return Status(static_cast<Code>(code), std::string(call) + ": " + kvtier_last_error());
}

Result<BlockFetch> BlockFetch::Start(const api::Client& client, api::Lease& lease, size_t index,
                                     SeqStateBuffer& buffer, HeadShape heads) {
  void* base = nullptr;
  const kvtier_view view = DestinationRows(buffer, heads, &base);
  const api::Outcome<kvtier_ticket> ticket = lease.FetchAsync(index, 1, view);
  KVTIER_TRY(StatusOf(ticket.code(), "fetch"));
  return BlockFetch(client, *ticket, buffer.shape().layers - 1);
}

BlockFetch::BlockFetch(BlockFetch&& other) noexcept
    : client_(other.client_), ticket_(std::exchange(other.ticket_, 0)), last_layer_(other.last_layer_) {}

BlockFetch& BlockFetch::operator=(BlockFetch&& other) noexcept {
  BlockFetch taken(std::move(other));
  std::swap(client_, taken.client_);
  std::swap(ticket_, taken.ticket_);
  std::swap(last_layer_, taken.last_layer_);
  return *this;
}

BlockFetch::~BlockFetch() {
  if (ticket_ == 0) return;
  client_->Cancel(ticket_);
  // Whatever it answers, the ticket has ended, and is forgotten with this.
  client_->Wait(ticket_, {}, kEndedMs);
}

Result<kvtier_block_result> BlockFetch::Wait(uint32_t timeout_ms) const {
  kvtier_block_result result{};
  KVTIER_TRY(StatusOf(client_->WaitLayer(ticket_, last_layer_, {&result, 1}, timeout_ms), "fetch"));
  return result;
}

}  // namespace kvtier::llamacpp
