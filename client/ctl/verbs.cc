#include "client/ctl/verbs.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "client/ctl/explain.h"
#include "client/ctl/output.h"
#include "codecs/codec.h"

namespace kvtier::ctl {
namespace {

constexpr size_t kShownKeyDigits = 16;

uint32_t Milliseconds(Duration duration) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
  return static_cast<uint32_t>(std::clamp<int64_t>(ms, 1, UINT32_MAX));
}

std::string CodecName(uint32_t id) {
  const Codec* codec = id <= UINT8_MAX ? FindCodec(static_cast<CodecId>(id)) : nullptr;
  return codec != nullptr ? std::string(codec->name) : std::to_string(id);
}

void WriteTiers(const v1::StatsReply& stats, JsonWriter& json) {
  json.BeginArray("tiers");
  for (int i = 0; i < stats.tiers_size(); ++i) {
    const v1::TierStats& tier = stats.tiers(i);
    json.BeginObject()
        .Number("tier", static_cast<uint64_t>(i))
        .Text("name", tier.name())
        .Text("medium", tier.medium());
    json.Text("codec", tier.codec())
        .Number("capacity_bytes", tier.capacity_bytes())
        .Number("used_bytes", tier.used_bytes());
    json.BeginObject("blocks");
    for (int p = 1; p < std::min<int>(tier.blocks_size(), kPrecisionNames.size()); ++p) {
      json.Number(kPrecisionNames[p], tier.blocks(p));
    }
    json.EndObject().Bool("accepts_writes", tier.accepts_writes()).EndObject();
  }
  json.EndArray();
}

std::string TierTable(const v1::StatsReply& stats) {
  Table table({"tier", "name", "medium", "codec", "used", "capacity", "int2", "k4v2", "int4", "bits8",
               "bits16", "writes"});
  for (int i = 0; i < stats.tiers_size(); ++i) {
    const v1::TierStats& tier = stats.tiers(i);
    std::vector<std::string> row = {std::to_string(i),
                                    tier.name(),
                                    tier.medium(),
                                    tier.codec(),
                                    HumanBytes(tier.used_bytes()),
                                    HumanBytes(tier.capacity_bytes())};
    for (int p = 1; p < static_cast<int>(kPrecisionNames.size()); ++p) {
      row.push_back(std::to_string(p < tier.blocks_size() ? tier.blocks(p) : 0));
    }
    row.emplace_back(tier.accepts_writes() ? "yes" : "no");
    table.Row(row);
  }
  return table.str();
}

void WriteBlock(const v1::ListBlocksReply::Block& block, JsonWriter& json) {
  json.BeginObject().Text("key", Hex(block.key())).Text("parent", Hex(block.parent()));
  json.Number("position", block.first_position())
      .Number("tokens", block.tokens())
      .Number("pins", block.pins())
      .Number("children", block.children())
      .Number("priority", block.priority())
      .Text("floor", PrecisionName(block.floor()))
      .Bool("is_tail", block.is_tail())
      .Number("uses_since", block.uses_since());
  if (block.has_recent_uses()) json.Number("recent_uses", block.recent_uses());
  json.BeginArray("copies");
  for (const auto& copy : block.copies()) {
    json.BeginObject()
        .Number("tier", copy.tier())
        .Text("codec", CodecName(copy.codec()))
        .Number("bytes", copy.bytes());
    json.Number("present_ms", copy.present_ms());
    json.Real("k_error", copy.k_error()).Real("v_error", copy.v_error()).EndObject();
  }
  json.EndArray().EndObject();
}

void AddBlockRows(const v1::ListBlocksReply::Block& block, Table& table) {
  for (const auto& copy : block.copies()) {
    table.Row({Hex(block.key()).substr(0, kShownKeyDigits), std::to_string(block.first_position()),
               std::to_string(block.tokens()), std::to_string(block.pins()), std::to_string(copy.tier()),
               CodecName(copy.codec()), HumanBytes(copy.bytes()), fmt::format("{:.4f}", copy.k_error()),
               fmt::format("{:.4f}", copy.v_error())});
  }
}

}  // namespace

template <typename Request, typename Reply>
kvtier::Status Verbs::Ask(Request request, Reply& reply) {
  const TimePoint deadline = SteadyClock().Now() + timeout_;
  return client_.OnConnection(deadline, [&](const std::shared_ptr<client::Connection>& connection) {
    request.set_session_token(connection->token());
    boot_id_ = connection->welcome().boot_id();
    return connection->rpc().Call(request, reply, deadline);
  });
}

Result<v1::StatsReply> Verbs::Stats() {
  v1::StatsReply stats;
  KVTIER_TRY(Ask(v1::StatsRequest(), stats));
  return stats;
}

