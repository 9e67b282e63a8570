#include "client/src/view.h"

#include <limits>
#include <string>

#include "client/src/structs.h"

namespace kvtier::client {
namespace {

Status Invalid(const char* what) {
  return Status(Code::kInvalidArgument, std::string("view: ") + what);
}

Status CheckPages(const kvtier_view& view, uint64_t tokens) {
  if (view.page_table == nullptr) return Status::Ok();
  if (view.page_tokens == 0) return Invalid("page_tokens is 0");
  const uint64_t pages = (tokens + view.page_tokens - 1) / view.page_tokens;
  if (pages > view.n_pages) return Invalid("the page table is shorter than the blocks");
  for (uint64_t page = 0; page < pages; ++page) {
    if (view.page_table[page] < 0) return Invalid("a page has a negative number");
  }
  return Status::Ok();
}

}  // namespace

Result<View> View::Check(const kvtier_view* given, const ModelSpec& spec, LayerRange layers,
                         uint64_t tokens) {
  if (given == nullptr) return Invalid("it is NULL");
  KVTIER_ASSIGN(const kvtier_view view, StructOf(given, "view"));
  if (view.bases == nullptr) return Invalid("bases is NULL");
  if (view.n_bases != 1 && view.n_bases != spec.layers)
    return Invalid("n_bases is neither 1 nor the number of layers");
  for (size_t i = 0; i < view.n_bases; ++i) {
    if (view.bases[i] == nullptr || (view.v_bases != nullptr && view.v_bases[i] == nullptr))
      return Invalid("a base is NULL");
  }
  if (view.v_bases != nullptr && view.v_offset != 0) return Invalid("v_bases and v_offset are both set");
  if (NumberOf(view.dtype) < KVTIER_FP16 || NumberOf(view.dtype) > KVTIER_FP32)
    return Invalid("dtype is unknown");
  if ((view.flags & ~uint64_t{KVTIER_VIEW_ROTATED_V}) != 0) return Invalid("a flag is unknown");
  if (tokens > std::numeric_limits<uint32_t>::max()) return Invalid("it holds too many tokens");
  KVTIER_TRY(CheckPages(view, tokens));
  KVTIER_TRY(CheckReach(view, {.spec = spec, .layers = layers, .tokens = tokens}));
  return View(view, spec);
}

Result<View> View::CheckDestination(const kvtier_view* view, const ModelSpec& spec, LayerRange layers,
                                    uint64_t tokens) {
  KVTIER_ASSIGN(const View checked, Check(view, spec, layers, tokens));
  KVTIER_TRY(CheckApart(checked.view_, {.spec = spec, .layers = layers, .tokens = tokens}));
  return checked;
}

Result<View> View::CheckSource(const kvtier_view* view, const ModelSpec& spec, uint64_t tokens) {
  const LayerRange all = {.first = 0, .count = spec.layers};
  KVTIER_ASSIGN(const View checked, Check(view, spec, all, tokens));
  if (checked.dtype() != spec.dtype) return Invalid("dtype is not the model's");
  if (checked.view_.flags != 0) return Invalid("a source has no flags: V is put as the model has it");
  return checked;
}

KvLayerView View::Layer(uint16_t layer, uint32_t first_token) const {
  const bool one_base = view_.n_bases == 1;
  const size_t index = one_base ? 0 : layer;
  const int64_t offset = one_base ? layer * view_.layer_stride : 0;
  auto* k = static_cast<std::byte*>(view_.bases[index]) + offset;
  KvLayerView out;
  out.k = k;
  out.v =
      view_.v_bases != nullptr ? static_cast<std::byte*>(view_.v_bases[index]) + offset : k + view_.v_offset;
  out.head_stride = view_.head_stride;
  out.token_stride = view_.token_stride;
  out.channel_stride = view_.channel_stride == 0 ? DTypeBytes(dtype()) : view_.channel_stride;
  out.page_table = view_.page_table;
  out.page_tokens = view_.page_tokens;
  out.page_stride = view_.page_stride;
  out.first_token = first_token;
  out.dtype = dtype();
  out.scales = ScalesOf(*spec_, layer);
  out.v_form = (view_.flags & KVTIER_VIEW_ROTATED_V) != 0 ? VForm::kRotated : VForm::kPlain;
  return out;
}

}  // namespace kvtier::client
