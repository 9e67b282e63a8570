#include "tests/crash/campaign.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <thread>

namespace kvtier::crash {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Small, so that segments are recycled all the time. What lives is removed before the tier has to evict it: a
// block that is not there was lost.
constexpr uint64_t kHotBytes = uint64_t{16} << 20, kColdBytes = uint64_t{16} << 20;
constexpr uint32_t kColdTier = 1;
constexpr size_t kMaxPutsUnderWay = 3;
/// A kill that waits for acknowledgements comes after this many times the longest work in any case.
constexpr uint32_t kAckPatience = 15;
constexpr double kLeastOfOthers = 0.99;

DaemonSettings Settings(const Options& options) {
  return {.hot_bytes = kHotBytes,
          .cold_bytes = kColdBytes,
          .segment = "1MiB",
          .tails = "while_room",
          .cold_keys = fmt::format("rewrite_share = {:.2f}\n", options.rewrite_share),
          .more = {}};
}

size_t FilesIn(const std::string& folder) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

/// Kills the daemon after a while, from a thread of its own.
class Campaign::Killer {
 public:
  Killer(pid_t pid, std::chrono::microseconds after)
      : thread_([this, pid, after] {
          std::unique_lock lock(mutex_);
          if (!ended_.wait_for(lock, after, [this] { return over_; })) ::kill(pid, SIGKILL);
        }) {}
  ~Killer() {
    {
      std::lock_guard lock(mutex_);
      over_ = true;
    }
    ended_.notify_all();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false;
  std::thread thread_;
};

bool Tally::Good() const {
  const bool most_others =
      static_cast<double>(disk_lost) <= (1 - kLeastOfOthers) * static_cast<double>(disk_checked);
  return durable_lost == 0 && removed_back == 0 && wrong == 0 && unsound == 0 && most_others;
}

std::string Tally::ToString() const {
  return fmt::format(
      "{} kills ({} during start-up, {} straight after an acknowledgement), {} restarts checked; slowest "
      "start {:.2f} s\n"
      "put {}, removed {}, read back {} blocks\n"
      "acknowledged as durable: {} checks, {} lost (int4 {}, k4v2 {}, int2 {})\n"
      "others that were on the disk: {} checks, {} lost\n"
      "removed: {} checks, {} back\n"
      "wrong payloads: {}\n"
      "most bytes on disk: {} of {}\n"
      "failed starts, leftovers, disk over its cap: {}\n"
      "{}\n",
      kills, kills_in_start, kills_after_ack, restarts, slowest_start_s, blocks_put, blocks_removed,
      blocks_read, durable_checked, durable_lost, durable_by_precision[KVTIER_INT4],
      durable_by_precision[KVTIER_K4V2], durable_by_precision[KVTIER_INT2], disk_checked, disk_lost,
      removed_checked, removed_back, wrong, most_disk_bytes, kColdBytes, unsound, Good() ? "ok" : "FAILED");
}

Campaign::Campaign(Options options)
    : options_(std::move(options)),
      rng_(options_.seed),
      ledger_(options_.journal.empty() ? journal_.File("journal") : options_.journal),
      payloads_(options_.seed),
      daemon_(Settings(options_)) {
  ::sync();  // what after_kill may undo starts with a configuration on the disk
}

Campaign::~Campaign() = default;

void Campaign::Say(uint32_t owner, const std::string& what) {
  std::fprintf(stderr, "kill %u: %s\n%s", tally_.kills, what.c_str(),
               owner == 0 ? "" : ledger_.History(owner).c_str());
}

Tally Campaign::Run() {
  while (tally_.kills < options_.kills) Cycle();
  Finish();
  return tally_;
}

void Campaign::Cycle() {
  while (tally_.kills < options_.kills && Random(100) < 15) {
    if (!StartAndKillOnTheWay()) return;
  }
  const auto start = Clock::now();
  const Status started = daemon_.Start();
  if (!started.ok()) {
    ++tally_.unsound;
    return Say(0, "did not start: " + started.ToString());
  }
  start_s_ = SecondsSince(start);
  tally_.slowest_start_s = std::max(tally_.slowest_start_s, start_s_);
  Work();
  Kill();
  if (tally_.kills % 100 == 0) std::fprintf(stderr, "%u kills\n", tally_.kills);
}

/// Kills it while it opens the store, recovers or begins to serve.
bool Campaign::StartAndKillOnTheWay() {
  if (!daemon_.Launch().ok()) return false;
  std::this_thread::sleep_for(
      std::chrono::duration<double>(start_s_ * 1.2 * static_cast<double>(Random(1000)) / 1000));
  ++tally_.kills_in_start;
  Kill();
  return true;
}

void Campaign::Kill() {
  daemon_.Kill();
  ++tally_.kills;
  puts_.clear();
  killed_ = false;
  RunAfterKill();
}

void Campaign::RunAfterKill() {
  if (options_.after_kill.empty() || std::system(options_.after_kill.c_str()) == 0) return;
  ++tally_.unsound;
  Say(0, "failed: " + options_.after_kill);
}

void Campaign::Work() {
  CheckDisk();
  auto connected = e2e::Engine::Connect(daemon_.socket());
  if (!connected) {
    ++tally_.unsound;
    return Say(0, "no connection: " + api::LastError());
  }
  const e2e::Engine& engine = *connected;
  Verify(engine);
  kill_after_acks_ = Random(100) < 35 ? static_cast<uint32_t>(1 + Random(8)) : 0;
  // By time in any case, so that a life ends.
  const auto after =
      std::chrono::microseconds(kill_after_acks_ > 0 ? uint64_t{kAckPatience} * options_.work_ms * 1000
                                                     : Random(uint64_t{options_.work_ms} * 1000));
  Killer killer(daemon_.pid(), after);
  const auto end = Clock::now() + after;
  while (!killed_ && Clock::now() < end) Step(engine);
}

void Campaign::Step(const e2e::Engine& engine) {
  if (ledger_.live_blocks() > options_.live_blocks) return Remove(engine);
  const uint64_t kind = Random(100);
  if (kind < 50) return puts_.size() < kMaxPutsUnderWay ? StartPut(engine) : EndPut(engine);
  if (kind < 62) return EndPut(engine);
  if (kind < 70) return Remove(engine);
  if (kind < 90) return Read(engine);
  LookAtDisk(engine);
}

api::Sequence Campaign::SequenceOf(const e2e::Engine& engine, uint32_t owner) const {
  return engine.Keys(payloads_.TokensOf(owner));
}

void Campaign::StartPut(const e2e::Engine& engine) {
  Version version{.owner = next_owner_, .generation = 1};
  // Now and then what was removed comes back with other bytes.
  const Owner* old = Random(100) < 20 ? RandomOwner() : nullptr;
  if (old != nullptr && !old->live()) {
    version = {.owner = old->version.owner, .generation = old->version.generation + 1};
  } else {
    ++next_owner_;
  }
  ledger_.Putting(version);
  const bool durable = Random(100) < 60;
  kvtier_put_options options = api::PutOptions(e2e::kPatienceMs);
  options.durability = durable ? KVTIER_DURABLE : KVTIER_MEMORY;
  const api::Sequence sequence = SequenceOf(engine, version.owner);
  const auto ticket = engine.model.Put(sequence.Query(), payloads_.Raw(version).View(), options);
  if (ticket) puts_.push_back({.version = version, .ticket = *ticket, .durable = durable});
}

void Campaign::EndPut(const e2e::Engine& engine) {
  if (puts_.empty()) return;
  const PutUnderWay put = puts_.front();
  puts_.erase(puts_.begin());
  std::array<kvtier_put_result, kBlocksOfOwner> results;
  results.fill({.code = KVTIER_UNAVAILABLE, .precision = {}, .tier = 0});
  const kvtier_code code = engine.client.Wait(put.ticket, results, e2e::kPatienceMs);
  if (code == KVTIER_UNAVAILABLE || code == KVTIER_STALE) return;
  const bool acknowledged = put.durable && code == KVTIER_OK;
  if (acknowledged && kill_after_acks_ > 0 && --kill_after_acks_ == 0) {
    ::kill(daemon_.pid(), SIGKILL);
    killed_ = true;
    ++tally_.kills_after_ack;
  }
  for (uint32_t block = 0; block < kBlocksOfOwner; ++block) {
    if (results[block].code != KVTIER_OK) continue;
    ledger_.Set(put.version.owner, block, put.durable ? Fate::kDurable : Fate::kMemory);
    ++tally_.blocks_put;
  }
}

const Owner* Campaign::RandomOwner() {
  if (ledger_.owners().empty()) return nullptr;
  return &std::next(ledger_.owners().begin(), static_cast<ptrdiff_t>(Random(ledger_.owners().size())))
              ->second;
}

/// The oldest, mostly.
void Campaign::Remove(const e2e::Engine& engine) {
  const Owner* victim = Random(100) < 15 ? RandomOwner() : nullptr;
  if (victim == nullptr || !victim->live()) {
    victim = nullptr;
    for (const auto& [number, owner] : ledger_.owners()) {
      if (owner.live() && (victim == nullptr || owner.put < victim->put)) victim = &owner;
    }
  }
  if (victim == nullptr) return;
  const uint32_t owner = victim->version.owner;
  const bool under_way = std::any_of(puts_.begin(), puts_.end(),
                                     [owner](const PutUnderWay& put) { return put.version.owner == owner; });
  if (under_way) return EndPut(engine);
  ledger_.SetAll(owner, Fate::kUnknown);
  if (!engine.model.Remove(SequenceOf(engine, owner).Query(), e2e::kPatienceMs)) return;
  ledger_.SetAll(owner, Fate::kRemoved);
  payloads_.Forget(owner);
  tally_.blocks_removed += kBlocksOfOwner;
}

void Campaign::Read(const e2e::Engine& engine) {
  const Owner* owner = RandomOwner();
  for (int tries = 0; tries < 8 && owner != nullptr && !owner->live(); ++tries) owner = RandomOwner();
  if (owner != nullptr) VerifyOwner(engine, *owner);
}

/// Blocks of memory puts that a lookup finds on the disk only have reached it.
void Campaign::LookAtDisk(const e2e::Engine& engine) {
  const Owner* owner = RandomOwner();
  if (owner == nullptr) return;
  const api::Sequence sequence = SequenceOf(engine, owner->version.owner);
  std::array<kvtier_match, kBlocksOfOwner> matches{};
  kvtier_lookup_result result{};
  const kvtier_query query = sequence.Query();
  if (kvtier_lookup(engine.model.get(), &query, matches.data(), &result, e2e::kPatienceMs) != KVTIER_OK)
    return;
  for (uint32_t block = 0; block < result.blocks; ++block) {
    if (owner->blocks[block] == Fate::kMemory && matches[block].tier == kColdTier) {
      ledger_.Set(owner->version.owner, block, Fate::kOnDisk);
    }
  }
}

std::optional<kvtier_precision> Campaign::Fetch(const e2e::Engine& engine, const api::Sequence& sequence,
                                                uint32_t block, e2e::Kv& out, kvtier_code& code) {
  auto lease = engine.model.Acquire(sequence.Query(block, 1), api::AcquireOptions(e2e::kPatienceMs));
  code = lease ? KVTIER_OK : lease.code();
  if (!lease) return std::nullopt;
  std::array<kvtier_block_result, 1> results{};
  code = lease->Fetch(0, out.View(size_t{block} * e2e::kBlockTokens), results);
  if (code != KVTIER_OK) return std::nullopt;
  return results[0].precision;
}

void Campaign::Verify(const e2e::Engine& engine) {
  ++tally_.restarts;
  for (const auto& [number, owner] : ledger_.owners()) VerifyOwner(engine, owner);
  // What is there now came from the disk; what is not is gone for good.
  for (const auto& [number, owner] : std::map(ledger_.owners())) {
    if (!owner.live()) continue;
    const auto found = engine.model.Lookup(SequenceOf(engine, number).Query(), e2e::kPatienceMs);
    for (uint32_t block = 0; found && block < kBlocksOfOwner; ++block) {
      const Fate fate = owner.blocks[block];
      if (fate == Fate::kDurable || fate == Fate::kRemoved) continue;
      ledger_.Set(number, block, block < found->blocks ? Fate::kOnDisk : Fate::kUnknown);
    }
  }
}

void Campaign::VerifyOwner(const e2e::Engine& engine, const Owner& owner) {
  const api::Sequence sequence = SequenceOf(engine, owner.version.owner);
  e2e::Kv out(size_t{kBlocksOfOwner} * e2e::kBlockTokens);
  const auto killed = [](kvtier_code code) { return code == KVTIER_UNAVAILABLE || code == KVTIER_STALE; };
  // The unbroken run at once, then what follows a gap, block by block.
  std::vector<kvtier_block_result> run;
  {
    auto lease = engine.model.Acquire(sequence.Query(), api::AcquireOptions(e2e::kPatienceMs));
    if (killed(lease.code())) return;
    if (lease) {
      run.resize(lease->count());
      if (killed(lease->Fetch(0, out.View(), run))) return;
    }
  }
  for (uint32_t block = 0; block < kBlocksOfOwner; ++block) {
    std::optional<kvtier_precision> found;
    kvtier_code code = KVTIER_OK;
    if (block < run.size()) {
      code = run[block].code;
      if (code == KVTIER_OK) found = run[block].precision;
    } else {
      found = Fetch(engine, sequence, block, out, code);
    }
    if (killed(code)) return;
    CheckBlock(owner, block, found, out);
  }
}

void Campaign::CheckBlock(const Owner& owner, uint32_t block, const std::optional<kvtier_precision>& found,
                          e2e::Kv& out) {
  const Fate fate = owner.blocks[block];
  const std::string name = fmt::format("owner {} block {}", owner.version.owner, block);
  if (fate == Fate::kRemoved) {
    ++tally_.removed_checked;
    if (!found) return;
    ++tally_.removed_back;
    return Say(owner.version.owner, name + " is back");
  }
  tally_.durable_checked += fate == Fate::kDurable;
  tally_.disk_checked += fate == Fate::kOnDisk;
  if (!found) {
    tally_.durable_lost += fate == Fate::kDurable;
    tally_.disk_lost += fate == Fate::kOnDisk;
    if (fate == Fate::kDurable || fate == Fate::kOnDisk) Say(owner.version.owner, name + " is lost");
    return;
  }
  ++tally_.blocks_read;
  if (fate == Fate::kDurable) ++tally_.durable_by_precision[*found];
  const size_t first = size_t{block} * e2e::kBlockTokens;
  if (payloads_.Expected(owner.version, *found).SameOver(out, first, e2e::kBlockTokens)) return;
  ++tally_.wrong;
  Say(owner.version.owner, fmt::format("{} has wrong bytes at precision {}", name, static_cast<int>(*found)));
}

void Campaign::CheckDisk() {
  uint64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(daemon_.folder().File("cold"))) {
    struct stat info {};
    if (::lstat(entry.path().c_str(), &info) == 0) bytes += static_cast<uint64_t>(info.st_blocks) * 512;
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".new") || name == "PROBE" || name.starts_with("index.broken")) {
      ++tally_.unsound;
      Say(0, "left over: " + entry.path().string());
    }
  }
  tally_.most_disk_bytes = std::max(tally_.most_disk_bytes, bytes);
  if (bytes > kColdBytes) {
    ++tally_.unsound;
    Say(0, fmt::format("{} bytes on disk, above the cap of {}", bytes, kColdBytes));
  }
  // Sockets and locks are reused, memory files have no names.
  const size_t files = FilesIn(daemon_.folder().path());
  if (files_at_first_ == 0) files_at_first_ = files;
  if (files <= files_at_first_) return;
  ++tally_.unsound;
  Say(0, fmt::format("{} files, {} at first", files, files_at_first_));
}

