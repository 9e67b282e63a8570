#pragma once

#include "daemon/policy/model_spec.h"

namespace kvtier {

/// Calls `visit` with every field of the spec, in the order of codecs/FORMAT.md ("Keys"). Hashing, writing
/// and reading all go through here, so that a new field cannot be part of one and missing in another.
template <typename Spec, typename Visit>
void ForEachField(Spec& spec, Visit&& visit) {
  visit(spec.model_id);
  visit(spec.revision);
  visit(spec.lora);
  visit(spec.config_digest);
  visit(spec.kv_scales);
  visit(spec.layout_id);
  visit(spec.layer_group);
  visit(spec.layers);
  visit(spec.kv_heads);
  visit(spec.k_dim);
  visit(spec.v_dim);
  visit(spec.dtype);
  visit(spec.tokens_per_block);
  visit(spec.tensor.rank);
  visit(spec.tensor.size);
  visit(spec.pipeline.rank);
  visit(spec.pipeline.size);
  visit(spec.context.rank);
  visit(spec.context.size);
  visit(spec.first_raw_rows);
  visit(spec.boost_channels);
  visit(spec.floor);
  visit(spec.k_scales);
  visit(spec.v_scales);
}

}  // namespace kvtier
