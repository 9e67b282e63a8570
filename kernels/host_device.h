#pragma once

/// Marks a function that g++ compiles for the host and nvcc for host and device.
#ifdef __CUDACC__
#define KVTIER_HD __host__ __device__
/// And not inlined there: for what is rare, so that it costs the common path no registers.
#define KVTIER_HD_RARE __host__ __device__ __noinline__
#else
#define KVTIER_HD
#define KVTIER_HD_RARE
#endif