/// Everything is removed: nothing may be left, and nothing may come back.
void Campaign::Finish() {
  for (const bool again : {false, true}) {
    if (!daemon_.Start().ok()) {
      ++tally_.unsound;
      return Say(0, "did not start: " + daemon_.Log());
    }
    {
      auto engine = e2e::Engine::Connect(daemon_.socket());
      if (!engine) {
        ++tally_.unsound;
        return Say(0, "no connection");
      }
      Verify(*engine);
      uint64_t removed = 0;
      const kvtier_code cleared = kvtier_clear(engine->model.get(), &removed, e2e::kPatienceMs);
      const kvtier_stats stats = engine->Stats();
      if (cleared != KVTIER_OK || stats.blocks != 0 || stats.tier[kColdTier].used_bytes != 0 ||
          (again && removed > 0)) {
        ++tally_.unsound;
        Say(0, fmt::format("cleared {} blocks ({}): {} blocks and {} bytes are left", removed,
                           kvtier_code_name(cleared), stats.blocks, stats.tier[kColdTier].used_bytes));
      }
      for (const auto& [number, owner] : std::map(ledger_.owners())) ledger_.SetAll(number, Fate::kRemoved);
    }
    daemon_.Kill();
    RunAfterKill();
    if (!e2e::KvtierResources(::getpid()).empty()) {
      ++tally_.unsound;
      Say(0, "the client still holds memory of the daemon");
    }
  }
}

}  // namespace kvtier::crash
