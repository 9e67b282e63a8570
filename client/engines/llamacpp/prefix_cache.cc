#include "client/engines/llamacpp/prefix_cache.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace kvtier::llamacpp {
namespace {

/// State that one put copies out of the engine. Bounds memory and the time to the next look at the clock.
constexpr uint64_t kPutBytesMax = uint64_t{16} << 20;
constexpr size_t kHandedMax = 256;
constexpr char kLayoutId[] = "llama.cpp/seq-state-3";

uint32_t Milliseconds(Duration duration) {
  return static_cast<uint32_t>(
      std::max<int64_t>(1, std::chrono::duration_cast<std::chrono::milliseconds>(duration).count()));
}

/// Codes that say that there is no daemon to talk to, or none that answers in time.
bool IsAbsence(kvtier_code code) {
  return code == KVTIER_UNAVAILABLE || code == KVTIER_DEADLINE_EXCEEDED;
}

void Count(const kvtier_block_info& info, const kvtier_block_result& result, bool full,
           RestoreReport& report) {
  report.tokens += info.tokens;
  if (full) report.full_tokens += info.tokens;
  ++report.blocks_by_tier[std::min<size_t>(info.served_from, report.blocks_by_tier.size() - 1)];
  report.lowest = std::min(report.lowest, result.precision);
  report.k_error_max = std::max(report.k_error_max, result.k_error);
  report.v_error_max = std::max(report.v_error_max, result.v_error);
}

}  // namespace

PrefixCache::PrefixCache(ModelIdentity identity, PrefixCacheOptions options, const Clock& clock)
    : identity_(std::move(identity)), options_(std::move(options)), clock_(clock) {}

uint32_t PrefixCache::CallTimeoutMs(TimePoint deadline) const {
  return Milliseconds(std::min(options_.call_timeout, deadline - clock_.Now()));
}

Status PrefixCache::Ended(kvtier_code code, const char* call) {
  if (IsAbsence(code)) {
    breaker_.Failed(clock_.Now());
    connected_ = false;
  } else {
    breaker_.Succeeded();
    connected_ = true;
  }
  return StatusOf(code, call);
}

Status PrefixCache::MakeReady() {
  if (!breaker_.Allows(clock_.Now()))
    return Status(Code::kUnavailable, "the daemon did not answer a moment ago");
  if (!client_.has_value()) {
    kvtier_options options{};
    options.struct_size = sizeof(options);
    options.socket = options_.socket.empty() ? nullptr : options_.socket.c_str();
    options.client_name = "llama.cpp";
    options.timeout_ms = Milliseconds(options_.call_timeout);
    api::Outcome<api::Client> client = api::Client::Open(options);
    if (!client) return Ended(client.code(), "connect");
    client_ = std::move(*client);
  }
  if (model_.has_value()) return Status::Ok();
  kvtier_model_spec spec = api::ModelSpec();
  spec.model_id = identity_.model_id.c_str();
  spec.revision = identity_.revision.c_str();
  spec.config_digest = identity_.config_digest.c_str();
  spec.layout_id = kLayoutId;
  spec.layers = identity_.shape.layers;
  spec.kv_heads = identity_.heads.kv_heads;
  spec.k_dim = spec.v_dim = identity_.heads.head_dim;
  spec.tokens_per_block = options_.tokens_per_block;
  const api::Outcome<api::Model> model = client_->RegisterModel(spec);
  if (!model) return Ended(model.code(), "register the model");
  model_ = *model;
  return Status::Ok();
}

