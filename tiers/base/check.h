#pragma once

#include <cstdio>
#include <cstdlib>

/// Programmer errors: print where and stop. For anything that input, a device or a peer can cause, return a
/// Status.
#define KVTIER_CHECK(condition)                                                          \
  do {                                                                                   \
    if (!(condition)) [[unlikely]] {                                                     \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)