Result<std::string> Verbs::Status() {
  KVTIER_ASSIGN(const v1::StatsReply stats, Stats());
  if (format_ == Format::kJson) {
    JsonWriter json;
    json.BeginObject()
        .Text("version", stats.version())
        .Text("boot_id", Hex(boot_id_))
        .Number("uptime_ms", stats.uptime_ms());
    json.Number("blocks", stats.table_entries())
        .Number("models", stats.models())
        .Number("sessions", stats.sessions());
    json.Number("leases", stats.leases_live()).Number("jobs_in_flight", stats.jobs_in_flight());
    json.Number("command_queue_depth", stats.command_queue_depth());
    WriteTiers(stats, json);
    return json.EndObject().str() + '\n';
  }
  return fmt::format(
             "kvtierd {}, up {:.1f} s, boot {}\n{} blocks of {} models; {} sessions, {} leases; {} moves "
             "under way, "
             "{} commands queued\n\n",
             stats.version(), static_cast<double>(stats.uptime_ms()) / 1000.0, Hex(boot_id_),
             stats.table_entries(), stats.models(), stats.sessions(), stats.leases_live(),
             stats.jobs_in_flight(), stats.command_queue_depth()) +
         TierTable(stats);
}

Result<std::string> Verbs::Tiers() {
  KVTIER_ASSIGN(const v1::StatsReply stats, Stats());
  if (format_ == Format::kHuman) return TierTable(stats);
  JsonWriter json;
  json.BeginObject();
  WriteTiers(stats, json);
  return json.EndObject().str() + '\n';
}

Result<std::string> Verbs::Models() {
  v1::ListModelsReply reply;
  KVTIER_TRY(Ask(v1::ListModelsRequest(), reply));
  JsonWriter json;
  json.BeginObject().BeginArray("models");
  Table table(
      {"model", "tenant", "id", "revision", "lora", "shape", "tokens", "blocks", "bytes", "namespace"});
  for (const auto& model : reply.models()) {
    const v1::ModelSpec& spec = model.spec();
    const std::string shape = fmt::format("{} layers x {} heads x {}+{}", spec.layers(), spec.kv_heads(),
                                          spec.k_dim(), spec.v_dim());
    table.Row({std::to_string(model.model()), model.tenant(), spec.model_id(), spec.revision(), spec.lora(),
               shape, std::to_string(spec.tokens_per_block()), std::to_string(model.blocks()),
               HumanBytes(model.bytes()), Hex(model.name_space()).substr(0, kShownKeyDigits)});
    json.BeginObject()
        .Number("model", model.model())
        .Text("tenant", model.tenant())
        .Text("model_id", spec.model_id());
    json.Text("revision", spec.revision()).Text("lora", spec.lora()).Number("layers", spec.layers());
    json.Number("kv_heads", spec.kv_heads()).Number("k_dim", spec.k_dim()).Number("v_dim", spec.v_dim());
    json.Number("tokens_per_block", spec.tokens_per_block()).Text("namespace", Hex(model.name_space()));
    json.Number("blocks", model.blocks()).Number("bytes", model.bytes()).EndObject();
  }
  if (format_ == Format::kHuman) return table.str();
  return json.EndArray().EndObject().str() + '\n';
}

Result<std::string> Verbs::Blocks(uint32_t model, uint64_t limit) {
  JsonWriter json;
  json.BeginObject().BeginArray("blocks");
  Table table({"key", "position", "tokens", "pins", "tier", "codec", "bytes", "K error", "V error"});
  constexpr uint64_t kPageBlocks = 1024;
  v1::ListBlocksRequest request;
  request.set_model(model);
  for (uint64_t left = limit == 0 ? UINT64_MAX : limit; left > 0;) {
    const uint64_t wanted = std::min(left, kPageBlocks);
    request.set_limit(static_cast<uint32_t>(wanted));
    v1::ListBlocksReply reply;
    KVTIER_TRY(Ask(request, reply));
    for (const auto& block : reply.blocks()) {
      AddBlockRows(block, table);
      WriteBlock(block, json);
    }
    const auto got = static_cast<uint64_t>(reply.blocks_size());
    if (got < wanted) break;
    left -= got;
    request.set_after(reply.blocks(reply.blocks_size() - 1).key());
  }
  if (format_ == Format::kHuman) return table.str();
  return json.EndArray().EndObject().str() + '\n';
}

Result<Verbs::Found> Verbs::FindBlock(const std::string& prefix) {
  KVTIER_ASSIGN(const std::string before, KeyBefore(prefix));
  v1::ListModelsReply models;
  KVTIER_TRY(Ask(v1::ListModelsRequest(), models));
  std::optional<Found> found;
  for (const auto& model : models.models()) {
    v1::ListBlocksRequest request;
    request.set_model(model.model());
    request.set_after(before);
    request.set_limit(2);
    v1::ListBlocksReply reply;
    KVTIER_TRY(Ask(request, reply));
    for (const auto& block : reply.blocks()) {
      if (!Hex(block.key()).starts_with(prefix)) continue;
      if (found) {
        return kvtier::Status(Code::kInvalidArgument, "several keys start with " + prefix + ": " +
                                                          Hex(found->block.key()) + ", " + Hex(block.key()));
      }
      found = Found{.model = model, .block = block};
    }
  }
  if (!found) return kvtier::Status(Code::kNotFound, "no block has a key that starts with " + prefix);
  return *std::move(found);
}

