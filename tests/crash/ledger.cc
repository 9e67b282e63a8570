#include "tests/crash/ledger.h"

#include <fcntl.h>
#include <unistd.h>

#include <fstream>

#include "tiers/base/check.h"

namespace kvtier::crash {
namespace {

constexpr const char* kFateNames[] = {"unknown", "memory", "disk", "durable", "removed"};

}  // namespace

Ledger::Ledger(const std::string& path)
    : path_(path), file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)) {
  KVTIER_CHECK(file_.valid());
}

void Ledger::Write(const std::string& line) {
  KVTIER_CHECK(::write(file_.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size()));
}

void Ledger::Putting(Version version) {
  Write(std::to_string(version.owner) + " put generation " + std::to_string(version.generation) + "\n");
  Owner& owner = owners_[version.owner];
  owner = {.version = version, .put = ++puts_};
  live_ += kBlocksOfOwner;
  std::erase_if(owners_,
                [this](const auto& one) { return !one.second.live() && one.second.put + kKeptPuts < puts_; });
}

void Ledger::Set(uint32_t owner, uint32_t block, Fate fate) {
  Write(std::to_string(owner) + " block " + std::to_string(block) + " " +
        kFateNames[static_cast<size_t>(fate)] + "\n");
  Fate& old = owners_.at(owner).blocks[block];
  if (old != Fate::kRemoved && fate == Fate::kRemoved) --live_;
  old = fate;
}

void Ledger::SetAll(uint32_t owner, Fate fate) {
  for (uint32_t block = 0; block < kBlocksOfOwner; ++block) Set(owner, block, fate);
}

std::string Ledger::History(uint32_t owner) const {
  std::ifstream file(path_);
  std::string history;
  const std::string start = std::to_string(owner) + " ";
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(start)) history += "  " + line + "\n";
  }
  return history;
}

}  // namespace kvtier::crash
