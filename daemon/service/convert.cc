#include "daemon/service/convert.h"

#include <cstring>
#include <limits>

namespace kvtier {
namespace {

static_assert(sizeof(Key) == 32 && std::is_trivially_copyable_v<Key>, "packed keys are copied as one piece");

Status Invalid(std::string message) {
  return Status(Code::kInvalidArgument, std::move(message));
}

template <typename Int>
Status Narrow(uint32_t value, std::string_view field, Int& out) {
  if (value > std::numeric_limits<Int>::max()) return Invalid(std::string(field) + " is too large");
  out = static_cast<Int>(value);
  return Status::Ok();
}

Status ParseText(const std::string& text, std::string_view field, std::string& out) {
  if (text.size() > kMaxSpecTextBytes) {
    return Invalid(std::string(field) + " is longer than " + std::to_string(kMaxSpecTextBytes) + " bytes");
  }
  out = text;
  return Status::Ok();
}

ModelSpec::Shard ParseShard(const v1::Shard& shard) {
  return {.rank = shard.rank(), .size = shard.size() == 0 ? 1 : shard.size()};
}

void FillShard(const ModelSpec::Shard& shard, v1::Shard& out) {
  out.set_rank(shard.rank);
  out.set_size(shard.size);
}

template <typename Digest>
void SetDigest(const Digest& digest, std::string& out) {
  out.assign(digest.AsStringView());
}

Result<PutBlock> ParsePutBlock(const v1::PutBlock& block, const ModelSpec& spec,
                               const ClientSession& session) {
  PutBlock parsed;
  KVTIER_ASSIGN(parsed.key, ParseKey(block.key(), "blocks.key"));
  KVTIER_ASSIGN(parsed.parent, ParseKey(block.parent(), "blocks.parent"));
  if (block.tokens() == 0 || block.tokens() > spec.tokens_per_block) {
    return Invalid("blocks.tokens must be from 1 to " + std::to_string(spec.tokens_per_block));
  }
  if (block.first_position() % spec.tokens_per_block != 0 || block.first_position() > kMaxPosition) {
    return Invalid("blocks.first_position must be a multiple of tokens_per_block");
  }
  parsed.tokens = static_cast<uint16_t>(block.tokens());
  parsed.first_position = block.first_position();
  if (block.supersedes_size() > kMaxSupersedes) return Invalid("blocks.supersedes has more than 4 keys");
  for (const std::string& tail : block.supersedes()) {
    KVTIER_ASSIGN(Key key, ParseKey(tail, "blocks.supersedes"));
    parsed.supersedes.push_back(key);
  }
  const std::span<const std::byte> staging = session.staging->bytes();
  const uint64_t bytes = RawBlockBytes(ShapeOf(spec, parsed.first_position, parsed.tokens));
  if (block.staging_offset() % kStagingAlign != 0)
    return Invalid("blocks.staging_offset must be a multiple of 64");
  if (block.staging_offset() > staging.size() || bytes > staging.size() - block.staging_offset()) {
    return Invalid("a block of " + std::to_string(bytes) + " bytes at staging_offset " +
                   std::to_string(block.staging_offset()) + " is outside the session's staging memory");
  }
  parsed.source = {.keep = session.staging, .raw = staging.subspan(block.staging_offset(), bytes)};
  return parsed;
}

void FillBlock(const AcquiredBlock& block, v1::AcquiredBlock& out) {
  SetDigest(block.key, *out.mutable_key());
  out.set_tokens(block.tokens);
  out.set_first_position(block.first_position);
  out.set_codec(static_cast<uint32_t>(block.codec));
  out.set_precision(static_cast<v1::Precision>(block.precision));
  out.set_served_from(block.served_from.value);
  v1::Extent& extent = *out.add_extents();
  extent.set_arena(block.place.container);
  extent.set_slot(block.place.slot);
  extent.set_offset(block.place.offset);
  extent.set_bytes(block.image_bytes);
  extent.set_slot_epoch(block.place.epoch);
  out.set_k_error(block.k_error);
  out.set_v_error(block.v_error);
}

}  // namespace

Result<Key> ParseKey(const std::string& bytes, std::string_view field) {
  Key key;
  if (bytes.size() != sizeof(Key)) return Invalid(std::string(field) + " must have 32 bytes");
  std::memcpy(key.bytes.data(), bytes.data(), sizeof(Key));
  return key;
}

Result<std::vector<Key>> ParseKeys(const std::string& packed, uint32_t max_keys) {
  if (packed.size() % sizeof(Key) != 0) return Invalid("keys must be packed, 32 bytes each");
  const size_t count = packed.size() / sizeof(Key);
  if (count == 0) return Invalid("keys must not be empty");
  if (count > max_keys) {
    return Invalid(std::to_string(count) + " keys in one call; the limit is " + std::to_string(max_keys));
  }
  std::vector<Key> keys(count);
  std::memcpy(static_cast<void*>(keys.data()), packed.data(), packed.size());
  return keys;
}

Result<Precision> ParsePrecision(v1::Precision precision) {
  if (!v1::Precision_IsValid(precision)) return Invalid("unknown precision " + std::to_string(precision));
  return static_cast<Precision>(precision);
}

Result<ModelSpec> ParseSpec(const v1::ModelSpec& spec, uint64_t max_block_bytes) {
  ModelSpec parsed;
  KVTIER_TRY(ParseText(spec.model_id(), "model_id", parsed.model_id));
  KVTIER_TRY(ParseText(spec.revision(), "revision", parsed.revision));
  KVTIER_TRY(ParseText(spec.lora(), "lora", parsed.lora));
  KVTIER_TRY(ParseText(spec.config_digest(), "config_digest", parsed.config_digest));
  KVTIER_TRY(ParseText(spec.kv_scales(), "kv_scales", parsed.kv_scales));
  KVTIER_TRY(ParseText(spec.layout_id(), "layout_id", parsed.layout_id));
  parsed.layer_group = spec.layer_group();
  KVTIER_TRY(Narrow(spec.layers(), "layers", parsed.layers));
  KVTIER_TRY(Narrow(spec.kv_heads(), "kv_heads", parsed.kv_heads));
  KVTIER_TRY(Narrow(spec.k_dim(), "k_dim", parsed.k_dim));
  KVTIER_TRY(Narrow(spec.v_dim(), "v_dim", parsed.v_dim));
  uint8_t dtype = 0;
  KVTIER_TRY(Narrow(spec.dtype(), "dtype", dtype));
  parsed.dtype = static_cast<DType>(dtype);
  parsed.tokens_per_block = spec.tokens_per_block() == 0 ? 128 : spec.tokens_per_block();
  parsed.tensor = ParseShard(spec.tensor());
  parsed.pipeline = ParseShard(spec.pipeline());
  parsed.context = ParseShard(spec.context());
  KVTIER_TRY(Narrow(spec.first_raw_rows() == 0 ? 1 : spec.first_raw_rows(), "first_raw_rows",
                    parsed.first_raw_rows));
  parsed.boost_channels = DefaultBoost(parsed.k_dim);
  if (spec.has_boost_channels())
    KVTIER_TRY(Narrow(spec.boost_channels(), "boost_channels", parsed.boost_channels));
  KVTIER_ASSIGN(parsed.floor, ParsePrecision(spec.floor()));
  parsed.k_scales.assign(spec.k_scales().begin(), spec.k_scales().end());
  parsed.v_scales.assign(spec.v_scales().begin(), spec.v_scales().end());
  KVTIER_TRY(ValidateModelSpec(parsed));
  const uint64_t bytes = RawBlockBytes(ShapeOf(parsed, 0, static_cast<uint16_t>(parsed.tokens_per_block)));
  if (bytes > max_block_bytes) {
    return Status(Code::kOutOfRange, "a block of this model has " + std::to_string(bytes) +
                                         " bytes; the limit is " + std::to_string(max_block_bytes));
  }
  return parsed;
}

Result<std::vector<PutBlock>> ParsePutBlocks(const v1::PutRequest& request, const ModelSpec& spec,
                                             const ClientSession& session, uint32_t max_blocks) {
  const auto count = static_cast<uint32_t>(request.blocks_size());
  if (count == 0) return Invalid("blocks must not be empty");
  if (count > max_blocks) {
    return Invalid(std::to_string(count) + " blocks in one call; the limit is " + std::to_string(max_blocks));
  }
  std::vector<PutBlock> blocks;
  blocks.reserve(count);
  for (const v1::PutBlock& block : request.blocks()) {
    KVTIER_ASSIGN(PutBlock parsed, ParsePutBlock(block, spec, session));
    blocks.push_back(std::move(parsed));
  }
  return blocks;
}

void FillSpec(const ModelSpec& spec, v1::ModelSpec& out) {
  out.set_model_id(spec.model_id);
  out.set_revision(spec.revision);
  out.set_lora(spec.lora);
  out.set_config_digest(spec.config_digest);
  out.set_kv_scales(spec.kv_scales);
  out.set_layout_id(spec.layout_id);
  out.set_layer_group(spec.layer_group);
  out.set_layers(spec.layers);
  out.set_kv_heads(spec.kv_heads);
  out.set_k_dim(spec.k_dim);
  out.set_v_dim(spec.v_dim);
  out.set_dtype(static_cast<uint32_t>(spec.dtype));
  out.set_tokens_per_block(spec.tokens_per_block);
  FillShard(spec.tensor, *out.mutable_tensor());
  FillShard(spec.pipeline, *out.mutable_pipeline());
  FillShard(spec.context, *out.mutable_context());
  out.set_first_raw_rows(spec.first_raw_rows);
  out.set_boost_channels(spec.boost_channels);
  out.set_floor(static_cast<v1::Precision>(spec.floor));
  out.mutable_k_scales()->Assign(spec.k_scales.begin(), spec.k_scales.end());
  out.mutable_v_scales()->Assign(spec.v_scales.begin(), spec.v_scales.end());
}

void Fill(const RegisteredModel& model, v1::RegisterModelReply& out) {
  out.set_model(model.model.value);
  SetDigest(model.name_space, *out.mutable_name_space());
  FillSpec(model.spec, *out.mutable_spec());
}

void Fill(const LookupReply& lookup, v1::LookupReply& out) {
  std::string& run = *out.mutable_run();
  run.resize(lookup.run.size());
  for (size_t i = 0; i < run.size(); ++i) {
    const LookupReply::Block& block = lookup.run[i];
    run[i] = static_cast<char>(static_cast<unsigned>(block.precision) * 16 + block.tier.value);
  }
  out.set_next_pending(lookup.next_pending);
  for (const TailChild& tail : lookup.tails) {
    v1::TailChild& child = *out.add_tails();
    child.set_tokens(tail.tokens);
    SetDigest(tail.key, *child.mutable_key());
  }
}

void Fill(const AcquireReply& acquired, TimePoint now, v1::AcquireReply& out) {
  out.mutable_run()->Reserve(static_cast<int>(acquired.run.size()));
  for (const AcquiredBlock& block : acquired.run) FillBlock(block, *out.add_run());
  for (const AcquiredBlock& block : acquired.tails) FillBlock(block, *out.add_tails());
  out.set_stopped_by(static_cast<int32_t>(acquired.stopped_by));
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(acquired.expires - now).count();
  out.set_ttl_ms(left > 0 ? static_cast<uint64_t>(left) : 0);
}

void Fill(const PutReply& put, v1::PutReply& out) {
  for (const PutOutcome& block : put.blocks) {
    v1::PutOutcome& outcome = *out.add_blocks();
    outcome.set_code(static_cast<int32_t>(block.code));
    outcome.set_precision(static_cast<v1::Precision>(block.precision));
    outcome.set_tier(block.tier.value);
  }
}

void Fill(const StatsReply& stats, v1::StatsReply& out) {
  for (const TierStats& tier : stats.tiers) {
    v1::TierStats& one = *out.add_tiers();
    one.set_name(tier.name);
    one.set_medium(tier.medium);
    one.set_codec(tier.codec);
    one.set_capacity_bytes(tier.capacity_bytes);
    one.set_used_bytes(tier.used_bytes);
    for (const uint64_t blocks : tier.blocks) one.add_blocks(blocks);
    one.set_accepts_writes(tier.accepts_writes);
  }
  out.set_table_entries(stats.table_entries);
  out.set_leases_live(stats.leases_live);
  out.set_sessions(stats.sessions);
  out.set_models(stats.models);
  out.set_jobs_in_flight(stats.jobs_in_flight);
  out.set_command_queue_depth(stats.command_queue_depth);
  out.set_draining(stats.draining);
}

void Fill(const std::vector<ModelStats>& models, v1::ListModelsReply& out) {
  for (const ModelStats& model : models) {
    v1::ListModelsReply::Model& one = *out.add_models();
    one.set_model(model.model.value);
    one.set_tenant(model.tenant);
    SetDigest(model.name_space, *one.mutable_name_space());
    FillSpec(model.spec, *one.mutable_spec());
    one.set_blocks(model.blocks);
    one.set_bytes(model.bytes);
  }
}

void Fill(const std::vector<BlockStats>& blocks, v1::ListBlocksReply& out) {
  for (const BlockStats& block : blocks) {
    v1::ListBlocksReply::Block& one = *out.add_blocks();
    SetDigest(block.key, *one.mutable_key());
    SetDigest(block.parent, *one.mutable_parent());
    one.set_first_position(block.first_position);
    one.set_tokens(block.tokens);
    one.set_pins(block.pins);
    one.set_children(block.children);
    one.set_priority(block.priority);
    one.set_floor(static_cast<v1::Precision>(block.floor));
    one.set_is_tail(block.is_tail);
    one.set_uses_since(block.uses_since);
    if (block.recent_uses) one.set_recent_uses(*block.recent_uses);
    for (const BlockStats::Copy& copy : block.copies) {
      v1::ListBlocksReply::Copy& place = *one.add_copies();
      place.set_tier(copy.tier.value);
      place.set_codec(static_cast<uint32_t>(copy.codec));
      place.set_bytes(copy.bytes);
      place.set_k_error(copy.k_error);
      place.set_v_error(copy.v_error);
      place.set_present_ms(copy.present_ms);
    }
  }
}

}  // namespace kvtier
