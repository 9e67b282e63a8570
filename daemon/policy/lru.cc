#include <array>
#include <vector>

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

/// Least recently used first. Each band is a doubly linked list through nodes that are found by their entry's
/// number, oldest at the front. Takes memory for the numbers about it only: most blocks pass through the
/// orders of the upper tiers on their way down.
class Lru final : public EvictionPolicy {
 public:
  void Insert(const Insertion& block) override {
    if (block.entry / kChunkNodes >= chunks_.size()) chunks_.resize(block.entry / kChunkNodes + 1);
    std::unique_ptr<Chunk>& chunk = chunks_[block.entry / kChunkNodes];
    if (!chunk) chunk = std::make_unique<Chunk>();
    uint8_t& band = Band(block.entry);
    KVTIER_CHECK(band == kNoBand);
    band = static_cast<uint8_t>(block.priority / (256 / kBands));
    LinkLast(block.entry);
    ++chunk->used;
    ++size_;
  }

  void Touch(uint32_t entry) override {
    Unlink(entry);
    LinkLast(entry);
  }

  void Erase(uint32_t entry) override {
    Unlink(entry);
    Band(entry) = kNoBand;
    --size_;
    std::unique_ptr<Chunk>& chunk = chunks_[entry / kChunkNodes];
    if (--chunk->used == 0) chunk.reset();
  }

  std::optional<uint32_t> Victim(bool (*may_go)(void* context, uint32_t entry), void* context) override {
    int candidates = 0;
    for (const List& band : bands_) {
      for (uint32_t entry = band.first; entry != kNil; entry = At(entry).next) {
        if (++candidates > kMaxCandidates) return std::nullopt;
        if (may_go(context, entry)) return entry;
      }
    }
    return std::nullopt;
  }

  uint64_t size() const override { return size_; }

 private:
  static constexpr uint8_t kNoBand = 255;
  /// Small: an order of few blocks, whose numbers are far apart, pays for a chunk each.
  static constexpr uint32_t kChunkNodes = 64;
  struct Node {
    uint32_t prev = kNil;
    uint32_t next = kNil;
  };
  struct Chunk {
    std::array<Node, kChunkNodes> nodes;
    std::array<uint8_t, kChunkNodes> bands;
    uint32_t used = 0;
    Chunk() { bands.fill(kNoBand); }
  };
  struct List {
    uint32_t first = kNil;
    uint32_t last = kNil;
  };

  Node& At(uint32_t entry) { return chunks_[entry / kChunkNodes]->nodes[entry % kChunkNodes]; }
  uint8_t& Band(uint32_t entry) { return chunks_[entry / kChunkNodes]->bands[entry % kChunkNodes]; }

  void LinkLast(uint32_t entry) {
    Node& node = At(entry);
    List& list = bands_[Band(entry)];
    node.prev = list.last;
    node.next = kNil;
    (list.last == kNil ? list.first : At(list.last).next) = entry;
    list.last = entry;
  }

  void Unlink(uint32_t entry) {
    KVTIER_CHECK(entry / kChunkNodes < chunks_.size() && chunks_[entry / kChunkNodes] != nullptr);
    const Node& node = At(entry);
    KVTIER_CHECK(Band(entry) != kNoBand);
    List& list = bands_[Band(entry)];
    (node.prev == kNil ? list.first : At(node.prev).next) = node.next;
    (node.next == kNil ? list.last : At(node.next).prev) = node.prev;
  }

  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::array<List, kBands> bands_;
  uint64_t size_ = 0;
};

}  // namespace

Result<std::unique_ptr<EvictionPolicy>> MakeEvictionPolicy(std::string_view name) {
  if (name == "lru") return std::unique_ptr<EvictionPolicy>(std::make_unique<Lru>());
  return Status(Code::kInvalidArgument,
                "unknown eviction policy \"" + std::string(name) + "\"; there are: lru");
}

}  // namespace kvtier
