#include <algorithm>

#include "tests/engine/simulation.h"
#include "tiers/cxl_format.h"

namespace kvtier {

void Simulation::OnPutReply(const std::string& tenant, const std::vector<SentBlock>& blocks, uint64_t sent,
                            const Result<PutReply>& reply) {
  if (reply.ok() && reply->blocks.size() != blocks.size())
    return Violate("a put reply has another number of blocks");
  for (size_t i = 0; i < blocks.size(); ++i) {
    KeyRecord& record = keys_[{tenant, blocks[i].key}];
    PutRecord& put = record.puts.at(blocks[i].owner);
    const Code code = reply.ok() ? reply->blocks[i].code : reply.status().code();
    put.state = code == Code::kOk ? PutState::kStored : PutState::kNotStored;
    const bool present = code == Code::kOk || code == Code::kAlreadyExists;
    if (code == Code::kOk) {
      put.stored_by = commands_;
      if (reply->blocks[i].precision < put.floor) Violate("a block was stored below its floor");
    }
    if (present && options_.roomy && !blocks[i].is_tail && sent > removed_any_) record.must_hit = true;
    const bool refused = code == Code::kInvalidArgument;
    if (options_.roomy && !blocks[i].is_tail && !refused && !present && sent > removed_any_) {
      Violate("a put failed in a roomy ladder: " + std::string(CodeName(code)));
    }
  }
}

void Simulation::OnTicketReply(const std::string& tenant, const std::vector<SentBlock>& blocks,
                               const Result<PutReply>& reply) {
  if (!reply.ok()) return;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const Code code = reply->blocks[i].code;
    const bool durable = code == Code::kOk || code == Code::kAlreadyExists;
    KeyRecord& record = keys_[{tenant, blocks[i].key}];
    if (!durable || !options_.roomy || blocks[i].is_tail) continue;
    if (record.puts.at(blocks[i].owner).sent > removed_any_) record.must_survive = true;
  }
}

size_t Simulation::MustHit(const std::string& tenant, const std::vector<Key>& keys) const {
  size_t run = 0;
  while (run < keys.size()) {
    const auto found = keys_.find({tenant, keys[run]});
    if (found == keys_.end() || !found->second.must_hit) break;
    ++run;
  }
  return run;
}

void Simulation::OnAcquireReply(const std::string& tenant, SessionId session, uint64_t lease, uint64_t sent,
                                const std::vector<Key>& keys, Precision least,
                                const Result<AcquireReply>& reply) {
  const bool open =
      std::any_of(clients_.begin(), clients_.end(), [&](const Client& c) { return c.id == session; });
  if (!reply.ok() || !open) return;
  if (reply->run.size() > keys.size()) return Violate("an acquire has more blocks than keys");
  if (reply->run.size() < keys.size() && reply->stopped_by == Code::kOk) {
    Violate("an acquire is shorter than asked for without a reason");
  }
  for (size_t i = 0; i < reply->run.size(); ++i) {
    CheckAcquired(tenant, session, sent, keys[i], reply->run[i], least);
  }
  for (const AcquiredBlock& tail : reply->tails) CheckAcquired(tenant, session, sent, tail.key, tail, least);
  acquired_ += reply->run.size();
  if (violation_ || released_.contains({session.value, lease})) return;
  HeldLease held{.session = session, .expires = reply->expires, .blocks = {}};
  for (const auto* blocks : {&reply->run, &reply->tails}) {
    for (const AcquiredBlock& block : *blocks) {
      const Place place = harness_->PlaceIn(block.place);
      read_in_place_ += place != block.place;
      held.blocks.emplace_back(place, harness_->fake().At(place)->owner);
    }
  }
  leases_[{session.value, lease}] = std::move(held);
}

