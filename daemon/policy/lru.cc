#include <array>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "daemon/policy/eviction.h"
#include "tiers/base/check.h"

namespace kvtier {
namespace {

/// Blocks that are looked at for one victim: more than can be held by jobs at once, so that a block that may
/// go is found.
constexpr int kMaxCandidates = 4096;
/// Priorities are kept apart in this many bands; a higher band goes only when the lower ones have nothing to
/// give.
constexpr int kBands = 4;
constexpr uint32_t kNil = UINT32_MAX;

/// Least recently used first. Each band is a doubly linked list in one slab of nodes, oldest at the front.
class Lru final : public EvictionPolicy {
 public:
  void Insert(const Insertion& block) override {
    KVTIER_CHECK(!index_.contains(block.entry));
    uint32_t at;
    if (!free_.empty()) {
      at = free_.back();
      free_.pop_back();
    } else {
      at = static_cast<uint32_t>(nodes_.size());
      nodes_.emplace_back();
    }
    nodes_[at] = {.entry = block.entry, .band = static_cast<uint8_t>(block.priority / (256 / kBands))};
    index_.emplace(block.entry, at);
    LinkLast(at);
  }

  void Touch(uint32_t entry) override {
    const auto found = index_.find(entry);
    KVTIER_CHECK(found != index_.end());
    Unlink(found->second);
    LinkLast(found->second);
  }

  void Erase(uint32_t entry) override {
    const auto found = index_.find(entry);
    KVTIER_CHECK(found != index_.end());
    Unlink(found->second);
    free_.push_back(found->second);
    index_.erase(found);
  }

  std::optional<uint32_t> Victim(bool (*may_go)(void* context, uint32_t entry), void* context) override {
    int candidates = 0;
    for (const List& band : bands_) {
      for (uint32_t at = band.first; at != kNil; at = nodes_[at].next) {
        if (++candidates > kMaxCandidates) return std::nullopt;
        if (may_go(context, nodes_[at].entry)) return nodes_[at].entry;
      }
    }
    return std::nullopt;
  }

  uint64_t size() const override { return index_.size(); }

 private:
  struct Node {
    uint32_t entry = 0;
    uint32_t prev = kNil;
    uint32_t next = kNil;
    uint8_t band = 0;
  };
  struct List {
    uint32_t first = kNil;
    uint32_t last = kNil;
  };

  void LinkLast(uint32_t at) {
    List& list = bands_[nodes_[at].band];
    nodes_[at].prev = list.last;
    nodes_[at].next = kNil;
    (list.last == kNil ? list.first : nodes_[list.last].next) = at;
    list.last = at;
  }

  void Unlink(uint32_t at) {
    const Node& node = nodes_[at];
    List& list = bands_[node.band];
    (node.prev == kNil ? list.first : nodes_[node.prev].next) = node.next;
    (node.next == kNil ? list.last : nodes_[node.next].prev) = node.prev;
  }

  std::vector<Node> nodes_;
  std::vector<uint32_t> free_;
  absl::flat_hash_map<uint32_t, uint32_t> index_;  ///< entry to node
  std::array<List, kBands> bands_;
};

}  // namespace

Result<std::unique_ptr<EvictionPolicy>> MakeEvictionPolicy(std::string_view name) {
  if (name == "lru") return std::unique_ptr<EvictionPolicy>(std::make_unique<Lru>());
  return Status(Code::kInvalidArgument,
                "unknown eviction policy \"" + std::string(name) + "\"; there are: lru");
}

}  // namespace kvtier
