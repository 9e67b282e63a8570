#pragma once

/// Marks a function that g++ compiles for the host and nvcc for host and device.
#ifdef __CUDACC__
#define KVTIER_HD __host__ __device__
#else
#define KVTIER_HD
#endif
