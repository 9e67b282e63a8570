#include "tests/engine/simulation.h"

#include <algorithm>

#include "tiers/cxl_format.h"

namespace kvtier {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kChains = 6;
constexpr uint64_t kDepth = 10;
constexpr size_t kMaxClients = 5;
constexpr uint16_t kTailTokens[] = {8, 16, 40};
constexpr uint32_t kStepsBetweenChecks = 50;

}  // namespace

Simulation::Simulation(SimulationOptions options) : options_(options), rng_(options.seed * 2654435761u + 1) {
  const uint64_t scale = options_.roomy ? 64 : 1;
  EngineHarness::Options harness;
  const uint64_t shape = Random(5);
  const CodecId hot = Chance(30) ? CodecId::kKv8 : CodecId::kRaw16;
  harness.tiers.push_back(HostTier("hot", scale * (128 + 64 * Random(6)) * kKiB, hot));
  if (shape > 0)
    harness.tiers.push_back(HostTier("warm", scale * (96 + 32 * Random(6)) * kKiB, CodecId::kKv4p));
  if (shape > 1) {
    harness.tiers.push_back(ColdTier("cold", scale * (160 + 64 * Random(6)) * kKiB,
                                     scale * (24 + 8 * Random(3)) * kKiB, CodecId::kKv2p));
    TierOptions& cold = harness.tiers.back();
    cold.scrub_bytes_per_second = Random(3) * kKiB * kKiB;
    cold.keep_tails = Chance(70);
    // Other random numbers than before would be other runs for no reason.
    cold.rewrite_share = options_.seed % 3 == 1 ? 0.5 : 0;
    if (!options_.roomy && options_.seed % 4 == 3) {
      cold.admission = {.by_frequency = true, .write_bytes_per_day = 24 * kKiB * kKiB};
    }
  }
  if (options_.mapped_store) {
    TierOptions cxl = ColdTier("cxl", kCxlMetaBytes + (6 + Random(4)) * 32 * kKiB, 32 * kKiB, CodecId::kKv2p);
    cxl.kind = MediumKind::kCxl;
    cxl.tenant = "uid:1";
    cxl.rewrite_share = Chance(50) ? 0.5 : 0;
    const auto nvme = std::ranges::find(harness.tiers, MediumKind::kNvme, &TierOptions::kind);
    cxl_ = TierId{static_cast<uint8_t>(nvme - harness.tiers.begin())};
    harness.tiers.insert(nvme, std::move(cxl));
  }
  if (options_.gpu) {
    const uint64_t bytes = scale * (128 + 64 * Random(6)) * kKiB;
    // In place of the tier in host memory, or above it.
    if (shape > 0 && Chance(50)) harness.tiers.erase(harness.tiers.begin());
    harness.tiers.insert(harness.tiers.begin(), TierOnGpu("gpu", bytes, hot));
  }
  harness.limits.lease_share = 0.25 + 0.1 * static_cast<double>(Random(6));
  harness.limits.jobs_in_flight = static_cast<uint32_t>(2 + Random(40));
  harness.limits.default_lease_ttl = std::chrono::milliseconds(50);
  harness.unmap_at_once = Chance(70);
  harness_ = std::make_unique<EngineHarness>(std::move(harness));
  harness_->fake().publish_failed_moves = options_.publish_failed_moves;
  harness_->fake().has_raw_layer = [](uint64_t owner) { return owner % 11 == 0; };
  fault_percent_ = options_.roomy ? 0 : static_cast<uint32_t>(Random(3) * 4);
  if (options_.publish_failed_moves) fault_percent_ = 10;
  InstallFaults();
  specs_.push_back(TinyModel("alpha"));
  specs_.push_back(TinyModel("beta"));
  specs_[1].tokens_per_block = 128;
  if (Chance(30)) specs_[1].dtype = DType::kE4m3;
}

Simulation::~Simulation() = default;

