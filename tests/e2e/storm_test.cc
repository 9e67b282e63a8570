// Many clients, small tiers, demotion storms: every payload that comes back is the right one.
#include <array>
#include <atomic>
#include <cmath>
#include <random>
#include <thread>

#include "kernels/numerics.h"
#include "tests/e2e/e2e.h"

namespace kvtier::e2e {
namespace {

constexpr int kClients = 100;
#if defined(__SANITIZE_ADDRESS__)
constexpr int kOperations = 100;
#else
constexpr int kOperations = 1000;
#endif
constexpr size_t kSequences = 16;  ///< of each client
constexpr size_t kBlocks = 2, kTokens = kBlocks * 64;

/// 16 KiB a block: one layer, one head.
kvtier_model_spec SmallSpec() {
  kvtier_model_spec spec = TestSpec("storm");
  spec.layers = 1;
  spec.kv_heads = 1;
  return spec;
}

/// K and V of one sequence of one owner: values that no other owner, sequence or block has. [K,
/// V][token][channel].
using Payload = std::array<uint16_t, 2 * kTokens * 64>;

Payload MakePayload(uint32_t owner, uint32_t sequence) {
  Payload payload;
  std::minstd_rand rng(1 + owner * 1000 + sequence);
  for (uint16_t& value : payload)
    value = static_cast<uint16_t>(0x3800 | ((rng() >> 4) & 0x83ff));  // 0.5 to 1, both signs
  return payload;
}

kvtier_view ViewOf(Payload& payload, void** base) {
  *base = payload.data();
  kvtier_view view = api::ContiguousView(base, 1);
  view.token_stride = 64 * 2;
  view.head_stride = view.v_offset = view.layer_stride = kTokens * 64 * 2;
  return view;
}

double BlockError(const Payload& want, const Payload& got, size_t block) {
  double squares = 0, differences = 0;
  for (size_t v = 0; v < 2; ++v) {
    for (size_t i = (v * kTokens + block * 64) * 64; i < (v * kTokens + (block + 1) * 64) * 64; ++i) {
      const double x = Fp32FromFp16(want[i]), y = Fp32FromFp16(got[i]);
      squares += x * x;
      differences += (x - y) * (x - y);
    }
  }
  return std::sqrt(differences / squares);
}

struct Tally {
  std::atomic<uint64_t> operations = 0, fetched = 0, exact = 0, wrong = 0, missed = 0, stored = 0,
                        refused = 0;
};

class Storm : public E2eTest {
 protected:
  /// One client's life.
  void RunClient(uint32_t owner, Tally& tally) {
    const Engine engine = Connect(SmallSpec());
    std::mt19937 rng(owner);
    for (int i = 0; i < kOperations; ++i) {
      const auto sequence_number = static_cast<uint32_t>(rng() % kSequences);
      const api::Sequence sequence = engine.Keys(Tokens(owner * 1000 + sequence_number, kTokens));
      Payload want = MakePayload(owner, sequence_number);
      if (rng() % 3 == 0) {
        PutOne(engine, sequence, want, tally);
      } else if (!FetchOne(engine, sequence, want, tally)) {
        PutOne(engine, sequence, want, tally);
      }
      ++tally.operations;
    }
  }

  void PutOne(const Engine& engine, const api::Sequence& sequence, Payload& payload, Tally& tally) {
    void* base = nullptr;
    const auto ticket = engine.model.Put(sequence.Query(), ViewOf(payload, &base));
    if (!ticket) {
      tally.refused += kBlocks;
      return;
    }
    std::vector<kvtier_put_result> results(kBlocks);
    (void)engine.client.Wait(*ticket, results);
    for (const auto& result : results) {
      (result.code == KVTIER_OK || result.code == KVTIER_PRESENT ? tally.stored : tally.refused) += 1;
    }
  }

