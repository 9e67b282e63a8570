#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/host_device.h"
#include "kernels/numerics.h"

// Arithmetic that a GPU has instructions for, with the same bits on the host: what bodies of batches spend
// their time in. Each function is its own specification outside of nvcc's device pass.

namespace kvtier::internal {

/// Bytes at an address that is a multiple of their number, in one access.
template <typename Word>
KVTIER_HD Word LoadWord(const void* source) {
  Word word;
  memcpy(&word, __builtin_assume_aligned(source, sizeof(Word)), sizeof(Word));
  return word;
}
template <typename Word>
KVTIER_HD void StoreWord(void* target, Word word) {
  memcpy(__builtin_assume_aligned(target, sizeof(Word)), &word, sizeof(Word));
}

/// rn16 of what is below 65536, and back: one instruction each on a GPU, the same bits as numerics.h.
KVTIER_HD inline uint16_t ToHalf(float value) {
#ifdef __CUDA_ARCH__
  uint16_t half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return half;
#else
  return Fp16FromFinite(value);
#endif
}
KVTIER_HD inline float FromHalf(uint16_t half) {
#ifdef __CUDA_ARCH__
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
#else
  return Fp32FromFp16(half);
#endif
}

/// A pair of 16-bit numbers as a word, `first` in its lower half.
KVTIER_HD constexpr uint32_t PairOf(uint16_t first, uint16_t second) {
  return first | uint32_t{second} << 16;
}
KVTIER_HD constexpr uint16_t FirstOf(uint32_t pair) {
  return static_cast<uint16_t>(pair);
}
KVTIER_HD constexpr uint16_t SecondOf(uint32_t pair) {
  return static_cast<uint16_t>(pair >> 16);
}
/// Two finite numbers below 65520 to fp16.
KVTIER_HD inline uint32_t ToHalves(float first, float second) {
#ifdef __CUDA_ARCH__
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
#else
  return PairOf(Fp16FromFinite(first), Fp16FromFinite(second));
#endif
}
/// Two finite numbers to BF16.
KVTIER_HD inline uint32_t ToBrains(float first, float second) {
#ifdef __CUDA_ARCH__
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
#else
  return PairOf(Bf16FromFinite(first), Bf16FromFinite(second));
#endif
}

/// a * b + c of two pairs of fp16 where c is 0, or everything is a small integer: one rounding.
KVTIER_HD inline uint32_t HalvesFma(uint32_t a, uint32_t b, uint32_t c) {
#ifdef __CUDA_ARCH__
  uint32_t sum;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
  return sum;
#else
  const auto fma = [](uint16_t x, uint16_t y, uint16_t z) {
    return Fp16FromFp32(Fp32FromFp16(x) * Fp32FromFp16(y) + Fp32FromFp16(z));
  };
  return PairOf(fma(FirstOf(a), FirstOf(b), FirstOf(c)), fma(SecondOf(a), SecondOf(b), SecondOf(c)));
#endif
}
/// a + b and a - b of two pairs of fp16.
KVTIER_HD inline uint32_t HalvesAdd(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
  uint32_t sum;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
  return sum;
#else
  const auto add = [](uint16_t x, uint16_t y) { return Fp16FromFp32(Fp32FromFp16(x) + Fp32FromFp16(y)); };
  return PairOf(add(FirstOf(a), FirstOf(b)), add(SecondOf(a), SecondOf(b)));
#endif
}
KVTIER_HD inline uint32_t HalvesSub(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
  uint32_t difference;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(difference) : "r"(a), "r"(b));
  return difference;
#else
  return HalvesAdd(a, b ^ 0x80008000);
#endif
}
/// ClampToFp16 of two fp16: NaN becomes the maximum.
KVTIER_HD inline uint32_t HalvesClamp(uint32_t pair) {
  constexpr uint32_t kMax = 0x7bff7bff, kMin = 0xfbfffbff;
#ifdef __CUDA_ARCH__
  asm("min.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(kMax));
  asm("max.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(kMin));
  return pair;
#else
  const auto clamp = [](uint16_t half) { return Fp16Out(Fp32FromFp16(half)); };
  static_cast<void>(kMax), static_cast<void>(kMin);
  return PairOf(clamp(FirstOf(pair)), clamp(SecondOf(pair)));
#endif
}
/// Bytes `first` and `first` + 1 of a word as the fp16 numbers 1024 + byte.
KVTIER_HD inline uint32_t HalvesOfBytes(uint32_t word, uint32_t first) {
#ifdef __CUDA_ARCH__
  return __byte_perm(word, 0x64646464, 0x4140 + first * 0x0101);
#else
  return 0x64006400 | (word >> 8 * first & 0xff) | (word >> (8 * first + 8) & 0xff) << 16;
#endif
}
/// The pair the other way round.
KVTIER_HD inline uint32_t Swapped(uint32_t pair) {
  return pair >> 16 | pair << 16;
}

/// Byte i of a word as fp32: 2^23 + byte has the byte in its last place, which is cheaper than a conversion.
KVTIER_HD inline float FloatOfByte(uint32_t word, uint32_t i) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(__byte_perm(word, 0x4b000000, 0x7440 + i)) - 8388608.0f;
#else
  return std::bit_cast<float>(0x4b000000 | (word >> 8 * i & 0xff)) - 8388608.0f;
#endif
}

/// The smaller of two numbers, the larger; not `value` where that is NaN. Of two zeros either.
KVTIER_HD inline float Smaller(float value, float other) {
#ifdef __CUDA_ARCH__
  return fminf(value, other);
#else
  return value < other ? value : other;
#endif
}
KVTIER_HD inline float Larger(float value, float other) {
#ifdef __CUDA_ARCH__
  return fmaxf(value, other);
#else
  return value > other ? value : other;
#endif
}

/// a * b + c where the product is exact, so that it is the same bits with one rounding as with two.
KVTIER_HD inline float ExactFma(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
/// a * b + c for sums of errors, whose last places mean nothing.
KVTIER_HD inline float SumFma(float a, float b, float c) {
  return ExactFma(a, b, c);
}

/// 2^23 + 8 + floor(value) of a value in [-8, 8): its last four bits are floor(value) + 8.
inline constexpr float kFloorRounder = 8388616.0f;
KVTIER_HD inline float FloorSum(float value) {
#ifdef __CUDA_ARCH__
  return __fadd_rd(value, kFloorRounder);
#else
  return kFloorRounder + static_cast<float>(FloorToInt(value));
#endif
}

/// up16 of what is not negative.
KVTIER_HD inline uint16_t ToHalfUp(float value) {
#ifdef __CUDA_ARCH__
  uint16_t half;
  asm("cvt.rp.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return half;
#else
  return Fp16UpFromFp32(value);
#endif
}

/// The lowest bytes of four words.
KVTIER_HD inline uint32_t BytesOf(const uint32_t (&words)[4]) {
#ifdef __CUDA_ARCH__
  return __byte_perm(__byte_perm(words[0], words[1], 0x0040), __byte_perm(words[2], words[3], 0x0040),
                     0x5410);
#else
  return (words[0] & 0xff) | (words[1] & 0xff) << 8 | (words[2] & 0xff) << 16 | words[3] << 24;
#endif
}

}  // namespace kvtier::internal
