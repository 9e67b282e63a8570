#pragma once

#include <cstdint>

#include "kernels/layout.h"
#include "kvtier/kvtier.h"
#include "tiers/base/status.h"

namespace kvtier::client {

/// A kvtier_view checked for `tokens` tokens of a model with `layers` layers. Borrows the caller's arrays.
class View {
 public:
  /// Errors: kInvalidArgument, naming what is wrong.
  static Result<View> Check(const kvtier_view* view, uint16_t layers, uint64_t tokens);

  /// The memory of one layer, for a block that starts `first_token` tokens into the view.
  KvLayerView Layer(uint16_t layer, uint32_t first_token) const;
  DType dtype() const { return static_cast<DType>(view_->dtype); }

 private:
  explicit View(const kvtier_view* view) : view_(view) {}
  const kvtier_view* view_;
};

}  // namespace kvtier::client
