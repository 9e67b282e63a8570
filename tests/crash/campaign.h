#pragma once

#include <array>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/crash/ledger.h"

namespace kvtier::crash {

struct Options {
  uint32_t kills = 1000;
  uint32_t seed = 1;
  uint32_t work_ms = 350;       ///< the longest time from a checked restart to the kill
  uint32_t live_blocks = 240;   ///< at most; all of them are checked after every kill
  double rewrite_share = 0;     ///< of the cold tier
  std::string after_kill = {};  ///< a shell command after every kill, while no daemon runs
  std::string journal = {};     ///< path; empty: in the temporary folder
};

struct Tally {
  uint32_t kills = 0, kills_in_start = 0, kills_after_ack = 0, restarts = 0;
  uint64_t blocks_put = 0, blocks_removed = 0, blocks_read = 0;
  uint64_t durable_checked = 0, durable_lost = 0;
  uint64_t disk_checked = 0, disk_lost = 0;
  uint64_t removed_checked = 0, removed_back = 0;
  uint64_t wrong = 0;     ///< payloads that are not bit by bit what they must be
  uint64_t unsound = 0;   ///< a start that failed, files or memory left over, the disk over its cap
  uint64_t recycled = 0;  ///< segments, as far as it was seen
  uint64_t most_disk_bytes = 0;
  double slowest_start_s = 0;
  std::array<uint64_t, 6> durable_by_precision{};

  bool Good() const;
  std::string ToString() const;
};

/// A real daemon that is killed at random points, a client that writes, reads and removes, and a check of
/// everything that was acknowledged after every restart.
class Campaign {
 public:
  explicit Campaign(Options options);
  ~Campaign();
  Tally Run();

 private:
  struct PutUnderWay {
    Version version;
    kvtier_ticket ticket = 0;
    bool durable = false;
  };
  class Killer;

  void Cycle();
  bool StartAndKillOnTheWay();
  void Work();
  void Step(const e2e::Engine& engine);
  void StartPut(const e2e::Engine& engine);
  void EndPut(const e2e::Engine& engine);
  void Remove(const e2e::Engine& engine);
  void Read(const e2e::Engine& engine);
  void LookAtDisk(const e2e::Engine& engine);
  void Verify(const e2e::Engine& engine);
  void VerifyOwner(const e2e::Engine& engine, const Owner& owner);
  void CheckBlock(const Owner& owner, uint32_t block, const std::optional<kvtier_precision>& found,
                  e2e::Kv& out);
  void CheckDisk();
  void Finish();
  std::optional<kvtier_precision> Fetch(const e2e::Engine& engine, const api::Sequence& sequence,
                                        uint32_t block, e2e::Kv& out, kvtier_code& code);
  const Owner* RandomOwner();
  api::Sequence SequenceOf(const e2e::Engine& engine, uint32_t owner) const;
  void Kill();
  void RunAfterKill();
  void Say(uint32_t owner, const std::string& what);
  uint64_t Random(uint64_t below) { return rng_() % below; }

  const Options options_;
  std::mt19937_64 rng_;
  Tally tally_;
  TemporaryFolder journal_;  ///< where none is named
  Ledger ledger_;
  Payloads payloads_;
  DaemonProcess daemon_;
  std::vector<PutUnderWay> puts_;
  uint32_t next_owner_ = 1;
  uint32_t kill_after_acks_ = 0;  ///< durable puts until the kill; 0: by time
  bool killed_ = false;           ///< by this thread, in the current life
  size_t files_at_first_ = 0;
  double start_s_ = 0.1;  ///< how long a start took lately
};

}  // namespace kvtier::crash
