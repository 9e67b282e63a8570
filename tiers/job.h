#pragma once

#include <variant>
#include <vector>

#include "tiers/arena_store.h"
#include "tiers/cold_store.h"
#include "tiers/move.h"

namespace kvtier {

/// What the engine orders and the transfer workers do.
struct MoveJob {
  MoveOrder order;
};
struct CreateArenaJob {
  ArenaSpec spec;
};
struct DestroyArenaJob {
  ArenaId id;
};
/// Reads the image at `place` and checks everything: header, identity, every part.
struct VerifyJob {
  BlockIdentity identity;
  Place place;
  TailPlaces tails{};
  Medium* medium = nullptr;
};
struct Job {
  JobId id;
  std::variant<MoveJob, CreateArenaJob, DestroyArenaJob, VerifyJob> work;
};

/// What the engine orders and the committer does, in the order given.
struct CommitJob {
  TierId tier;
  ColdCommit item;
  std::vector<ColdCommit> tails = {};  ///< of the same block; each may fail alone
};
struct EraseJob {
  TierId tier;
  std::vector<ColdCommit> items;
};
struct RecycleJob {
  TierId tier;
  uint32_t segment = 0;
  uint64_t new_sequence = 0;
};
struct PutModelJob {
  TierId tier;
  ModelRecord model;
};
struct ColdJob {
  JobId id;
  std::variant<CommitJob, EraseJob, RecycleJob, PutModelJob> work;
};

/// Every job of either kind gets exactly one. `outcome` is filled by moves; by a verify, with what stands at
/// the place; by a commit, its tails' codes only.
struct Completion {
  JobId id;
  Status status;
  MoveOutcome outcome;
  bool device_lost = false;  ///< all that stands on the job's device is gone, for good
};

}  // namespace kvtier