Result<std::string> Verbs::Explain(const std::string& prefix) {
  KVTIER_ASSIGN(const Found found, FindBlock(prefix));
  if (format_ == Format::kJson) {
    JsonWriter json;
    json.BeginObject().Number("model", found.model.model()).Text("tenant", found.model.tenant());
    json.BeginArray("blocks");
    WriteBlock(found.block, json);
    return json.EndArray().EndObject().str() + '\n';
  }
  KVTIER_ASSIGN(const v1::StatsReply stats, Stats());
  return ExplainText(found.block, found.model, stats);
}

Result<uint32_t> Verbs::TierNumber(const std::string& tier) {
  KVTIER_ASSIGN(const v1::StatsReply stats, Stats());
  std::string names;
  for (int i = 0; i < stats.tiers_size(); ++i) {
    if (stats.tiers(i).name() == tier || std::to_string(i) == tier) return static_cast<uint32_t>(i);
    names += (i == 0 ? "" : ", ") + stats.tiers(i).name();
  }
  return kvtier::Status(Code::kInvalidArgument, "no tier \"" + tier + "\"; there are " + names);
}

std::string Verbs::Count(const char* verb, uint64_t count) const {
  if (format_ == Format::kHuman)
    return fmt::format("{} {} {}\n", verb, count, count == 1 ? "block" : "blocks");
  return JsonWriter().BeginObject().Number(verb, count).EndObject().str() + '\n';
}

Result<uint64_t> Verbs::MoveBlocks(MoveCall call, const std::string& tier, uint64_t count) {
  KVTIER_ASSIGN(const uint32_t number, TierNumber(tier));
  const TimePoint deadline = SteadyClock().Now() + timeout_;
  v1::CountReply reply;
  KVTIER_TRY(client_.OnConnection(deadline, [&](const std::shared_ptr<client::Connection>& connection) {
    v1::TierCountRequest request;
    request.set_session_token(connection->token());
    request.set_tier(number);
    request.set_count(count);
    request.set_deadline_ms(Milliseconds(timeout_));
    return (connection->rpc().*call)(request, reply, deadline);
  }));
  return reply.count();
}

Result<std::string> Verbs::Demote(const std::string& tier, uint64_t count) {
  KVTIER_ASSIGN(const uint64_t moved, MoveBlocks(&client::Rpc::Demote, tier, count));
  return Count("demoted", moved);
}

Result<std::string> Verbs::Evict(const std::string& tier, uint64_t count) {
  KVTIER_ASSIGN(const uint64_t moved, MoveBlocks(&client::Rpc::Evict, tier, count));
  return Count("evicted", moved);
}

Result<std::string> Verbs::Verify(const std::string& tier) {
  std::vector<uint32_t> tiers;
  if (tier.empty()) {
    KVTIER_ASSIGN(const v1::StatsReply stats, Stats());
    for (int i = 0; i < stats.tiers_size(); ++i) tiers.push_back(static_cast<uint32_t>(i));
  } else {
    KVTIER_ASSIGN(const uint32_t number, TierNumber(tier));
    tiers.push_back(number);
  }
  uint64_t checked = 0, corrupt = 0;
  std::string lines;
  JsonWriter json;
  json.BeginObject().BeginArray("corrupt_keys");
  for (const uint32_t number : tiers) {
    v1::VerifyRequest request;
    request.set_tier(number);
    request.set_deadline_ms(Milliseconds(timeout_));
    v1::VerifyReply reply;
    KVTIER_TRY(Ask(request, reply));
    checked += reply.checked();
    corrupt += reply.corrupt();
    for (const std::string& key : reply.corrupt_keys()) {
      lines += fmt::format("corrupt in tier {}: {}\n", number, Hex(key));
      json.BeginObject().Number("tier", number).Text("key", Hex(key)).EndObject();
    }
  }
  json.EndArray().Number("checked", checked).Number("corrupt", corrupt).EndObject();
  const std::string text = format_ == Format::kJson
                               ? json.str() + '\n'
                               : fmt::format("{}checked {}, corrupt {}\n", lines, checked, corrupt);
  if (corrupt > 0) return kvtier::Status(Code::kDataLoss, text);
  return text;
}

Result<std::string> Verbs::Drain() {
  v1::DrainRequest request;
  request.set_deadline_ms(Milliseconds(timeout_));
  v1::CountReply reply;
  KVTIER_TRY(Ask(request, reply));
  return Count("drained", reply.count());
}

}  // namespace kvtier::ctl