RestoreReport PrefixCache::Restore(std::span<const int32_t> tokens, SequenceMemory& memory) {
  const TimePoint start = clock_.Now(), deadline = start + options_.restore_budget;
  RestoreReport report;
  const auto restore = [&]() -> Status {
    if (tokens.size() < 2) return Status(Code::kNotFound, "too short to have a prefix");
    KVTIER_TRY(MakeReady());
    const api::Outcome<api::Sequence> sequence = model_->Keys({tokens.begin(), tokens.end()});
    if (!sequence) return StatusOf(sequence.code(), "keys");
    // A lease has a limit of bytes, so that a long prefix takes several.
    size_t first = 0;
    while (first < sequence->blocks()) {
      KVTIER_ASSIGN(const size_t restored, RestoreRun(*sequence, first, memory, deadline, report));
      first += restored;
    }
    return Status::Ok();
  };
  report.ended = restore();
  // All of a prompt may be there: but its last token has to be computed, for what comes after it.
  if (report.tokens > 0 && report.tokens == tokens.size()) memory.Truncate(--report.tokens);
  if (report.tokens > 0 && report.ended.code() == Code::kNotFound) report.ended = Status::Ok();
  report.took = clock_.Now() - start;
  return report;
}

Result<size_t> PrefixCache::RestoreRun(const api::Sequence& sequence, size_t first, SequenceMemory& memory,
                                       TimePoint deadline, RestoreReport& report) {
  const kvtier_query query = sequence.Query(first, sequence.blocks() - first);
  kvtier_acquire_options options = api::AcquireOptions(CallTimeoutMs(deadline));
  options.min_precision = options_.min_precision;
  api::Outcome<api::Lease> lease = model_->Acquire(query, options);
  KVTIER_TRY(Ended(lease.code(), "acquire"));
  if (lease->count() == 0) return Status(Code::kNotFound, "acquire: no blocks");
  Result<ComingBlock> coming = StartBlock(*lease, 0, report.tokens);
  for (size_t i = 0; i < lease->count(); ++i) {
    KVTIER_ASSIGN(const ComingBlock block, std::move(coming));
    // The next one is decoded while the engine takes this one.
    if (i + 1 < lease->count()) coming = StartBlock(*lease, i + 1, block.info.position + block.info.tokens);
    KVTIER_TRY(TakeBlock(block, memory, deadline, report));
  }
  const bool tail = report.tokens != report.full_tokens;
  return tail ? sequence.blocks() - first : lease->count();
}

Result<PrefixCache::ComingBlock> PrefixCache::StartBlock(api::Lease& lease, size_t index, uint64_t position) {
  const api::Outcome<kvtier_block_info> info = lease.Block(index);
  if (!info) return StatusOf(info.code(), "lease");
  // An inexact tail would be stored again as exact inside the block that it grows into.
  if (info->tokens != options_.tokens_per_block && info->precision != KVTIER_BITS16)
    return Status(Code::kNotFound, "the tail is not exact");
  if (info->tokens == 0 || info->tokens > options_.tokens_per_block)
    return Status(Code::kInternal, "lease: a block has more tokens than the model's");
  if (info->position != position) return Status(Code::kInternal, "lease: blocks are not in order");
  std::optional<SeqStateBuffer>& buffer = buffers_[index % buffers_.size()];
  const auto first = static_cast<int32_t>(position);
  if (!buffer.has_value()) buffer.emplace(identity_.shape, first, options_.tokens_per_block);
  buffer->Become(first, info->tokens);
  KVTIER_ASSIGN(BlockFetch fetch, BlockFetch::Start(*client_, lease, index, *buffer, identity_.heads));
  return ComingBlock{.info = *info, .buffer = &*buffer, .fetch = std::move(fetch)};
}

Status PrefixCache::TakeBlock(const ComingBlock& block, SequenceMemory& memory, TimePoint deadline,
                              RestoreReport& report) {
  if (clock_.Now() >= deadline) return Status(Code::kDeadlineExceeded, "restore: out of time");
  KVTIER_ASSIGN(const kvtier_block_result result, block.fetch.Wait(Milliseconds(deadline - clock_.Now())));
  KVTIER_TRY(memory.Append(block.buffer->bytes()));
  Count(block.info, result, block.info.tokens == options_.tokens_per_block, report);
  return Status::Ok();
}

