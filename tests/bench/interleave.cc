#include "tests/bench/interleave.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>

#include "tests/bench/bench.h"
#include "tiers/base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvtier::bench {
namespace {

constexpr uint32_t kRepeatsMax = 1 << 20;

double TimePasses(const Alternative& alternative, uint32_t repeats) {
  const double start = NowSeconds();
  for (uint32_t i = 0; i < repeats; ++i) alternative.pass();
  return (NowSeconds() - start) / repeats;
}

/// Passes per turn, found with the first, untimed ones.
uint32_t RepeatsOf(const Alternative& alternative, double turn_seconds) {
  const double cold = TimePasses(alternative, 1);
  const double once = cold < turn_seconds ? TimePasses(alternative, 1) : cold;
  const double repeats = std::ceil(turn_seconds / std::max(once, 1e-9));
  return static_cast<uint32_t>(std::clamp<double>(repeats, 1, kRepeatsMax));
}

double Median(std::vector<double> values) {
  KVTIER_CHECK(!values.empty());
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

#if defined(__x86_64__)

__attribute__((target("avx512f"))) void StreamCopy512(std::byte* to, const std::byte* from, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += 64)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at), _mm512_loadu_si512(from + at));
  _mm_sfence();
}

__attribute__((target("avx2"))) void StreamCopy256(std::byte* to, const std::byte* from, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += 32)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at)));
  _mm_sfence();
}

void StreamCopy128(std::byte* to, const std::byte* from, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += 16)
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + at),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at)));
  _mm_sfence();
}

#endif

}  // namespace

Interleaved Interleaved::Run(std::span<const Alternative> alternatives, const RoundLimits& limits) {
  std::vector<uint32_t> repeats;
  for (const Alternative& alternative : alternatives)
    repeats.push_back(RepeatsOf(alternative, limits.turn_seconds));

  Interleaved result;
  const double start = NowSeconds();
  for (uint32_t round = 0; round < limits.rounds; ++round) {
    if (round >= limits.rounds_min && NowSeconds() - start > limits.seconds) break;
    std::vector<double> seconds(alternatives.size());
    for (size_t turn = 0; turn < alternatives.size(); ++turn) {
      const size_t i = round % 2 == 0 ? turn : alternatives.size() - 1 - turn;
      seconds[i] = TimePasses(alternatives[i], repeats[i]);
    }
    result.seconds_.push_back(std::move(seconds));
  }
  return result;
}

double Interleaved::Seconds(size_t alternative) const {
  std::vector<double> seconds;
  for (const auto& round : seconds_) seconds.push_back(round.at(alternative));
  return Median(std::move(seconds));
}

double Interleaved::SpeedRatio(size_t alternative, size_t reference) const {
  return SpeedRatioToBest(alternative, {&reference, 1});
}

double Interleaved::SpeedRatioToBest(size_t alternative, std::span<const size_t> references) const {
  KVTIER_CHECK(!references.empty());
  std::vector<double> ratios;
  for (const auto& round : seconds_) {
    double best = round.at(references[0]);
    for (const size_t reference : references) best = std::min(best, round.at(reference));
    ratios.push_back(best / round.at(alternative));
  }
  return Median(std::move(ratios));
}

uint64_t PrivateCacheBytes() {
  const long bytes = ::sysconf(_SC_LEVEL2_CACHE_SIZE);
  return bytes > 0 ? static_cast<uint64_t>(bytes) : uint64_t{1} << 20;
}

void NonTemporalCopy(std::byte* to, const std::byte* from, uint64_t bytes) {
  KVTIER_CHECK(bytes % 64 == 0 && reinterpret_cast<uintptr_t>(to) % 64 == 0);
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return StreamCopy512(to, from, bytes);
  if (__builtin_cpu_supports("avx2")) return StreamCopy256(to, from, bytes);
  StreamCopy128(to, from, bytes);
#else
  std::memcpy(to, from, bytes);
#endif
}

void TouchPages(std::span<std::byte> memory) {
  constexpr uint64_t kSmallestPageBytes = 4096;
  for (uint64_t at = 0; at < memory.size(); at += kSmallestPageBytes) memory[at] = std::byte{1};
}

void RunShares(uint32_t threads, const std::function<void(uint32_t)>& share) {
  std::vector<std::jthread> others;
  for (uint32_t i = 1; i < threads; ++i) others.emplace_back([&share, i] { share(i); });
  share(0);
}

}  // namespace kvtier::bench
