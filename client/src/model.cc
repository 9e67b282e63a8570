#include "client/src/model.h"

#include <limits>

#include "client/src/structs.h"

namespace kvtier::client {
namespace {

std::string Text(const char* text) {
  return text == nullptr ? std::string() : std::string(text);
}

void SetShard(v1::Shard& shard, uint32_t rank, uint32_t size) {
  shard.set_rank(rank);
  shard.set_size(size == 0 ? 1 : size);
}

Status NarrowDims(const v1::ModelSpec& wire) {
  for (const uint32_t value : {wire.layers(), wire.kv_heads(), wire.k_dim(), wire.v_dim()}) {
    if (value > std::numeric_limits<uint16_t>::max())
      return Status(Code::kInvalidArgument, "model spec: a dimension is above 65535");
  }
  for (const uint32_t value : {wire.dtype(), wire.first_raw_rows(), wire.boost_channels()}) {
    if (value > std::numeric_limits<uint8_t>::max())
      return Status(Code::kInvalidArgument,
                    "model spec: dtype, first_raw_rows or boost_channels is above 255");
  }
  return Status::Ok();
}

ModelSpec::Shard ShardFromWire(const v1::Shard& shard) {
  return {.rank = shard.rank(), .size = shard.size() == 0 ? 1 : shard.size()};
}

Result<ModelSpec> ParseSpec(const v1::ModelSpec& wire) {
  KVTIER_TRY(NarrowDims(wire));
  ModelSpec spec;
  spec.model_id = wire.model_id();
  spec.revision = wire.revision();
  spec.lora = wire.lora();
  spec.config_digest = wire.config_digest();
  spec.kv_scales = wire.kv_scales();
  spec.layout_id = wire.layout_id();
  spec.layer_group = wire.layer_group();
  spec.layers = static_cast<uint16_t>(wire.layers());
  spec.kv_heads = static_cast<uint16_t>(wire.kv_heads());
  spec.k_dim = static_cast<uint16_t>(wire.k_dim());
  spec.v_dim = static_cast<uint16_t>(wire.v_dim());
  spec.dtype = static_cast<DType>(wire.dtype());
  spec.tokens_per_block = wire.tokens_per_block();
  spec.tensor = ShardFromWire(wire.tensor());
  spec.pipeline = ShardFromWire(wire.pipeline());
  spec.context = ShardFromWire(wire.context());
  spec.first_raw_rows = static_cast<uint8_t>(wire.first_raw_rows());
  spec.boost_channels =
      wire.has_boost_channels() ? static_cast<uint8_t>(wire.boost_channels()) : DefaultBoost(wire.k_dim());
  spec.floor = static_cast<Precision>(wire.floor());
  spec.k_scales.assign(wire.k_scales().begin(), wire.k_scales().end());
  spec.v_scales.assign(wire.v_scales().begin(), wire.v_scales().end());
  KVTIER_TRY(ValidateModelSpec(spec));
  return spec;
}

}  // namespace

Result<v1::ModelSpec> SpecToWire(const kvtier_model_spec& spec) {
  if (spec.model_id == nullptr) return Status(Code::kInvalidArgument, "model spec: model_id is NULL");
  if (spec.boost_channels < -1)
    return Status(Code::kInvalidArgument, "model spec: boost_channels is below -1");
  if (!v1::Precision_IsValid(static_cast<int>(NumberOf(spec.floor))))
    return Status(Code::kInvalidArgument, "model spec: floor is unknown");
  v1::ModelSpec wire;
  wire.set_model_id(spec.model_id);
  wire.set_revision(Text(spec.revision));
  wire.set_lora(Text(spec.lora));
  wire.set_config_digest(Text(spec.config_digest));
  wire.set_kv_scales(Text(spec.kv_scales));
  wire.set_layout_id(Text(spec.layout_id));
  wire.set_layer_group(spec.layer_group);
  wire.set_layers(spec.layers);
  wire.set_kv_heads(spec.kv_heads);
  wire.set_k_dim(spec.k_dim);
  wire.set_v_dim(spec.v_dim);
  wire.set_dtype(NumberOf(spec.dtype));
  wire.set_tokens_per_block(spec.tokens_per_block == 0 ? 128 : spec.tokens_per_block);
  SetShard(*wire.mutable_tensor(), spec.tp_rank, spec.tp_size);
  SetShard(*wire.mutable_pipeline(), spec.pp_rank, spec.pp_size);
  SetShard(*wire.mutable_context(), spec.cp_rank, spec.cp_size);
  wire.set_first_raw_rows(spec.first_raw_rows == 0 ? 1 : spec.first_raw_rows);
  if (spec.boost_channels >= 0) wire.set_boost_channels(static_cast<uint32_t>(spec.boost_channels));
  wire.set_floor(static_cast<v1::Precision>(spec.floor));
  // How long the lists are shows only in `layers`: it is checked before they are read.
  KVTIER_TRY(ParseSpec(wire).status());
  if (spec.k_scales != nullptr) wire.mutable_k_scales()->Assign(spec.k_scales, spec.k_scales + spec.layers);
  if (spec.v_scales != nullptr) wire.mutable_v_scales()->Assign(spec.v_scales, spec.v_scales + spec.layers);
  KVTIER_TRY(ParseSpec(wire).status());
  return wire;
}

Result<ModelSpec> SpecFromWire(const v1::ModelSpec& wire) {
  Result<ModelSpec> spec = ParseSpec(wire);
  if (!spec.ok())
    return Status(Code::kInternal, "the daemon resolved a spec that cannot be: " + spec.status().message());
  return spec;
}

}  // namespace kvtier::client