void Simulation::CheckAcquired(const std::string& tenant, SessionId session, uint64_t sent, const Key& key,
                               const AcquiredBlock& block, Precision least) {
  const auto image = harness_->fake().At(harness_->PlaceIn(block.place));
  if (!image) return Violate("an acquired place holds no image of its epoch");
  if (block.key != key || image->key != key) return Violate("an acquired block is another block");
  if (image->codec != block.codec) return Violate("an acquired block has another codec than said");
  if (block.precision < least) return Violate("an acquired block is below the asked precision");
  if (!harness_->mapped(session).contains(block.place.container)) {
    Violate("a block was handed out in an arena that the session does not have");
  }
  const KeyRecord& record = keys_.at({tenant, key});
  const auto put = record.puts.find(image->owner);
  if (put == record.puts.end()) return Violate("an acquired block has the bytes of somebody else");
  if (put->second.state == PutState::kNotStored) Violate("a block that was not stored can be read");
  if (put->second.sent < record.removed_by && record.removed_by < sent)
    Violate("a removed block can be read");
  if (put->second.sent < record.removed_for_good && record.removed_for_good < sent)
    Violate("a block whose removal was answered is back");
  if (block.precision < put->second.floor) Violate("an acquired block is below its floor");
  for (const auto& [owner, other] : record.puts) {
    const bool replaced = other.sent > put->second.sent && other.stored_by < sent;
    if (replaced) Violate("an acquired block has bytes that were replaced");
  }
}

void Simulation::CheckLeases() {
  const TimePoint now = harness_->clock().Now();
  std::erase_if(leases_, [now](const auto& lease) { return lease.second.expires <= now; });
  for (const auto& [name, lease] : leases_) {
    for (const auto& [place, owner] : lease.blocks) {
      const auto image = harness_->fake().At(place);
      if (!image || image->owner != owner) return Violate("the bytes of a block under a lease changed");
    }
  }
}

void Simulation::CheckArenas() {
  std::map<TierId, uint64_t> bytes;
  for (const auto& [id, arena] : harness_->fake().arenas())
    bytes[arena.tier] += ArenaBytes(arena.slots, arena.slot_bytes);
  for (const auto& [tier, used] : bytes) {
    if (used > harness_->capacity(tier)) Violate("the arenas of a tier are larger than the tier");
  }
  for (const Client& client : clients_) {
    for (const uint32_t arena : harness_->mapped(client.id)) {
      if (cxl_ && arena == StoreArenaId(*cxl_).value) continue;
      const auto found = harness_->fake().arenas().find(arena);
      if (found == harness_->fake().arenas().end()) {
        Violate("an arena was destroyed while a session had it mapped");
      } else if (found->second.tenant != harness_->tenant(client.id)) {
        Violate("a session has an arena of another tenant");
      }
    }
  }
}

uint64_t Simulation::StoredBlocks() {
  uint64_t blocks = 0;
  const Result<std::vector<ModelStats>> models = harness_->Call<std::vector<ModelStats>>(ListModels{});
  for (const ModelStats& model : *models) blocks += model.blocks;
  return blocks;
}

uint64_t Simulation::LeftLadder() {
  uint64_t left = 0;
  for (const TierMetrics& tier : harness_->metrics().tier) {
    left += tier.evicted_capacity.Get() + tier.evicted_removed.Get() + tier.evicted_corrupt.Get() +
            tier.evicted_superseded.Get();
  }
  return left;
}

void Simulation::CheckConservation() {
  const Metrics& metrics = harness_->metrics();
  const uint64_t ended = metrics.puts_stored.Get() + metrics.puts_present.Get() +
                         metrics.puts_rejected.Get() + metrics.puts_dropped.Get();
  if (metrics.puts_offered.Get() != ended)
    Violate("puts offered are not stored, present, rejected or dropped");
  if (stored_at_boot_ + metrics.puts_stored.Get() != StoredBlocks() + LeftLadder()) {
    Violate("blocks stored are neither there nor counted as gone");
  }
  if (metrics.leases_granted.Get() !=
      metrics.leases_released.Get() + metrics.leases_expired.Get() + metrics.leases_orphaned.Get()) {
    Violate("leases granted are not released, expired or orphaned");
  }
}

void Simulation::CheckMustHit() {
  for (const auto& [name, record] : keys_) {
    if (!record.must_hit || violation_) continue;
    const auto client = std::find_if(clients_.begin(), clients_.end(),
                                     [&name = name](const Client& c) { return c.tenant == name.first; });
    if (client == clients_.end()) continue;
    bool hit = false;
    for (const ModelId model : client->models) {
      hit |= harness_->LookupKeys(client->id, model, {name.second})->run.size() == 1;
    }
    if (!hit) Violate("an acknowledged block is gone");
  }
}

}  // namespace kvtier