  bool FetchOne(const Engine& engine, const api::Sequence& sequence, const Payload& want, Tally& tally) {
    auto lease = engine.model.Acquire(sequence.Query());
    if (!lease) {
      tally.missed += kBlocks;
      return false;
    }
    Payload got{};
    void* base = nullptr;
    std::vector<kvtier_block_result> results(lease->count());
    (void)lease->Fetch(0, ViewOf(got, &base), results);
    for (size_t b = 0; b < results.size(); ++b) {
      if (results[b].code != KVTIER_OK) continue;
      ++tally.fetched;
      const double error = BlockError(want, got, b);
      if (error == 0) ++tally.exact;
      const bool right = results[b].precision == KVTIER_BITS16 ? error == 0 : error < 0.7;
      if (!right) ++tally.wrong;
    }
    return results.size() == kBlocks;
  }
};

TEST_F(Storm, S03_HundredClientsAndDemotionStormsNeverSeeAWrongByte) {
  // 100 x 16 x 2 blocks of 32 KiB are 100 MiB raw: far above hot and warm.
  StartDaemon({.hot_bytes = uint64_t{16} << 20,
               .warm_bytes = uint64_t{16} << 20,
               .cold_bytes = uint64_t{256} << 20,
               .more = {}});
  Tally tally;
  std::atomic<bool> stop = false;
  std::thread storm([&] {
    while (!stop) {
      Ctl(*daemon_, "demote hot 200");
      Ctl(*daemon_, "demote warm 200");
    }
  });
  std::vector<std::thread> clients;
  for (uint32_t c = 0; c < kClients; ++c) clients.emplace_back([&, c] { RunClient(c, tally); });
  for (auto& client : clients) client.join();
  stop = true;
  storm.join();

  std::printf("%llu operations: %llu blocks fetched (%llu exact), %llu missed, %llu stored, %llu refused\n",
              static_cast<unsigned long long>(tally.operations),
              static_cast<unsigned long long>(tally.fetched), static_cast<unsigned long long>(tally.exact),
              static_cast<unsigned long long>(tally.missed), static_cast<unsigned long long>(tally.stored),
              static_cast<unsigned long long>(tally.refused));
  EXPECT_EQ(tally.operations, uint64_t{kClients} * kOperations);
  EXPECT_EQ(tally.wrong, 0u);
  EXPECT_EQ(tally.refused, 0u);
  EXPECT_GT(tally.fetched, tally.exact) << "no block came back from a lower rung: not a storm";
  EXPECT_GT(tally.exact, 0u);
  EXPECT_TRUE(Eventually(10, [&] { return daemon_->Metric("kvtier_leases").value() == 0; }))
      << "leases back to zero";
  EXPECT_TRUE(daemon_->running());
  EXPECT_EQ(Ctl(*daemon_, "verify warm").exit_code, 0);
  EXPECT_EQ(Ctl(*daemon_, "verify cold").exit_code, 0);
}

TEST_F(Storm, S04_AFetchDuringItsPutIsAMissPendingOrTheWholeBlock) {
  StartDaemon({});
  std::atomic<bool> stop = false;
  std::atomic<uint64_t> hits = 0;
  std::thread reader([&] {
    const Engine engine = Connect(SmallSpec());
    for (uint32_t s = 0; !stop; s = (s + 1) % 200) {
      const Payload want = MakePayload(1, s);
      Tally tally;
      FetchOne(engine, engine.Keys(Tokens(1000 + s, kTokens)), want, tally);
      EXPECT_EQ(tally.wrong, 0u) << "sequence " << s;
      EXPECT_EQ(tally.exact, tally.fetched);
      hits += tally.fetched;
    }
  });
  const Engine engine = Connect(SmallSpec());
  for (int round = 0; round < 5; ++round) {
    for (uint32_t s = 0; s < 200; ++s) {
      const api::Sequence sequence = engine.Keys(Tokens(1000 + s, kTokens));
      Payload payload = MakePayload(1, s);
      Tally tally;
      PutOne(engine, sequence, payload, tally);
      if (s % 3 == 0) (void)engine.model.Remove(sequence.Query());
    }
  }
  EXPECT_TRUE(Eventually(20, [&] { return hits > 100; }));
  stop = true;
  reader.join();
}

}  // namespace
}  // namespace kvtier::e2e
