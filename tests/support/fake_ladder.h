#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>

#include "tiers/job.h"

namespace kvtier {

/// Does what workers, committer and media do, without bytes: an image is the number that stands in the first
/// eight bytes of the staged block (its owner), kept by place. Checks that the engine's orders make sense, by
/// KVTIER_CHECK. Threads: single-owner.
class FakeLadder {
 public:
  struct Image {
    Key key;
    NamespaceDigest name_space;
    uint64_t owner = 0;
    CodecId codec = CodecId::kNone;  ///< of a tail the rung that it completes
    uint64_t encoding = 0;           ///< which put encoded it: a tail goes with the base of its own
    uint64_t epoch = 0;
    bool corrupt = false;
  };

  /// Media for TierOptions; never called, only compared.
  Medium* medium(TierId tier);

  /// The status that a job ends with instead of being done; none: it is done.
  std::function<std::optional<Status>(const Job&)> job_fault;
  std::function<std::optional<Status>(const ColdJob&)> cold_fault;
  /// A defect to plant: a move that fails writes nothing and says that all is well.
  bool publish_failed_moves = false;
  /// Tails that this is true for cannot be written, or are damaged when they are read.
  std::function<bool(const Place&)> tail_write_fault, tail_read_fault;
  Code tail_write_code = Code::kUnavailable;  ///< of a tail write that fails
  /// Blocks whose owner this names have a layer that cannot be encoded: their images are larger than thought.
  std::function<bool(uint64_t owner)> has_raw_layer;

  Completion Execute(const Job& job);
  Completion Execute(const ColdJob& job);

  /// What a reader of the place would find; nothing when the place was never written or is reused.
  std::optional<Image> At(const Place& place) const;
  void Corrupt(const Place& place);
  /// Its GPU is gone: what stood there is nowhere, and jobs that touch it say so.
  void LoseGpu(TierId tier);
  /// Host memory dies with the daemon.
  void ForgetArenas();
  /// What a restart would find.
  ColdRecovery Recovery(TierId tier) const;

  const std::map<uint32_t, ArenaSpec>& arenas() const { return arenas_; }
  uint64_t moves() const { return moves_; }
  uint64_t recycles() const { return recycles_; }

 private:
  using Spot = std::tuple<uint8_t, uint32_t, uint64_t>;  ///< tier, container, offset
  static Spot SpotOf(const Place& place) { return {place.tier.value, place.container, place.offset}; }
  Status Move(const MoveOrder& order, MoveOutcome& outcome);
  std::optional<Image> ReadParts(const MoveOrder& order, MoveOutcome& outcome) const;
  void WriteTails(const MoveOrder& order, const Image& whole, MoveOutcome& outcome);
  void NoteSegment(const Place& place);
  bool InArena(const Place& place) const;
  bool FailsOnLostGpu(const Job& job, Completion& done) const;
  Status Erase(const EraseJob& erase);

  std::map<Spot, Image> images_;
  std::map<uint32_t, ArenaSpec> arenas_;
  std::set<TierId> lost_gpus_;
  std::map<std::tuple<uint8_t, Key, ColdPart>, ColdRecord> index_;
  std::map<std::pair<uint8_t, uint32_t>, RecoveredSegment> segments_;
  std::map<NamespaceDigest, ModelRecord> models_;
  uint64_t moves_ = 0;
  uint64_t encodings_ = 0;
  uint64_t recycles_ = 0;
};

}  // namespace kvtier
