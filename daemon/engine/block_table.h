#pragma once

#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "daemon/engine/copy_pool.h"
#include "daemon/engine/entry.h"
#include "tiers/base/status.h"

namespace kvtier {

/// A parent keeps at most this many tail children; the oldest goes.
inline constexpr size_t kMaxTailsPerParent = 4;

/// All blocks by (tenant, key), and the tail children by (tenant, parent). Rows stay where they are until
/// erased. Threads: single-owner. Owns the rows and their copies; knows nothing of tiers.
class BlockTable {
 public:
  /// `hash_seed` keeps clients, who choose keys, from aiming at one bucket.
  BlockTable(uint64_t max_entries, uint64_t hash_seed);
  BlockTable(const BlockTable&) = delete;  // the index points back
  BlockTable& operator=(const BlockTable&) = delete;

  /// kNoEntry when there is none.
  EntryId Find(TenantId tenant, const Key& key) const;
  /// Brings what Find will read closer.
  void Prefetch(TenantId tenant, const Key& key) const;
  /// A new row under a key that is not there. Errors: kResourceExhausted at max_entries rows.
  Result<EntryId> Create(TenantId tenant, const Key& key);
  /// From now on a miss; the row stays until Erase, and the key can be created anew.
  void Detach(EntryId id);
  /// Of a detached row without copies.
  void Erase(EntryId id);

  Entry& at(EntryId id) { return chunks_[id.value / kChunkRows][id.value % kChunkRows]; }
  const Entry& at(EntryId id) const { return chunks_[id.value / kChunkRows][id.value % kChunkRows]; }

  /// A copy that is absent when there is none.
  const Copy& copy(const Entry& entry, TierId tier) const { return copies_.Find(entry, tier); }
  const Copy& copy(EntryId id, TierId tier) const { return copies_.Find(at(id), tier); }
  /// For the Ladder alone.
  CopyPool& copies() { return copies_; }
  const CopyPool& copies() const { return copies_; }

  /// Rows ever made: ids are below this. Rows that are not live have neither copies nor in_table.
  uint32_t row_limit() const { return rows_made_; }
  bool live(EntryId id) const { return live_[id.value]; }
  uint64_t live_rows() const { return rows_made_ - free_.size(); }
  uint64_t bytes() const;

  /// Tail children of a parent in the order they came, at most kMaxTailsPerParent once the caller removed the
  /// oldest.
  const std::vector<EntryId>& Tails(TenantId tenant, const Key& parent) const;
  void AddTail(EntryId tail);
  void RemoveTail(EntryId tail);

 private:
  static constexpr uint32_t kChunkRows = 1024;
  struct Name {
    TenantId tenant;
    Key key;
    friend bool operator==(const Name&, const Name&) = default;
  };
  /// Both factors of every product carry a secret: a client that knows one could make the product 0.
  struct SeededHash {
    explicit SeededHash(uint64_t seed);
    uint64_t secret[2];
    size_t operator()(const Name& name) const;
  };

  /// What the index keeps of a row: its key stands in the row alone, and 32 bits of the hash spare a look at
  /// it where slots are compared or the index grows.
  struct Slot {
    EntryId id;
    uint32_t hash;
  };
  struct Probe {
    const Name& name;
    uint32_t hash;
  };
  struct SlotHash {
    using is_transparent = void;
    size_t operator()(const Slot& slot) const { return Spread(slot.hash); }
    size_t operator()(const Probe& probe) const { return Spread(probe.hash); }
    static size_t Spread(uint32_t hash) { return (uint64_t{hash} << 32 | hash) * 0x9E3779B97F4A7C15u; }
  };
  struct SlotEqual {
    using is_transparent = void;
    const BlockTable* table;
    bool operator()(const Slot& a, const Slot& b) const { return a.id == b.id; }
    bool operator()(const Slot& slot, const Probe& probe) const {
      return slot.hash == probe.hash && table->at(slot.id).key == probe.name.key &&
             table->at(slot.id).tenant == probe.name.tenant;
    }
    bool operator()(const Probe& probe, const Slot& slot) const { return (*this)(slot, probe); }
  };
  Probe ProbeOf(const Name& name) const { return {name, static_cast<uint32_t>(hash_(name))}; }

  const uint64_t max_entries_;
  const SeededHash hash_;
  absl::flat_hash_set<Slot, SlotHash, SlotEqual> index_;
  absl::flat_hash_map<Name, std::vector<EntryId>, SeededHash> tails_;
  std::vector<std::unique_ptr<Entry[]>> chunks_;
  CopyPool copies_;
  std::vector<EntryId> free_;
  std::vector<bool> live_;
  uint32_t rows_made_ = 0;
};

}  // namespace kvtier
