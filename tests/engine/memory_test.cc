// What the engine's books take of memory: every allocation of this program is counted, as large as the
// allocator made it.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <new>

#include "codecs/image_layout.h"
#include "daemon/policy/keys.h"
#include "tests/support/engine_harness.h"

namespace {

std::atomic<int64_t> heap_bytes{0};
/// Of malloc's own, before each piece.
constexpr int64_t kPieceHeaderBytes = 8;

int64_t SizeOf(void* piece) {
  return static_cast<int64_t>(::malloc_usable_size(piece)) + kPieceHeaderBytes;
}
void* Counted(void* piece) {
  if (piece == nullptr) std::abort();
  heap_bytes += SizeOf(piece);
  return piece;
}
void Free(void* piece) {
  if (piece == nullptr) return;
  heap_bytes -= SizeOf(piece);
  std::free(piece);
}

}  // namespace

// The other forms call these.
void* operator new(size_t bytes) {
  return Counted(std::malloc(bytes));
}
void* operator new(size_t bytes, std::align_val_t align) {
  const auto alignment = static_cast<size_t>(align);
  return Counted(std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment));
}
void operator delete(void* piece) noexcept {
  Free(piece);
}
void operator delete(void* piece, size_t) noexcept {
  Free(piece);
}
void operator delete(void* piece, std::align_val_t) noexcept {
  Free(piece);
}
void operator delete(void* piece, size_t, std::align_val_t) noexcept {
  Free(piece);
}

namespace kvtier {
namespace {

constexpr uint64_t kBlocks = 1'000'000;
constexpr int64_t kMostBytesPerBlock = 200;
constexpr uint64_t kMiB = uint64_t{1} << 20;

Key KeyOf(uint64_t number) {
  Key key;
  for (size_t at = 0; at < key.bytes.size(); at += sizeof(number)) {
    number = (number + at + 1) * 0x9E3779B97F4A7C15u;
    number ^= number >> 29;
    std::memcpy(key.bytes.data() + at, &number, sizeof(number));
  }
  return key;
}

/// An engine whose jobs all succeed at once, and leave nothing behind.
class Books final : public EngineEvents {
 public:
  explicit Books(std::vector<ColdRecovery> recovery) {
    EngineOptions options;
    options.tiers = {HostTier("hot", 32 * kMiB, CodecId::kRaw16), HostTier("warm", 32 * kMiB, CodecId::kKv4p),
                     ColdTier("cold", kBlocks * 8192 + 1024 * kMiB, 64 * kMiB, CodecId::kKv2p)};
    static FakeLadder media;
    for (size_t i = 0; i < options.tiers.size(); ++i) {
      options.tiers[i].medium = media.medium(TierId{static_cast<uint8_t>(i)});
    }
    std::array<Engine::DeviceQueues, kMaxTiers> devices;
    devices[2] = {&device_moves_, &device_commits_};
    recovery.resize(options.tiers.size());
    engine =
        Engine::Make(options, {commands_, completions_, jobs_, devices, *this, metrics}, std::move(recovery))
            .value();
    Send(OpenSession{SessionId{1}, "uid:1000", {}});
    Send(RegisterModel{SessionId{1}, spec,
                       [this](const Result<RegisteredModel>& registered) { model = registered->model; }});
    Settle();
  }

  /// Blocks `first` .. of one long chain.
  void PutChain(uint64_t first, uint64_t count) {
    const StagedSource source = OwnedSource(spec, static_cast<uint16_t>(spec.tokens_per_block), 0);
    Put put;
    put.session = SessionId{1};
    put.model = model;
    put.ticket = TicketId{next_ticket_++};
    for (uint64_t i = first; i < first + count; ++i) {
      put.blocks.push_back({.key = KeyOf(i),
                            .parent = KeyOf(i - 1),
                            .first_position = i * spec.tokens_per_block,
                            .tokens = static_cast<uint16_t>(spec.tokens_per_block),
                            .source = source,
                            .supersedes = {}});
    }
    Send(std::move(put));
    Settle();
  }
  uint64_t BlocksOn(TierId tier) const {
    uint64_t blocks = 0;
    for (const Gauge& gauge : metrics.tier[tier.value].blocks) blocks += static_cast<uint64_t>(gauge.Get());
    return blocks;
  }

  void OnArenaPublished(const ArenaSpec&) override {}
  void OnSessionArena(SessionId, const ArenaSpec&) override {}
  void OnArenaRetired(ArenaId arena, TenantId) override { Send(ArenaUnmapped{SessionId{1}, arena}); }

  const ModelSpec spec = TinyModel();
  ModelId model;
  Metrics metrics;
  std::unique_ptr<Engine> engine;

