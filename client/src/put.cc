#include "client/src/put.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "client/src/errors.h"
#include "client/src/lookup.h"
#include "codecs/codec.h"

namespace kvtier::client {
namespace {

/// Batches double from the first, small so that the daemon starts early, to the largest: each one wakes half
/// a dozen threads, which compete with the copying for the cores.
constexpr uint64_t kFirstBatchBytes = uint64_t{2} << 20;
constexpr uint64_t kLargestBatchBytes = uint64_t{8} << 20;
/// The daemon answers a put when it has read the staging bytes; one that owes that longer is given up.
constexpr Duration kStoreTimeout = std::chrono::seconds(20);
/// How long the daemon may take to bring stored blocks to the persistent tier.
constexpr Duration kDurableTimeout = std::chrono::seconds(60);
constexpr Duration kReplyGrace = std::chrono::seconds(10);

TimePoint Now() {
  return SteadyClock().Now();
}

/// Staged stretches of one batch, given back when the daemon has answered.
struct StagedBatch {
  uint64_t remote_ticket = 0;
  std::vector<uint64_t> offsets;
  std::vector<size_t> blocks;
  uint64_t bytes = 0;
};

/// Whether a reply with this status says that the daemon does not read the staging bytes any more.
bool StagingIsFree(const Status& status, TimePoint rpc_deadline) {
  switch (status.code()) {
    case Code::kOk:
    case Code::kInvalidArgument:
    case Code::kNotFound:
    case Code::kPermissionDenied:
    case Code::kResourceExhausted:
    case Code::kFailedPrecondition:
    case Code::kAborted:
    case Code::kOutOfRange:
    case Code::kUnimplemented:
    case Code::kUnauthenticated:
    case Code::kStale:
    case Code::kPending:
      return true;
    case Code::kDeadlineExceeded:
      return Now() < rpc_deadline;  // then it was the daemon that dropped the command unread
    default:
      return false;
  }
}

kvtier_put_result ResultOf(const v1::PutReply& reply, size_t index) {
  if (index >= static_cast<size_t>(reply.blocks_size())) {
    return {.code = KVTIER_INTERNAL, .precision = KVTIER_PRECISION_ANY, .tier = 0};
  }
  const v1::PutOutcome& outcome = reply.blocks(static_cast<int>(index));
  return {.code = static_cast<kvtier_code>(outcome.code()),
          .precision = static_cast<kvtier_precision>(outcome.precision()),
          .tier = outcome.tier()};
}

uint32_t Milliseconds(Duration duration) {
  return static_cast<uint32_t>(std::chrono::duration_cast<std::chrono::milliseconds>(duration).count());
}

/// Replaces the outcomes of one batch in memory by those at durable level, when they are there.
void FinishWhenDurable(Connection& connection, const std::shared_ptr<Progress>& progress,
                       uint64_t remote_ticket, std::vector<size_t> blocks) {
  v1::WaitTicketRequest request;
  request.set_session_token(connection.token());
  request.set_ticket(remote_ticket);
  request.set_deadline_ms(Milliseconds(kDurableTimeout));
  connection.rpc().WaitTicketAsync(
      std::move(request), Now() + kDurableTimeout + kReplyGrace,
      [progress, blocks = std::move(blocks)](const Status& status, const v1::PutReply& reply) {
        const std::vector<kvtier_put_result> in_memory = progress->results();
        for (size_t i = 0; i < blocks.size(); ++i) {
          kvtier_put_result result = in_memory[blocks[i]];
          if (result.code != KVTIER_OK && result.code != KVTIER_PRESENT)
            continue;  // refused: never on its way
          if (status.ok()) {
            result = ResultOf(reply, i);
          } else {
            result.code = ToC(status.code());
          }
          progress->Set(blocks[i], result);
        }
        progress->BatchEnded();
      });
}

/// Runs when the daemon has answered for a batch, or never will.
void FinishBatch(Connection& connection, const std::shared_ptr<Progress>& progress, const StagedBatch& batch,
                 TimePoint rpc_deadline, const Status& status, const v1::PutReply& reply) {
  for (size_t i = 0; i < batch.blocks.size(); ++i) {
    const kvtier_put_result refused{.code = ToC(status.code()), .precision = KVTIER_PRECISION_ANY, .tier = 0};
    progress->Set(batch.blocks[i], status.ok() ? ResultOf(reply, i) : refused);
  }
  if (StagingIsFree(status, rpc_deadline)) {
    for (const uint64_t offset : batch.offsets) connection.staging().Free(offset);
  } else {
    // The daemon may still read these bytes: writing others there would store them under these keys. A new
    // session has new staging memory.
    connection.Abandon();
  }
  if (status.ok() && progress->durability() == KVTIER_DURABLE) {
    FinishWhenDurable(connection, progress, batch.remote_ticket, batch.blocks);
  } else {
    progress->BatchEnded();
  }
}

/// One put from its lookup to its last batch. Lives for the call only.
class PutRun {
 public:
  PutRun(std::shared_ptr<Connection> connection, const Model& model, const Query& query, const View& source,
         const PutOptions& options, TimePoint deadline)
      : connection_(std::move(connection)),
        model_(model),
        query_(query),
        source_(source),
        options_(options),
        deadline_(deadline),
        progress_(std::make_shared<Progress>(query.refs.size(), options.durability)),
        end_(query.refs.size()) {}

