#ifndef KVTIER_KERNELS_SIMD_TARGETS_H_
#define KVTIER_KERNELS_SIMD_TARGETS_H_

// Before any include of Highway in a source that is compiled per target: which targets. What lies between
// portable and AVX2 is not worth its code.

#define HWY_WANT_AVX3_DL 1
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)

#endif
