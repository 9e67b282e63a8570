#include "client/ctl/store_verbs.h"

#include <fmt/format.h>

#include "client/ctl/output.h"
#include "tiers/cold_check.h"

namespace kvtier::ctl {
namespace {

struct CheckRow {
  uint64_t ColdCheck::*field;
  const char* name;
};
constexpr CheckRow kCheckRows[] = {{&ColdCheck::segments, "segments"},
                                   {&ColdCheck::live, "live"},
                                   {&ColdCheck::damaged, "damaged"},
                                   {&ColdCheck::damaged_headers, "damaged_headers"},
                                   {&ColdCheck::truncated_files, "truncated_files"},
                                   {&ColdCheck::foreign_files, "foreign_files"},
                                   {&ColdCheck::unread_bytes, "unread_bytes"},
                                   {&ColdCheck::index_entries, "index_entries"},
                                   {&ColdCheck::bad_entries, "bad_entries"},
                                   {&ColdCheck::dangling_entries, "dangling_entries"},
                                   {&ColdCheck::unindexed, "unindexed"},
                                   {&ColdCheck::models, "models"},
                                   {&ColdCheck::damaged_models, "damaged_models"},
                                   {&ColdCheck::orphans, "orphans"},
                                   {&ColdCheck::leftovers, "leftovers"}};

std::string ToJson(const ColdCheck& check) {
  JsonWriter json;
  json.BeginObject().Bool("sound", check.sound());
  for (const CheckRow& row : kCheckRows) json.Number(row.name, check.*row.field);
  json.Bool("index_damaged", check.index_damaged).Bool("index_complete", check.index_complete);
  json.BeginArray("damage");
  for (const std::string& line : check.damage) json.BeginObject().Text("what", line).EndObject();
  return json.EndArray().EndObject().str() + '\n';
}

std::string ToText(const ColdCheck& check) {
  std::string text;
  for (const std::string& line : check.damage) text += line + '\n';
  text += fmt::format("{} segments, {} live records, {} index entries, {} models\n", check.segments,
                      check.live, check.index_entries, check.models);
  if (check.unindexed > 0 && !check.index_complete) {
    text += fmt::format("{} records are in no index entry: the daemon was killed, its next start adds them\n",
                        check.unindexed);
  }
  if (check.leftovers > 0) text += fmt::format("{} files are left over\n", check.leftovers);
  return text + (check.sound() ? "sound\n" : "damaged; `kvtierctl repair --store` saves what can be saved\n");
}

}  // namespace

Result<std::string> VerifyStore(const std::string& folder, Format format) {
  KVTIER_ASSIGN(const ColdCheck check, CheckColdStore(folder));
  std::string text = format == Format::kJson ? ToJson(check) : ToText(check);
  if (!check.sound()) return kvtier::Status(Code::kDataLoss, std::move(text));
  return text;
}

Result<std::string> RepairStore(const std::string& folder, Format format) {
  KVTIER_ASSIGN(const ColdRepair repair, RepairColdStore(folder));
  if (format == Format::kJson) {
    JsonWriter json;
    json.BeginObject().Number("blocks", repair.blocks).Number("marked_dead", repair.marked_dead);
    json.Number("headers_repaired", repair.headers_repaired).Number("headers_lost", repair.headers_lost);
    return json.Number("removed_files", repair.removed_files).EndObject().str() + '\n';
  }
  return fmt::format(
      "{} blocks are there; {} records marked dead; {} segment headers repaired, {} lost; {} files removed\n",
      repair.blocks, repair.marked_dead, repair.headers_repaired, repair.headers_lost, repair.removed_files);
}

}  // namespace kvtier::ctl
