#pragma once

#include <cstdint>

#include "client/src/view_strides.h"
#include "daemon/policy/model_spec.h"
#include "kernels/layout.h"
#include "kvtier/kvtier.h"
#include "tiers/base/status.h"

namespace kvtier::client {

/// A kvtier_view checked for `tokens` tokens of a model. Borrows the caller's arrays and the spec.
class View {
 public:
  /// A view to decode these layers into. Errors: kInvalidArgument, naming what is wrong.
  static Result<View> CheckDestination(const kvtier_view* view, const ModelSpec& spec, LayerRange layers,
                                       uint64_t tokens);
  /// A view to put from, in the model's own type. Errors: as above.
  static Result<View> CheckSource(const kvtier_view* view, const ModelSpec& spec, uint64_t tokens);

  /// The memory of one layer, for a block that starts `first_token` tokens into the view.
  KvLayerView Layer(uint16_t layer, uint32_t first_token) const;
  DType dtype() const { return static_cast<DType>(view_.dtype); }

 private:
  static Result<View> Check(const kvtier_view* view, const ModelSpec& spec, LayerRange layers,
                            uint64_t tokens);
  View(const kvtier_view& view, const ModelSpec& spec) : view_(view), spec_(&spec) {}

  kvtier_view view_;
  const ModelSpec* spec_;
};

}  // namespace kvtier::client