void Simulation::InstallFaults() {
  const auto draw = [this](bool may_be_corrupt) -> std::optional<Status> {
    if (!Chance(fault_percent_)) return std::nullopt;
    switch (Random(may_be_corrupt ? 4 : 3)) {
      case 0:
        return Status(Code::kUnavailable, "injected");
      case 1:
        return Status(Code::kResourceExhausted, "injected");
      case 2:
        return Status(Code::kInternal, "injected");
      default:
        return Status(Code::kDataLoss, "injected");
    }
  };
  harness_->fake().job_fault = [draw](const Job& job) -> std::optional<Status> {
    if (std::holds_alternative<DestroyArenaJob>(job.work)) return std::nullopt;  // cannot fail
    const auto* move = std::get_if<MoveJob>(&job.work);
    return draw((move != nullptr && !move->order.staged) || std::holds_alternative<VerifyJob>(job.work));
  };
  harness_->fake().cold_fault = [draw](const ColdJob&) { return draw(false); };
  const auto tail_fault = [this](const Place&) { return Chance(fault_percent_); };
  harness_->fake().tail_write_fault = tail_fault;
  harness_->fake().tail_read_fault = tail_fault;
}

void Simulation::Violate(std::string what) {
  if (!violation_) violation_ = std::move(what);
}

template <typename T>
Reply<T> Simulation::Once(std::function<void(const Result<T>&)> then) {
  ++pending_replies_;
  auto answered = std::make_shared<bool>(false);
  return [this, answered, then = std::move(then), generation = generation_](Result<T> result) {
    if (generation != generation_) return;
    if (*answered) Violate("a command was answered twice");
    *answered = true;
    --pending_replies_;
    then(result);
  };
}

std::optional<std::string> Simulation::Run() {
  for (uint32_t step = 0; step < options_.steps && !violation_; ++step) {
    Act();
    CheckLeases();
    if (step % kStepsBetweenChecks == 0) {
      CheckArenas();
      if (!options_.publish_failed_moves) harness_->engine().CheckInvariants();
    }
  }
  if (!violation_) Finish();
  return violation_;
}

void Simulation::LoseGpuSometimes() {
  constexpr uint64_t kStepsPerLoss = 8000;
  if (!options_.gpu || options_.roomy || Random(kStepsPerLoss) > 0) return;
  lost_gpu_ = true;
  harness_->fake().LoseGpu(TierId{0});
}

void Simulation::Act() {
  LoseGpuSometimes();
  if (clients_.empty()) return OpenClient();
  const uint64_t action = Random(100);
  if (action < 40) {
    SendRandom();
  } else if (action < 70) {
    harness_->StepOnly();
    harness_->HoldJobs();
  } else if (action < 92) {
    RunOneJob();
  } else if (action < 99) {
    harness_->clock().Advance(std::chrono::microseconds(Random(3000)));
  } else {
    harness_->clock().Advance(std::chrono::milliseconds(Random(options_.roomy ? 20 : 15000)));
  }
}

void Simulation::RunOneJob() {
  if (harness_->held() == 0) return;
  size_t index = Random(harness_->held());
  // The committer works in order; workers do not.
  if (!harness_->HeldIsHost(index)) {
    for (index = 0; harness_->HeldIsHost(index); ++index) continue;
  }
  harness_->RunHeld(index);
}

void Simulation::SendRandom() {
  if (harness_->commands_queued() > 64) return;
  Client& client = RandomClient();
  const uint64_t kind = Random(100);
  if (kind < 34) return SendPut(client);
  if (kind < 60) return SendAcquire(client);
  if (kind < 75) return SendRelease(client);
  if (kind < 84) return SendLookup(client);
  if (kind < 88) return SendRemove(client);
  if (kind < 92) return SendPrefetch(client);
  if (kind < 95) return SendWait(client);
  if (kind < 97) return SendAdmin();
  if (kind == 97 && clients_.size() < kMaxClients) return OpenClient();
  if (kind == 98 && Chance(30)) return CloseClient();
  if (kind == 99 && Chance(5)) return Restart();
}

Key Simulation::KeyOf(const std::string& tenant, size_t model, uint64_t chain, uint64_t depth,
                      uint16_t tokens) const {
  return MakeKey(std::hash<std::string>{}(tenant) + ((model * kChains + chain) * 1000 + depth) * 1000 +
                 tokens);
}

