#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <initializer_list>

namespace kvtier {

/// GEMV of cuBLAS, to measure against, where the machine has it: it is looked for when the program runs, so
/// that this is built, and runs, without. Threads: one.
class CublasGemv {
 public:
  CublasGemv() {
    for (const char* name : {"libcublas.so.13", "libcublas.so.12", "libcublas.so"}) {
      if (library_ == nullptr) library_ = dlopen(name, RTLD_NOW);
    }
    if (library_ == nullptr) return;
    const auto create = reinterpret_cast<int (*)(void**)>(dlsym(library_, "cublasCreate_v2"));
    gemv_ = reinterpret_cast<Gemv>(dlsym(library_, "cublasHSSgemvStridedBatched"));
    if (create == nullptr || create(&handle_) != 0) handle_ = nullptr;
  }
  CublasGemv(const CublasGemv&) = delete;
  CublasGemv& operator=(const CublasGemv&) = delete;
  ~CublasGemv() {
    if (library_ == nullptr) return;
    const auto destroy = reinterpret_cast<int (*)(void*)>(dlsym(library_, "cublasDestroy_v2"));
    if (handle_ != nullptr && destroy != nullptr) destroy(handle_);
    dlclose(library_);
  }

  bool IsThere() const { return handle_ != nullptr && gemv_ != nullptr; }

  /// `count` matrices of fp16, column by column.
  struct Matrices {
    const void* a;  ///< [count][columns][rows]
    int rows, columns, count;
  };
  /// y = A^T x and y = A x, of fp16 x and fp32 y side by side. False: it was refused.
  bool Transposed(const Matrices& m, const void* x, float* y) const { return Run(m, 1, x, y); }
  bool Plain(const Matrices& m, const void* x, float* y) const { return Run(m, 0, x, y); }

 private:
  /// cublasHSSgemvStridedBatched (cublas_api.h), its enumerations as the integers that they are.
  using Gemv = int (*)(void*, int, int, int, const float*, const void*, int, long long, const void*, int,
                       long long, const float*, float*, int, long long, int);

  bool Run(const Matrices& m, int transposed, const void* x, float* y) const {
    const float one = 1, zero = 0;
    const int x_size = transposed != 0 ? m.rows : m.columns, y_size = m.rows + m.columns - x_size;
    return gemv_(handle_, transposed, m.rows, m.columns, &one, m.a, m.rows, int64_t{m.rows} * m.columns, x, 1,
                 x_size, &zero, y, 1, y_size, m.count) == 0;
  }

  void* library_ = nullptr;
  void* handle_ = nullptr;
  Gemv gemv_ = nullptr;
};

}  // namespace kvtier