StoreReport PrefixCache::Store(std::span<const int32_t> tokens, uint32_t own_from, SequenceMemory& memory) {
  const TimePoint start = clock_.Now(), deadline = start + options_.restore_budget;
  StoreReport report{.full_tokens_end = own_from};
  const auto store = [&]() -> Status {
    if (tokens.empty()) return Status::Ok();
    KVTIER_TRY(MakeReady());
    const api::Outcome<api::Sequence> sequence = model_->Keys({tokens.begin(), tokens.end()});
    if (!sequence) return StatusOf(sequence.code(), "keys");
    const uint64_t token_bytes = uint64_t{2} * identity_.shape.layers * identity_.shape.row_bytes;
    BlockRun left = OwnBlocks(sequence->refs(), own_from);
    while (left.count > 0) {
      if (clock_.Now() >= deadline) return Status(Code::kDeadlineExceeded, "store: out of time");
      const BlockRun front = FrontWithin(left, sequence->refs(), token_bytes, kPutBytesMax);
      KVTIER_TRY(StoreRun(*sequence, front, memory, deadline));
      left = {.first = left.first + front.count, .count = left.count - front.count};
      report.blocks += static_cast<uint32_t>(front.count);
      const kvtier_block_ref& last = sequence->refs()[left.first - 1];
      report.full_tokens_end = static_cast<uint32_t>(
          last.tokens == options_.tokens_per_block ? last.position + last.tokens : last.position);
    }
    return Status::Ok();
  };
  report.ended = store();
  report.took = clock_.Now() - start;
  return report;
}

Status PrefixCache::StoreRun(const api::Sequence& sequence, BlockRun run, SequenceMemory& memory,
                             TimePoint deadline) {
  const kvtier_block_ref& first = sequence.refs()[run.first];
  const kvtier_block_ref& last = sequence.refs()[run.first + run.count - 1];
  const auto position = static_cast<int32_t>(first.position);
  const auto tokens = static_cast<uint32_t>(last.position + last.tokens - first.position);
  KVTIER_ASSIGN(const std::vector<std::byte> bytes, memory.Save(position, tokens));
  KVTIER_ASSIGN(const SeqState state, SeqState::Parse(bytes, identity_.shape));
  if (state.cells() != tokens) return Status(Code::kInternal, "the engine saved another number of tokens");
  KVTIER_ASSIGN(const SourceRows rows, SourceRows::Make(state, identity_.heads, position));
  kvtier_put_options options = api::PutOptions(CallTimeoutMs(deadline));
  options.durability = options_.durability;
  const api::Outcome<kvtier_ticket> ticket =
      model_->Put(sequence.Query(run.first, run.count), rows.View(), options);
  // Also of a put that was taken in part.
  if (*ticket != 0) handed_.push_back({.ticket = *ticket, .blocks = run.count});
  if (handed_.size() > kHandedMax) handed_.pop_front();
  return Ended(ticket.code(), "put");
}

Result<uint64_t> PrefixCache::Settle(Duration timeout) {
  const TimePoint deadline = clock_.Now() + timeout;
  uint64_t stand = 0;
  while (!handed_.empty()) {
    std::vector<kvtier_put_result> results(handed_.front().blocks,
                                           {.code = KVTIER_STALE, .precision = {}, .tier = 0});
    const Duration left = deadline - clock_.Now();
    const kvtier_code code = client_->Wait(handed_.front().ticket, results, Milliseconds(left));
    if (code == KVTIER_DEADLINE_EXCEEDED && clock_.Now() >= deadline)
      return Status(Code::kDeadlineExceeded, "blocks are still being stored");
    handed_.pop_front();
    stand += static_cast<uint64_t>(std::count_if(results.begin(), results.end(), [](const auto& result) {
      return result.code == KVTIER_OK || result.code == KVTIER_PRESENT;
    }));
  }
  return stand;
}

}  // namespace kvtier::llamacpp
