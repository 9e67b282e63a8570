#include "kernels/simd/copy_simd.h"

// clang-format off
#include "kernels/simd/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/copy_simd.cc"
#include <hwy/foreach_target.h>
// clang-format on

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace kvtier::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

void StreamCopy(std::byte* target, const std::byte* source, size_t bytes) {
  const hn::ScalableTag<uint8_t> d8;
  constexpr size_t kLineBytes = 64, kLanes = hn::MaxLanes(d8);
  static_assert(kLineBytes % kLanes == 0);
  const size_t before_line = (kLineBytes - reinterpret_cast<uintptr_t>(target) % kLineBytes) % kLineBytes;
  const size_t head = before_line < bytes ? before_line : bytes;
  memcpy(target, source, head);
  size_t at = head;
  for (; at + kLineBytes <= bytes; at += kLineBytes) {
    const auto* from = reinterpret_cast<const uint8_t*>(source + at);
    auto* to = reinterpret_cast<uint8_t*>(target + at);
    for (size_t i = 0; i < kLineBytes; i += kLanes) hn::Stream(hn::LoadU(d8, from + i), d8, to + i);
  }
  memcpy(target + at, source + at, bytes - at);
}

}  // namespace kvtier::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvtier {

HWY_EXPORT(StreamCopy);

void CopySimd(std::byte* target, const std::byte* source, size_t bytes, Stores stores) {
  if (stores == Stores::kStreaming) {
    HWY_DYNAMIC_DISPATCH(StreamCopy)(target, source, bytes);
  } else {
    memcpy(target, source, bytes);
  }
}

void FinishStores(Stores stores) {
  if (stores == Stores::kStreaming) hwy::FlushStream();
}

}  // namespace kvtier
#endif
