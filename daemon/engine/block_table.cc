#include "daemon/engine/block_table.h"

#include <algorithm>
#include <cstring>

#include "tiers/base/check.h"

namespace kvtier {
namespace {

/// One round of folded 128-bit multiplication (as in wyhash): every input bit reaches every output bit.
uint64_t Mix(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

}  // namespace

BlockTable::SeededHash::SeededHash(uint64_t seed)
    : secret{Mix(seed ^ 0x9E3779B97F4A7C15u, 0xD1B54A32D192ED03u),
             Mix(seed ^ 0x8CB92BA72F3D8DD7u, 0x9E3779B97F4A7C15u)} {}

size_t BlockTable::SeededHash::operator()(const Name& name) const {
  uint64_t word[4];
  std::memcpy(word, name.key.bytes.data(), sizeof(word));
  const uint64_t low = Mix(word[0] ^ secret[0], word[1] ^ secret[1]);
  const uint64_t high = Mix(word[2] ^ secret[0] ^ name.tenant.value, word[3] ^ secret[1]);
  return Mix(low ^ secret[0], high ^ secret[1]);
}

BlockTable::BlockTable(uint64_t max_entries, uint64_t hash_seed)
    : max_entries_(std::min<uint64_t>(max_entries, kNoEntry.value)),
      hash_(hash_seed),
      index_(0, SlotHash{}, SlotEqual{this}),
      tails_(0, SeededHash{hash_seed}) {}

EntryId BlockTable::Find(TenantId tenant, const Key& key) const {
  const Name name{tenant, key};
  const auto found = index_.find(ProbeOf(name));
  return found == index_.end() ? kNoEntry : found->id;
}

void BlockTable::Prefetch(TenantId tenant, const Key& key) const {
  const Name name{tenant, key};
  index_.prefetch(ProbeOf(name));
}

Result<EntryId> BlockTable::Create(TenantId tenant, const Key& key) {
  EntryId id;
  if (!free_.empty()) {
    id = free_.back();
    free_.pop_back();
  } else {
    if (rows_made_ >= max_entries_) return Status(Code::kResourceExhausted, "the block table is full");
    id = EntryId{rows_made_++};
    if (id.value % kChunkRows == 0) chunks_.push_back(std::make_unique<Entry[]>(kChunkRows));
    live_.push_back(false);
  }
  live_[id.value] = true;
  Entry& entry = at(id);
  const uint32_t generation = entry.generation + 1;
  entry = Entry{};
  entry.generation = generation;
  entry.tenant = tenant;
  entry.key = key;
  entry.in_table = true;
  const Name name{tenant, key};
  const Probe probe = ProbeOf(name);
  KVTIER_CHECK(!index_.contains(probe));
  index_.insert(Slot{id, probe.hash});
  return id;
}

void BlockTable::Detach(EntryId id) {
  Entry& entry = at(id);
  KVTIER_CHECK(entry.in_table);
  const Name name{entry.tenant, entry.key};
  const auto found = index_.find(ProbeOf(name));
  KVTIER_CHECK(found != index_.end() && found->id == id);
  index_.erase(found);
  entry.in_table = false;
}

void BlockTable::Erase(EntryId id) {
  KVTIER_CHECK(live_[id.value] && !at(id).in_table && !at(id).HasAnyCopy());
  live_[id.value] = false;
  free_.push_back(id);
}

uint64_t BlockTable::bytes() const {
  return chunks_.size() * kChunkRows * sizeof(Entry) + copies_.bytes() +
         index_.capacity() * (sizeof(Slot) + 1) +
         tails_.capacity() * (sizeof(Name) + sizeof(std::vector<EntryId>) + 1);
}

const std::vector<EntryId>& BlockTable::Tails(TenantId tenant, const Key& parent) const {
  static const std::vector<EntryId> kNone;
  const auto found = tails_.find(Name{tenant, parent});
  return found == tails_.end() ? kNone : found->second;
}

void BlockTable::AddTail(EntryId tail) {
  tails_[Name{at(tail).tenant, at(tail).parent}].push_back(tail);
}

void BlockTable::RemoveTail(EntryId tail) {
  const auto found = tails_.find(Name{at(tail).tenant, at(tail).parent});
  if (found == tails_.end()) return;
  std::erase(found->second, tail);
  if (found->second.empty()) tails_.erase(found);
}

}  // namespace kvtier