void Simulation::OpenClient() {
  Client client;
  client.tenant = Chance(50) ? "uid:1" : "uid:2";
  client.id = harness_->Open(next_session_++, client.tenant);
  for (const ModelSpec& spec : specs_) client.models.push_back(harness_->Register(client.id, spec));
  // Not all of them: an older library asks for arenas.
  if (cxl_ && client.tenant == "uid:1" && Chance(80)) harness_->MapStore(client.id, *cxl_);
  clients_.push_back(std::move(client));
}

void Simulation::CloseClient() {
  const size_t index = Random(clients_.size());
  const SessionId id = clients_[index].id;
  std::erase_if(leases_, [id](const auto& lease) { return lease.first.first == id.value; });
  harness_->Forget(id);
  harness_->Send(CloseSession{id, Once<Done>([](const auto&) {})});
  clients_.erase(clients_.begin() + static_cast<ptrdiff_t>(index));
}

void Simulation::SendPut(Client& client) {
  const size_t model = Random(specs_.size());
  const ModelSpec& spec = SpecOf(model);
  const uint64_t chain = Random(kChains);
  uint64_t depth = Random(kDepth);
  Put put;
  put.session = client.id;
  put.model = client.models[model];
  put.ticket = TicketId{next_lease_++};
  put.durability = harness_->has_cold() && Chance(25) ? Durability::kDurable : Durability::kMemory;
  if (Chance(10)) put.floor = Chance(50) ? Precision::kInt4 : Precision::kK4V2;
  put.priority = static_cast<uint8_t>(Random(4) * 64);
  if (!options_.roomy && Chance(5)) put.ttl = std::chrono::milliseconds(20);
  ++commands_;
  std::vector<SentBlock> sent;
  for (uint64_t left = 1 + Random(4); left > 0 && depth < kDepth; --left, ++depth) {
    PutBlock block;
    const bool is_tail = left == 1 && Chance(30);
    block.tokens = is_tail ? kTailTokens[Random(3)] : static_cast<uint16_t>(spec.tokens_per_block);
    block.key = KeyOf(client.tenant, model, chain, depth, block.tokens);
    const auto full = static_cast<uint16_t>(spec.tokens_per_block);
    block.parent = KeyOf(client.tenant, model, chain, depth == 0 ? kDepth + 1 : depth - 1, full);
    block.first_position = depth * spec.tokens_per_block;
    const uint64_t owner = next_owner_++;
    block.source = OwnedSource(spec, block.tokens, owner);
    if (!is_tail && Chance(50)) {
      for (const uint16_t tokens : kTailTokens) {
        block.supersedes.push_back(KeyOf(client.tenant, model, chain, depth, tokens));
      }
    }
    if (Chance(2)) block.first_position += 1;  // refused
    KeyRecord& record = keys_[{client.tenant, block.key}];
    record.puts[owner] = {.sent = commands_, .floor = put.floor};
    sent.push_back({block.key, owner, is_tail});
    put.blocks.push_back(std::move(block));
  }
  const uint64_t sent_by = commands_;
  put.reply = Once<PutReply>([this, tenant = client.tenant, sent, sent_by](const Result<PutReply>& reply) {
    OnPutReply(tenant, sent, sent_by, reply);
  });
  if (put.durability == Durability::kDurable) client.tickets.emplace_back(put.ticket.value, sent);
  harness_->Send(std::move(put), std::chrono::milliseconds(options_.roomy ? 60000 : 1 + Random(200)));
}

