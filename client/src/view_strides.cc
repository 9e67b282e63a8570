#include "client/src/view_strides.h"

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "kernels/layout.h"

namespace kvtier::client {
namespace {

/// User space of the CPUs that there are.
constexpr uint64_t kMaxReachBytes = uint64_t{1} << 57;
/// Multiples of a stride that are compared with another's: more than sane layouts need.
constexpr uint64_t kMaxMultiples = 1024;

/// One index of an element: `count` values, `stride` bytes apart.
struct Axis {
  const char* name;
  uint64_t stride;  ///< magnitude
  uint64_t count;
};

uint64_t Magnitude(int64_t stride) {
  return stride < 0 ? uint64_t{0} - static_cast<uint64_t>(stride) : static_cast<uint64_t>(stride);
}

int64_t ChannelStride(const kvtier_view& view) {
  return view.channel_stride == 0 ? DTypeBytes(static_cast<DType>(view.dtype)) : view.channel_stride;
}

uint64_t TokensSideBySide(const kvtier_view& view, uint64_t tokens) {
  return view.page_table == nullptr ? tokens : std::min<uint64_t>(tokens, view.page_tokens);
}

std::span<const int32_t> PagesOf(const kvtier_view& view, uint64_t tokens) {
  if (view.page_table == nullptr) return {};
  return {view.page_table, (tokens + view.page_tokens - 1) / view.page_tokens};
}

/// Whether a * x.stride and b * y.stride are less than `bytes` apart for some 0 < a < x.count and
/// 0 <= b < y.count, or the other way around.
bool Collide(const Axis& x, const Axis& y, uint64_t bytes) {
  const Axis& large = x.stride >= y.stride ? x : y;
  const Axis& small = x.stride >= y.stride ? y : x;
  const uint64_t reach = (small.count - 1) * small.stride + bytes;
  uint64_t at = large.stride;
  for (uint64_t a = 1; a < large.count && a <= kMaxMultiples && at < reach; ++a, at += large.stride) {
    const uint64_t below = std::min(at / small.stride, small.count - 1);
    if (at - below * small.stride < bytes) return true;
    if (below + 1 < small.count && (below + 1) * small.stride - at < bytes) return true;
  }
  return false;
}

Status Invalid(const std::string& what) {
  return Status(Code::kInvalidArgument, "view: " + what);
}

/// What adjoins in a row: all its channels, or the one element where they are apart.
uint64_t SolidBytes(const kvtier_view& view, uint64_t channels) {
  const uint64_t element = DTypeBytes(static_cast<DType>(view.dtype));
  return Magnitude(ChannelStride(view)) == element ? channels * element : element;
}

/// The axes of K, or of V, without channels that adjoin.
std::vector<Axis> AxesOf(const kvtier_view& view, const ViewPart& part, uint64_t channels) {
  const bool adjoin = SolidBytes(view, 2) > SolidBytes(view, 1);
  std::vector<Axis> axes = {
      {"token_stride", Magnitude(view.token_stride), TokensSideBySide(view, part.tokens)},
      {"head_stride", Magnitude(view.head_stride), part.spec.kv_heads}};
  if (!adjoin) axes.push_back({"channel_stride", Magnitude(ChannelStride(view)), channels});
  if (view.n_bases == 1) axes.push_back({"layer_stride", Magnitude(view.layer_stride), part.layers.count});
  std::erase_if(axes, [](const Axis& axis) { return axis.count < 2; });
  return axes;
}

Status CheckAxis(const Axis& axis, uint64_t bytes) {
  if (axis.stride >= bytes) return Status::Ok();
  return Invalid(std::string(axis.name) + " is " + std::to_string(axis.stride) + ", less than the " +
                 std::to_string(bytes) + " bytes that it steps over");
}

Status CheckPairs(std::span<const Axis> axes, const Axis& other, uint64_t bytes) {
  for (const Axis& axis : axes) {
    if (Collide(axis, other, bytes)) {
      return Invalid(std::string(axis.name) + " and " + other.name +
                     " put elements over one another; they are in bytes");
    }
  }
  return Status::Ok();
}

/// K and V over one another. Their channels may differ in number.
Status CheckVOffset(const kvtier_view& view, const ViewPart& part) {
  if (view.v_bases != nullptr) return Status::Ok();
  const ModelSpec& spec = part.spec;
  const uint64_t bytes = SolidBytes(view, std::min(spec.k_dim, spec.v_dim));
  const Axis v_offset = {"v_offset", Magnitude(view.v_offset), 2};
  KVTIER_TRY(CheckAxis(v_offset, bytes));
  const bool towards_k = (view.v_offset < 0) == (ChannelStride(view) < 0);
  return CheckPairs(AxesOf(view, part, towards_k ? spec.k_dim : spec.v_dim), v_offset, bytes);
}

std::vector<const void*> BasesOf(const kvtier_view& view, LayerRange layers) {
  if (view.n_bases == 1) layers = {.first = 0, .count = 1};
  std::vector<const void*> bases(view.bases + layers.first, view.bases + layers.first + layers.count);
  if (view.v_bases != nullptr)
    bases.insert(bases.end(), view.v_bases + layers.first, view.v_bases + layers.first + layers.count);
  return bases;
}

Status CheckBasesDiffer(const kvtier_view& view, LayerRange layers) {
  std::vector<const void*> bases = BasesOf(view, layers);
  std::ranges::sort(bases);
  if (std::ranges::adjacent_find(bases) == bases.end()) return Status::Ok();
  return Invalid("two layers, or K and V, have the same base");
}

Status CheckPagesDiffer(const kvtier_view& view, uint64_t tokens) {
  const std::span<const int32_t> pages = PagesOf(view, tokens);
  const bool differ = std::ranges::any_of(pages, [&](int32_t page) { return page != pages[0]; });
  return differ && view.page_stride == 0 ? Invalid("page_stride is 0") : Status::Ok();
}

}  // namespace

Status CheckReach(const kvtier_view& view, const ViewPart& part) {
  const std::span<const int32_t> pages = PagesOf(view, part.tokens);
  const struct {
    int64_t stride;
    uint64_t times;
  } steps[] = {{view.layer_stride, view.n_bases == 1 ? part.layers.first + part.layers.count - 1u : 0},
               {view.v_offset, 1},
               {view.head_stride, part.spec.kv_heads - 1u},
               {view.token_stride, TokensSideBySide(view, part.tokens) - 1},
               {view.page_stride, pages.empty() ? 0 : static_cast<uint64_t>(std::ranges::max(pages))},
               {ChannelStride(view), std::max(part.spec.k_dim, part.spec.v_dim) - 1u}};
  uint64_t up = 0, down = 0;
  for (const auto& [stride, times] : steps) {
    uint64_t step = 0;
    if (__builtin_mul_overflow(Magnitude(stride), times, &step) || step > kMaxReachBytes - up - down)
      return Invalid("its strides reach further than any memory");
    (stride < 0 ? down : up) += step;
  }
  for (const void* base : BasesOf(view, part.layers)) {
    const auto address = reinterpret_cast<uintptr_t>(base);
    if (address < down || address > kMaxReachBytes || up > kMaxReachBytes - address)
      return Invalid("its strides reach further than any memory");
  }
  return Status::Ok();
}

Status CheckApart(const kvtier_view& view, const ViewPart& part) {
  const uint64_t channels = std::max(part.spec.k_dim, part.spec.v_dim);
  const uint64_t bytes = SolidBytes(view, channels);
  const std::vector<Axis> axes = AxesOf(view, part, channels);
  for (const Axis& axis : axes) KVTIER_TRY(CheckAxis(axis, bytes));
  for (size_t i = 0; i < axes.size(); ++i)
    KVTIER_TRY(CheckPairs(std::span(axes).subspan(i + 1), axes[i], bytes));
  KVTIER_TRY(CheckVOffset(view, part));
  KVTIER_TRY(CheckPagesDiffer(view, part.tokens));
  return CheckBasesDiffer(view, part.layers);
}

}  // namespace kvtier::client
