#ifndef KVTIER_KERNELS_SIMD_TARGETS_H_
#define KVTIER_KERNELS_SIMD_TARGETS_H_

// Before any include of Highway in a source that is compiled per target: which targets. What lies between
// portable and AVX2 is not worth its code; vectors whose size the compiler does not know (SVE) have no arrays
// of them.

// The least of them is one lane with every compiler: it runs the portable bodies. (Highway's emulation of
// 128-bit vectors, which it would take with clang, is slower than they are.)

#define HWY_BROKEN_EMU128 1
// Also where the baseline has vectors (aarch64): what the others are compared with.
#define HWY_COMPILE_ALL_ATTAINABLE 1
#define HWY_WANT_AVX3_DL 1
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

#endif
