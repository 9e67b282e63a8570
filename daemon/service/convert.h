#pragma once

#include <string>
#include <vector>

#include "daemon/engine/command.h"
#include "daemon/service/session_registry.h"
#include "proto/kvtier.pb.h"
#include "tiers/base/clock.h"

/// Between the messages of proto/kvtier.proto and the engine's commands. Pure; any thread.
/// Parse...: nothing that a client sends is trusted; errors are kInvalidArgument naming the field unless said
/// otherwise. Fill...: total.
namespace kvtier {

Result<Key> ParseKey(const std::string& bytes, std::string_view field);
Result<std::vector<Key>> ParseKeys(const std::string& packed, uint32_t max_keys);
Result<Precision> ParsePrecision(v1::Precision precision);
/// Defaults resolved, every bound checked, the raw block at most `max_block_bytes` (else kOutOfRange).
Result<ModelSpec> ParseSpec(const v1::ModelSpec& spec, uint64_t max_block_bytes);

/// The blocks of a put: inside the session's staging memory, shapes as `spec` says.
Result<std::vector<PutBlock>> ParsePutBlocks(const v1::PutRequest& request, const ModelSpec& spec,
                                             const ClientSession& session, uint32_t max_blocks);

void FillSpec(const ModelSpec& spec, v1::ModelSpec& out);
void Fill(const RegisteredModel& model, v1::RegisterModelReply& out);
void Fill(const LookupReply& lookup, v1::LookupReply& out);
void Fill(const AcquireReply& acquired, TimePoint now, v1::AcquireReply& out);
void Fill(const PutReply& put, v1::PutReply& out);
void Fill(const StatsReply& stats, v1::StatsReply& out);
void Fill(const std::vector<ModelStats>& models, v1::ListModelsReply& out);
void Fill(const std::vector<BlockStats>& blocks, v1::ListBlocksReply& out);

inline constexpr size_t kMaxSpecTextBytes = 512;  ///< of each text of a model spec
inline constexpr int kMaxSupersedes = 4;
inline constexpr uint64_t kStagingAlign = 64;
inline constexpr uint64_t kMaxPosition = uint64_t{1} << 40;

}  // namespace kvtier
