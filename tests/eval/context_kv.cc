#include "tests/eval/context_kv.h"

#include <algorithm>

namespace kvtier::eval {

Result<ContextKv> ContextKv::Make(std::vector<std::byte> state, llamacpp::HeadShape heads) {
  ContextKv context;
  KVTIER_ASSIGN(context.shape_, llamacpp::ReadSeqShape(state));
  KVTIER_ASSIGN(const llamacpp::SeqState parsed, llamacpp::SeqState::Parse(state, context.shape_));
  if (context.shape_.row_bytes != heads.kv_heads * heads.head_dim * 2)
    return Status(Code::kInvalidArgument, "the state's rows are not those of the model's heads");
  for (uint32_t cell = 0; cell < parsed.cells(); ++cell) {
    if (parsed.positions()[cell] != static_cast<int32_t>(cell))
      return Status(Code::kInvalidArgument, "the state's cells are not in the order of the sequence");
  }
  context.heads_ = heads;
  context.tokens_ = parsed.cells();
  context.first_row_ = static_cast<size_t>(parsed.K(0) - state.data());
  // Of one layer K and V are the same distance apart from those of the next.
  context.plane_bytes_ = context.shape_.layers > 1 ? static_cast<size_t>(parsed.K(1) - parsed.K(0))
                                                   : static_cast<size_t>(parsed.V(0) - parsed.K(0));
  context.state_ = std::move(state);
  return context;
}

KvLayerView ContextKv::View(uint32_t layer, uint32_t first_token) {
  std::byte* const k =
      state_.data() + first_row_ + layer * plane_bytes_ + size_t{first_token} * shape_.row_bytes;
  KvLayerView view = {.head_stride = heads_.head_dim * 2,
                      .token_stride = shape_.row_bytes,
                      .channel_stride = 2,
                      .dtype = DType::kFp16};
  view.k = k;
  view.v = k + shape_.layers * plane_bytes_;
  return view;
}

void ContextKv::Blank() {
  for (uint32_t layer = 0; layer < shape_.layers && tokens_ > 0; ++layer) {
    const KvLayerView view = View(layer, 0);
    for (std::byte* const rows : {view.k, view.v})
      std::fill_n(rows, size_t{tokens_} * shape_.row_bytes, std::byte{0});
  }
}

double ContextKv::elements() const {
  return 2.0 * shape_.layers * tokens_ * heads_.kv_heads * heads_.head_dim;
}

}  // namespace kvtier::eval