void Simulation::SendAcquire(Client& client) {
  const size_t model = Random(specs_.size());
  const uint64_t chain = Random(kChains);
  const auto full = static_cast<uint16_t>(SpecOf(model).tokens_per_block);
  Acquire acquire;
  acquire.session = client.id;
  acquire.model = client.models[model];
  acquire.lease = LeaseId{next_lease_++};
  uint64_t depth = Chance(70) ? 0 : Random(kDepth);
  acquire.parent = KeyOf(client.tenant, model, chain, depth == 0 ? kDepth + 1 : depth - 1, full);
  for (uint64_t left = Random(kDepth) + 1; left > 0 && depth < kDepth; --left, ++depth) {
    acquire.keys.push_back(KeyOf(client.tenant, model, chain, depth, full));
  }
  acquire.want_tails = Chance(30);
  if (Chance(10)) acquire.min_precision = Precision::kInt4;
  if (Chance(20)) acquire.max_block_bytes = 1 + Random(8 * kKiB);
  acquire.ttl = std::chrono::milliseconds(1 + Random(200));
  const uint64_t lease = acquire.lease.value;
  client.leases.push_back(lease);
  ++commands_;
  acquire.reply = Once<AcquireReply>([this, tenant = client.tenant, session = client.id, lease,
                                      sent = commands_, keys = acquire.keys,
                                      least = acquire.min_precision](const Result<AcquireReply>& reply) {
    OnAcquireReply(tenant, session, lease, sent, keys, least, reply);
  });
  harness_->Send(std::move(acquire), std::chrono::milliseconds(1 + Random(100)));
}

void Simulation::SendLookup(Client& client) {
  const size_t model = Random(specs_.size());
  const auto full = static_cast<uint16_t>(SpecOf(model).tokens_per_block);
  Lookup lookup;
  lookup.session = client.id;
  lookup.model = client.models[model];
  const uint64_t chain = Random(kChains);
  for (uint64_t depth = 0; depth < kDepth; ++depth) {
    lookup.keys.push_back(KeyOf(client.tenant, model, chain, depth, full));
  }
  ++commands_;
  lookup.reply =
      Once<LookupReply>([this, tenant = client.tenant, keys = lookup.keys, sent = commands_,
                         must = MustHit(client.tenant, lookup.keys)](const Result<LookupReply>& reply) {
        if (!reply.ok() || sent <= removed_any_) return;
        if (reply->run.size() < must) Violate("a lookup missed a block that was acknowledged");
      });
  harness_->Send(std::move(lookup), std::chrono::seconds(60));
}

void Simulation::SendRelease(Client& client) {
  if (client.leases.empty()) return;
  const size_t index = Random(client.leases.size());
  const uint64_t lease = client.leases[index];
  if (!Chance(10))
    client.leases.erase(client.leases.begin() + static_cast<ptrdiff_t>(index));  // else once more
  leases_.erase({client.id.value, lease});
  released_.insert({client.id.value, lease});
  std::vector<Key> damaged;
  const size_t model = Random(specs_.size());
  for (uint64_t chain = Random(kChains), depth = 0; Chance(20) && depth < kDepth; ++depth) {
    damaged.push_back(KeyOf(client.tenant, model, chain, depth, specs_[model].tokens_per_block));
  }
  harness_->Send(Release{client.id, LeaseId{lease}, std::move(damaged), Once<Done>([](const auto&) {})});
}

void Simulation::SendRemove(Client& client) {
  const size_t model = Random(specs_.size());
  Remove remove;
  remove.session = client.id;
  remove.model = client.models[model];
  const bool all = Chance(3);
  ++commands_;
  for (uint64_t chain = Random(kChains), depth = 0; !all && depth < kDepth; ++depth) {
    if (!Chance(25)) continue;
    remove.keys.push_back(
        KeyOf(client.tenant, model, chain, depth, static_cast<uint16_t>(SpecOf(model).tokens_per_block)));
  }
  if (!all && remove.keys.empty()) return;
  for (const Key& key : remove.keys) keys_[{client.tenant, key}].removed_by = commands_;
  // Clearing a namespace takes a while: what is put meanwhile may go as well.
  clearing_ += all;
  const auto forget = [this, tenant = client.tenant, keys = remove.keys](const auto&) {
    removed_any_ = clearing_ > 0 ? UINT64_MAX : commands_;
    for (auto& [name, record] : keys_) {
      const bool named = keys.empty() || std::find(keys.begin(), keys.end(), name.second) != keys.end();
      if (name.first == tenant && named) record.must_hit = record.must_survive = false;
    }
  };
  forget(0);
  remove.reply = Once<uint64_t>([this, forget, all, tenant = client.tenant, keys = remove.keys,
                                 sent = commands_](const Result<uint64_t>& result) {
    clearing_ -= all;
    forget(0);
    if (!result.ok()) return;
    for (const Key& key : keys) keys_[{tenant, key}].removed_for_good = sent;
  });
  harness_->Send(std::move(remove), std::chrono::seconds(60));
}

