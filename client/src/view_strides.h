#pragma once

#include <cstdint>

#include "daemon/policy/model_spec.h"
#include "kvtier/kvtier.h"
#include "tiers/base/status.h"

namespace kvtier::client {

struct LayerRange {
  uint16_t first = 0;
  uint16_t count = 0;
};

/// What a call reads or writes of a view.
struct ViewPart {
  const ModelSpec& spec;
  LayerRange layers;
  uint64_t tokens = 0;
};

// Both need a view whose pointers, counts and type have been checked. Errors: kInvalidArgument, naming the
// strides.

/// Whether no element is further from its base than any address from another.
Status CheckReach(const kvtier_view& view, const ViewPart& part);
/// Whether no two elements that differ in one or two of layer, K and V, head, token and channel share bytes:
/// what strides that were left 0, or counted in elements, do. A page may be in a table twice: engines have
/// one that nobody reads.
Status CheckApart(const kvtier_view& view, const ViewPart& part);

}  // namespace kvtier::client