 private:
  template <typename Body>
  void Send(Body body) {
    ASSERT_TRUE(
        commands_.TryPush(Command{.deadline = now_ + std::chrono::seconds(1), .body = std::move(body)}));
  }
  void Settle() {
    for (bool any = true; any;) {
      any = engine->Step(now_) <= now_;
      while (auto job = jobs_.TryPop()) any = Finish(job->id, Done(*job));
      while (auto job = device_moves_.TryPop()) any = Finish(job->id, Done(*job));
      while (auto job = device_commits_.TryPop()) any = Finish(job->id, {});
    }
    now_ += std::chrono::milliseconds(20);
  }
  bool Finish(JobId id, MoveOutcome outcome) {
    return completions_.TryPush({.id = id, .status = Status::Ok(), .outcome = std::move(outcome)});
  }
  static MoveOutcome Done(const Job& job) {
    MoveOutcome outcome;
    const auto* move = std::get_if<MoveJob>(&job.work);
    if (move == nullptr) return outcome;
    outcome.codec = move->order.codec->id;
    outcome.image_bytes = PlainImageBytes(*move->order.codec, move->order.identity.shape);
    return outcome;
  }

  TimePoint now_{};
  uint64_t next_ticket_ = 1;
  BoundedQueue<Command> commands_{4096};
  BoundedQueue<Completion> completions_{1024};
  BoundedQueue<Job> jobs_{256}, device_moves_{256};
  BoundedQueue<ColdJob> device_commits_{256};
};

void ExpectFew(int64_t bytes, const char* how) {
  const double per_block = static_cast<double>(bytes) / kBlocks;
  std::cout << kBlocks << " blocks " << how << ": " << per_block << " bytes each\n";
  EXPECT_LT(per_block, kMostBytesPerBlock);
}

/// Counted: all that the engine holds more than an empty one does. Rows with full keys, index, copies, orders
/// of all tiers, records of the segments. The chain was put, and went down the whole ladder.
TEST(EngineMemory, AMillionBlocksThatCameDownToTheColdTierTakeLessThan200BytesEach) {
  Books books({});
  const int64_t before = heap_bytes;
  constexpr uint64_t kBatch = 1000;
  for (uint64_t first = 1; first <= kBlocks; first += kBatch) books.PutChain(first, kBatch);
  ExpectFew(heap_bytes - before, "put");
  EXPECT_EQ(books.metrics.table_entries.Get(), static_cast<int64_t>(kBlocks));
  EXPECT_GE(books.BlocksOn(TierId{2}), kBlocks * 9 / 10);
  EXPECT_GT(heap_bytes - before, static_cast<int64_t>(kBlocks * sizeof(Key)));  // it does count
}

TEST(EngineMemory, AMillionBlocksThatWereRecoveredTakeLessThan200BytesEach) {
  const int64_t before = heap_bytes;
  const ModelSpec spec = TinyModel();
  std::vector<ColdRecovery> recovery(3);
  ColdRecovery& cold = recovery[2];
  const NamespaceDigest name_space = ComputeNamespace("uid:1000", spec);
  cold.models.push_back({name_space, SerializeModel("uid:1000", spec)});
  const Codec& codec = *FindCodec(CodecId::kKv2p);
  const BlockShape shape = ShapeOf(spec, 0, static_cast<uint16_t>(spec.tokens_per_block));
  const uint64_t image_bytes = PlainImageBytes(codec, shape), record_bytes = ColdRecordBytes(image_bytes);
  uint64_t segment = 0, offset = kColdSegmentHeaderBytes;
  const auto seal = [&] {
    cold.segments.push_back({.number = static_cast<uint32_t>(segment),
                             .sequence = segment + 1,
                             .used_bytes = offset,
                             .part = ColdPart::kBase});
  };
  for (uint64_t i = 1; i <= kBlocks; ++i) {
    if (offset + record_bytes > 64 * kMiB) {
      seal();
      ++segment;
      offset = kColdSegmentHeaderBytes;
    }
    const uint64_t position = i * spec.tokens_per_block;
    RecoveredBlock& block = cold.blocks.emplace_back();
    block.identity = {.key = KeyOf(i),
                      .name_space = name_space,
                      .first_position = position,
                      .shape = ShapeOf(spec, position, shape.tokens)};
    block.meta.parent = KeyOf(i - 1);
    block.place = {.tier = TierId{2},
                   .container = static_cast<uint32_t>(segment),
                   .offset = offset,
                   .bytes = record_bytes,
                   .epoch = segment + 1};
    block.codec = codec.id;
    block.image_bytes = image_bytes;
    offset += record_bytes;
  }
  seal();
  const Books books(std::move(recovery));
  EXPECT_EQ(books.BlocksOn(TierId{2}), kBlocks);
  ExpectFew(heap_bytes - before, "recovered");
}

}  // namespace
}  // namespace kvtier