void Simulation::SendPrefetch(Client& client) {
  const size_t model = Random(specs_.size());
  Prefetch prefetch;
  prefetch.session = client.id;
  prefetch.model = client.models[model];
  prefetch.ticket = TicketId{next_lease_++};
  prefetch.target = TierId{static_cast<uint8_t>(Random(2))};
  const uint64_t chain = Random(kChains);
  for (uint64_t depth = 0; depth < kDepth; ++depth) {
    prefetch.keys.push_back(
        KeyOf(client.tenant, model, chain, depth, static_cast<uint16_t>(SpecOf(model).tokens_per_block)));
  }
  const TicketId ticket = prefetch.ticket;
  prefetch.reply = Once<uint32_t>([](const auto&) {});
  harness_->Send(std::move(prefetch));
  if (Chance(50)) harness_->Send(Cancel{client.id, ticket, Once<Done>([](const auto&) {})});
}

void Simulation::SendWait(Client& client) {
  if (client.tickets.empty()) return;
  const auto ticket = client.tickets.back().first;
  const auto blocks = client.tickets.back().second;
  client.tickets.pop_back();
  const Reply<PutReply> reply =
      Once<PutReply>([this, tenant = client.tenant, blocks](const Result<PutReply>& result) {
        OnTicketReply(tenant, blocks, result);
      });
  harness_->Send(WaitTicket{client.id, TicketId{ticket}, reply}, std::chrono::milliseconds(1 + Random(500)));
}

void Simulation::SendAdmin() {
  const TierId tier{static_cast<uint8_t>(Random(3))};
  switch (Random(options_.roomy ? 4 : 5)) {
    case 0:
      return harness_->Send(Stats{Once<StatsReply>([](const auto&) {})});
    case 1:
      return harness_->Send(AdminDemote{tier, 1 + Random(5), Once<uint64_t>([](const auto&) {})});
    case 2:
      return harness_->Send(AdminVerify{tier, Once<VerifyReply>([](const auto&) {})});
    case 3:
      return harness_->Send(
          ListBlocks{ModelId{0}, Key{}, 5, Once<std::vector<BlockStats>>([this](const auto& reply) {
                       if (reply.ok() && reply->size() > 5) Violate("a page is longer than asked for");
                     })});
    default:
      return harness_->Send(AdminEvict{tier, 1 + Random(3), Once<uint64_t>([](const auto&) {})});
  }
}

void Simulation::Restart() {
  ++restarts_;
  ++generation_;
  pending_replies_ = 0;
  clearing_ = 0;
  removed_any_ = commands_;
  clients_.clear();
  leases_.clear();
  for (auto& [name, record] : keys_) {
    // What was removed or replaced a moment ago may not have been forgotten by the disk yet.
    record.removed_by = 0;
    record.must_hit = record.must_survive;
    for (auto& [owner, put] : record.puts) {
      put.state = PutState::kUnknown;
      put.stored_by = UINT64_MAX;
    }
  }
  harness_->Restart();
  stored_at_boot_ = StoredBlocks();
}

void Simulation::Finish() {
  harness_->Settle();
  CheckArenas();
  CheckMustHit();
  // Every reply comes, at the latest by the deadlines; every lease ends, at the latest by its own.
  while (!clients_.empty()) CloseClient();
  for (int i = 0; i < 70; ++i) harness_->Advance(std::chrono::seconds(1));
  if (options_.publish_failed_moves) return;
  harness_->engine().CheckInvariants();
  if (pending_replies_ > 0) Violate(std::to_string(pending_replies_) + " commands were never answered");
  if (harness_->engine().Outstanding() > 0) Violate("the engine owes something after everything ended");
  if (harness_->metrics().leases_live.Get() != 0) Violate("leases are live without sessions");
  CheckConservation();
}

}  // namespace kvtier