  const std::shared_ptr<Progress>& progress() const { return progress_; }
  const std::vector<uint64_t>& remote_tickets() const { return remote_tickets_; }

  /// Settles the blocks that are present. Errors: those of the lookup.
  Status FindPresent(uint32_t remote_model);
  /// Copies and sends the others. Errors: why some were not taken.
  Status StageAll();

 private:
  bool TailIsPresent(const LookupOutcome& found) const;
  void FindSuperseded(const LookupOutcome& found);
  std::optional<uint64_t> AllocateFor(uint64_t bytes);
  void Gather(const kvtier_block_ref& ref, const BlockShape& shape, std::span<std::byte> raw) const;
  void AddToBatch(size_t block, uint64_t offset, uint64_t bytes);
  void SendBatch();
  Status Refuse(size_t from, Status why);

  const std::shared_ptr<Connection> connection_;
  const Model& model_;
  const Query& query_;
  const View& source_;
  const PutOptions& options_;
  const TimePoint deadline_;
  const std::shared_ptr<Progress> progress_;

  uint32_t remote_model_ = 0;
  size_t matched_ = 0;        ///< blocks of the leading run that is present
  size_t first_offered_ = 0;  ///< blocks [first_offered_, end_) are staged
  size_t end_ = 0;
  std::vector<std::string> superseded_;  ///< tails that block `matched_` covers
  v1::PutRequest request_;
  StagedBatch batch_;
  uint64_t full_batch_bytes_ = kFirstBatchBytes;  ///< `batch_` is sent when it has so many
  std::vector<uint64_t> remote_tickets_;
};

Status PutRun::FindPresent(uint32_t remote_model) {
  remote_model_ = remote_model;
  KVTIER_ASSIGN(const LookupOutcome found, LookupOn(*connection_, remote_model, query_, deadline_));
  matched_ = found.run.size();
  const bool tail_is_present = TailIsPresent(found);
  if (!tail_is_present) FindSuperseded(found);
  // A durable put offers all of them: the daemon alone knows whether a present block is durable, and makes it
  // so.
  if (options_.durability == KVTIER_DURABLE) return Status::Ok();
  for (const kvtier_match& match : found.run) {
    progress_->Set(first_offered_++,
                   {.code = KVTIER_PRESENT, .precision = match.precision, .tier = match.tier});
  }
  if (tail_is_present) {
    progress_->Set(--end_, {.code = KVTIER_PRESENT, .precision = KVTIER_PRECISION_ANY, .tier = 0});
  }
  return Status::Ok();
}

bool PutRun::TailIsPresent(const LookupOutcome& found) const {
  if (query_.tail == nullptr || found.run.size() + 1 != query_.refs.size()) return false;
  const Key own = KeyOf(query_.tail->key);
  return std::any_of(found.tails.begin(), found.tails.end(), [&](const v1::TailChild& tail) {
    return tail.tokens() == query_.tail->tokens && tail.key() == own.AsStringView();
  });
}

void PutRun::FindSuperseded(const LookupOutcome& found) {
  if (matched_ >= query_.refs.size()) return;
  for (const v1::TailChild& tail : found.tails) {
    const bool covered = tail.tokens() < query_.refs[matched_].tokens;
    if (covered && ChooseTail(query_, matched_, {&tail, 1}).has_value()) superseded_.push_back(tail.key());
  }
}

Status PutRun::StageAll() {
  for (size_t i = first_offered_; i < end_; ++i) {
    const kvtier_block_ref& ref = query_.refs[i];
    const BlockShape shape = ShapeOf(model_.spec, ref.position, static_cast<uint16_t>(ref.tokens));
    const uint64_t bytes = RawBlockBytes(shape);
    if (bytes > connection_->staging().capacity_bytes()) {
      SendBatch();
      return Refuse(i, Status(Code::kResourceExhausted, "a block is larger than the staging memory"));
    }
    const std::optional<uint64_t> offset = AllocateFor(bytes);
    if (!offset.has_value()) {
      SendBatch();
      const Code why = connection_->alive() ? Code::kDeadlineExceeded : Code::kUnavailable;
      return Refuse(i, Status(why, "the daemon did not take the blocks off the staging memory in time"));
    }
    Gather(ref, shape, connection_->staging().At(*offset, bytes));
    AddToBatch(i, *offset, bytes);
    if (batch_.bytes >= full_batch_bytes_) SendBatch();
  }
  SendBatch();
  return Status::Ok();
}

std::optional<uint64_t> PutRun::AllocateFor(uint64_t bytes) {
  StagingPool& staging = connection_->staging();
  // Space comes back only for what has been sent.
  if (!staging.HasRoom(bytes)) SendBatch();
  return staging.Allocate(bytes, deadline_);
}

void PutRun::Gather(const kvtier_block_ref& ref, const BlockShape& shape, std::span<std::byte> raw) const {
  const uint64_t layer_bytes = RawLayerBytes(shape);
  const auto first_token = static_cast<uint32_t>(ref.position - query_.refs[0].position);
  for (uint16_t layer = 0; layer < shape.layers; ++layer) {
    GatherRawLayer(shape, source_.Layer(layer, first_token), raw.subspan(layer * layer_bytes, layer_bytes));
  }
}

void PutRun::AddToBatch(size_t block, uint64_t offset, uint64_t bytes) {
  const kvtier_block_ref& ref = query_.refs[block];
  v1::PutBlock& wire = *request_.add_blocks();
  wire.set_key(ref.key, KVTIER_KEY_BYTES);
  wire.set_parent(ref.parent, KVTIER_KEY_BYTES);
  wire.set_first_position(ref.position);
  wire.set_tokens(ref.tokens);
  wire.set_staging_offset(offset);
  if (block == matched_) {
    for (std::string& key : superseded_) wire.add_supersedes(std::move(key));
  }
  batch_.offsets.push_back(offset);
  batch_.blocks.push_back(block);
  batch_.bytes += bytes;
}

void PutRun::SendBatch() {
  if (batch_.blocks.empty()) return;
  full_batch_bytes_ = std::min(2 * full_batch_bytes_, kLargestBatchBytes);
  batch_.remote_ticket = connection_->NextId();
  request_.set_session_token(connection_->token());
  request_.set_model(remote_model_);
  request_.set_ticket(batch_.remote_ticket);
  request_.set_durability(static_cast<v1::Durability>(options_.durability));
  request_.set_floor(static_cast<v1::Precision>(options_.floor));
  request_.set_priority(options_.priority);
  request_.set_ttl_ms(options_.ttl_ms);
  request_.set_deadline_ms(Milliseconds(kStoreTimeout));

  remote_tickets_.push_back(batch_.remote_ticket);
  progress_->BatchStarted();
  const TimePoint rpc_deadline = Now() + kStoreTimeout + kReplyGrace;
  connection_->rpc().PutAsync(
      std::exchange(request_, {}), rpc_deadline,
      [&connection = *connection_, progress = progress_, batch = std::exchange(batch_, {}), rpc_deadline](
          const Status& status, const v1::PutReply& reply) {
        FinishBatch(connection, progress, batch, rpc_deadline, status, reply);
      });
}

Status PutRun::Refuse(size_t from, Status why) {
  for (size_t i = from; i < end_; ++i) {
    progress_->Set(i, {.code = ToC(why.code()), .precision = KVTIER_PRECISION_ANY, .tier = 0});
  }
  return why;
}

}  // namespace

Status Put(Client& client, const std::shared_ptr<const Model>& model, const Query& query, const View& source,
           const PutOptions& options, TimePoint deadline, uint64_t& ticket) {
  std::shared_ptr<Connection> used;
  std::optional<PutRun> run;
  KVTIER_TRY(client.OnConnection(deadline, [&](const std::shared_ptr<Connection>& connection) -> Status {
    KVTIER_ASSIGN(const uint32_t remote_model, connection->RemoteModel(*model, deadline));
    used = connection;
    run.emplace(connection, *model, query, source, options, deadline);
    return run->FindPresent(remote_model);
  }));
  const Status staged = run->StageAll();
  ticket = client.AddTicket({.kind = Ticket::Kind::kPut,
                             .connection = used,
                             .progress = run->progress(),
                             .fetch = nullptr,
                             .remote_tickets = run->remote_tickets()});
  return staged;
}

}  // namespace kvtier::client
