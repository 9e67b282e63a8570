#include "tests/support/engine_harness.h"

#include <cstring>

#include "tiers/cxl_format.h"

namespace kvtier {

TierOptions HostTier(std::string name, uint64_t capacity_bytes, CodecId codec) {
  TierOptions tier;
  tier.name = std::move(name);
  tier.capacity_bytes = capacity_bytes;
  tier.codec = codec;
  return tier;
}

TierOptions TierOnGpu(std::string name, uint64_t capacity_bytes, CodecId codec) {
  TierOptions tier = HostTier(std::move(name), capacity_bytes, codec);
  tier.kind = MediumKind::kGpu;
  return tier;
}

TierOptions ColdTier(std::string name, uint64_t capacity_bytes, uint64_t segment_bytes, CodecId codec) {
  TierOptions tier = HostTier(std::move(name), capacity_bytes, codec);
  tier.kind = MediumKind::kNvme;
  tier.segment_bytes = segment_bytes;
  return tier;
}

ModelSpec TinyModel(std::string model_id) {
  ModelSpec spec;
  spec.model_id = std::move(model_id);
  spec.layers = 1;
  spec.kv_heads = 1;
  spec.k_dim = spec.v_dim = 16;
  spec.tokens_per_block = 64;
  spec.boost_channels = DefaultBoost(spec.k_dim);
  return spec;
}

Key MakeKey(uint64_t number) {
  Key key;
  std::mt19937_64 rng(number);
  for (size_t at = 0; at < key.bytes.size(); at += 8) {
    const uint64_t word = rng();
    std::memcpy(key.bytes.data() + at, &word, sizeof(word));
  }
  return key;
}

StagedSource OwnedSource(const ModelSpec& spec, uint16_t tokens, uint64_t owner) {
  auto bytes = std::make_shared<std::vector<std::byte>>(RawBlockBytes(ShapeOf(spec, 0, tokens)));
  std::memcpy(bytes->data(), &owner, sizeof(owner));
  return {.keep = bytes, .raw = *bytes};
}

EngineHarness::EngineHarness(Options options) : options_(std::move(options)) {
  MakeEngine({});
}

void EngineHarness::MakeEngine(std::vector<ColdRecovery> recovery) {
  EngineOptions engine;
  engine.tiers = options_.tiers;
  engine.limits = options_.limits;
  engine.hash_seed = 7;
  for (size_t i = 0; i < engine.tiers.size(); ++i) {
    engine.tiers[i].medium = fake_.medium(TierId{static_cast<uint8_t>(i)});
  }
  metrics_ = std::make_unique<Metrics>();
  std::array<Engine::DeviceQueues, kMaxTiers> devices;
  for (size_t i = 0; i < engine.tiers.size(); ++i) {
    devices[i].moves = &devices_[i].moves;
    if (!HasArenas(engine.tiers[i].kind)) devices[i].commits = &devices_[i].commits;
  }
  auto made = Engine::Make(std::move(engine),
                           {.commands = commands_,
                            .completions = completions_,
                            .jobs = jobs_,
                            .devices = devices,
                            .events = *this,
                            .metrics = *metrics_},
                           std::move(recovery));
  KVTIER_CHECK(made.ok());
  engine_ = std::move(made).value();
}

void EngineHarness::Restart() {
  engine_.reset();
  while (commands_.TryPop()) continue;
  while (completions_.TryPop()) continue;
  while (jobs_.TryPop()) continue;
  for (Device& device : devices_) {
    while (device.moves.TryPop()) continue;
    while (device.commits.TryPop()) continue;
  }
  held_.clear();
  hanging_.clear();
  tenants_.clear();
  mapped_.clear();
  published.clear();
  std::vector<ColdRecovery> recovery;
  for (size_t i = 0; i < options_.tiers.size(); ++i) {
    const bool cold = !HasArenas(options_.tiers[i].kind);
    recovery.push_back(cold ? fake_.Recovery(TierId{static_cast<uint8_t>(i)}) : ColdRecovery{});
  }
  fake_.ForgetArenas();
  if (at_restart) at_restart(recovery);
  MakeEngine(std::move(recovery));
}

bool EngineHarness::has_cold() const {
  for (const TierOptions& tier : options_.tiers) {
    if (!HasArenas(tier.kind)) return true;
  }
  return false;
}

TimePoint EngineHarness::StepOnly() {
  return engine_->Step(clock_.Now());
}

void EngineHarness::HoldJobs() {
  const auto hold = [this](auto& queue, const auto& hangs) {
    while (auto job = queue.TryPop()) {
      const bool hang = hangs && hangs(*job);
      (hang ? hanging_ : held_).push_back(*std::move(job));
    }
  };
  for (Device& device : devices_) hold(device.commits, hang_cold);
  hold(jobs_, hang_job);
  for (Device& device : devices_) hold(device.moves, hang_job);
}

void EngineHarness::ReleaseHanging() {
  hang_job = nullptr;
  hang_cold = nullptr;
  held_.insert(held_.end(), hanging_.begin(), hanging_.end());
  hanging_.clear();
  while (!held_.empty()) RunHeld(0);
}

void EngineHarness::RunHeld(size_t index) {
  const std::variant<Job, ColdJob> job = std::move(held_[index]);
  held_.erase(held_.begin() + static_cast<ptrdiff_t>(index));
  Completion done = std::visit([this](const auto& j) { return fake_.Execute(j); }, job);
  KVTIER_CHECK(completions_.TryPush(std::move(done)));
}

void EngineHarness::StepOnce() {
  StepOnly();
  HoldJobs();
  while (!held_.empty()) RunHeld(0);
}

void EngineHarness::Settle() {
  for (int i = 0; i < 100000; ++i) {
    const TimePoint due = StepOnly();
    HoldJobs();
    if (held_.empty() && due > clock_.Now() && completions_.size() == 0 && commands_.size() == 0) return;
    while (!held_.empty()) RunHeld(0);
  }
  KVTIER_CHECK(false);  // the engine never comes to rest
}

SessionId EngineHarness::Open(uint64_t session, const std::string& tenant) {
  const SessionId id{session};
  mapped_[id].clear();
  bool answered = false;
  Send(OpenSession{id, tenant, [&](const Result<OpenedSession>& opened) {
                     KVTIER_CHECK(opened.ok());
                     tenants_[id] = opened->tenant;
                     answered = true;
                   }});
  Settle();
  KVTIER_CHECK(answered);
  return id;
}

ModelId EngineHarness::Register(SessionId session, const ModelSpec& spec) {
  const Result<RegisteredModel> registered = Call<RegisteredModel>(RegisterModel{session, spec, {}});
  KVTIER_CHECK(registered.ok());
  return registered->model;
}

PutBlock EngineHarness::ChainBlock(const ModelSpec& spec, uint64_t number) const {
  PutBlock block;
  block.key = MakeKey(number);
  block.parent = MakeKey(number - 1);
  block.first_position = number * spec.tokens_per_block;
  block.tokens = static_cast<uint16_t>(spec.tokens_per_block);
  block.source = OwnedSource(spec, block.tokens, number);
  return block;
}

Result<PutReply> EngineHarness::PutChain(SessionId session, ModelId model, const ModelSpec& spec,
                                         uint64_t first, uint64_t count, Durability durability) {
  Put put;
  put.session = session;
  put.model = model;
  put.ticket = TicketId{next_ticket++};
  put.durability = durability;
  for (uint64_t i = 0; i < count; ++i) put.blocks.push_back(ChainBlock(spec, first + i));
  return Call<PutReply>(std::move(put));
}

std::vector<Key> EngineHarness::ChainKeysOf(uint64_t first, uint64_t count) const {
  std::vector<Key> keys;
  for (uint64_t i = 0; i < count; ++i) keys.push_back(MakeKey(first + i));
  return keys;
}

Result<AcquireReply> EngineHarness::AcquireKeys(SessionId session, ModelId model, uint64_t lease,
                                                std::vector<Key> keys) {
  Acquire acquire;
  acquire.session = session;
  acquire.model = model;
  acquire.lease = LeaseId{lease};
  acquire.keys = std::move(keys);
  return Call<AcquireReply>(std::move(acquire));
}

Result<LookupReply> EngineHarness::LookupKeys(SessionId session, ModelId model, std::vector<Key> keys) {
  Lookup lookup;
  lookup.session = session;
  lookup.model = model;
  lookup.keys = std::move(keys);
  return Call<LookupReply>(std::move(lookup));
}

Result<Done> EngineHarness::ReleaseLease(SessionId session, uint64_t lease, std::vector<Key> damaged) {
  return Call<Done>(Release{session, LeaseId{lease}, std::move(damaged), {}});
}

void EngineHarness::OnArenaPublished(const ArenaSpec& arena) {
  published[arena.id.value] = arena;
  for (const auto& [session, tenant] : tenants_) {
    if (tenant == arena.tenant) mapped_[session].insert(arena.id.value);
  }
}

void EngineHarness::MapStore(SessionId session, TierId tier) {
  mapped_[session].insert(StoreArenaId(tier).value);
  Send(StoreMapped{session, tier});
}

Place EngineHarness::PlaceIn(const Place& place) const {
  if (place.container != StoreArenaId(place.tier).value) return place;
  Place record = place;
  record.container = place.slot;
  record.slot = 0;
  record.offset -= CxlSegmentOffset(place.slot, options_.tiers[place.tier.value].segment_bytes);
  record.offset -= kColdRecordHeaderBytes;
  return record;
}

void EngineHarness::OnSessionArena(SessionId session, const ArenaSpec& arena) {
  mapped_[session].insert(arena.id.value);
}

void EngineHarness::OnArenaRetired(ArenaId arena, TenantId tenant) {
  ++retired;
  published.erase(arena.value);
  if (!options_.unmap_at_once) return;
  for (const auto& [session, owner] : tenants_) {
    if (owner != tenant) continue;
    mapped_[session].erase(arena.value);
    Send(ArenaUnmapped{session, arena});
  }
}

}  // namespace kvtier
