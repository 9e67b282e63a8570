#include "client/ctl/store_verbs.h"

#include <fmt/format.h>

#include <filesystem>
#include <span>

#include "client/ctl/output.h"
#include "tiers/cold_check.h"
#include "tiers/cxl_check.h"

namespace kvtier::ctl {
namespace {

template <typename Check>
struct CheckRow {
  uint64_t Check::*field;
  const char* name;
};
constexpr CheckRow<ColdCheck> kColdRows[] = {{&ColdCheck::segments, "segments"},
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

constexpr CheckRow<CxlCheck> kCxlRows[] = {{&CxlCheck::segments, "segments"},
                                           {&CxlCheck::live, "live"},
                                           {&CxlCheck::damaged, "damaged"},
                                           {&CxlCheck::damaged_headers, "damaged_headers"},
                                           {&CxlCheck::foreign_segments, "foreign_segments"},
                                           {&CxlCheck::missing_bytes, "missing_bytes"},
                                           {&CxlCheck::unread_bytes, "unread_bytes"},
                                           {&CxlCheck::models, "models"},
                                           {&CxlCheck::damaged_models, "damaged_models"},
                                           {&CxlCheck::orphans, "orphans"}};

void AddFlags(JsonWriter& json, const ColdCheck& check) {
  json.Bool("index_damaged", check.index_damaged).Bool("index_complete", check.index_complete);
}
void AddFlags(JsonWriter& json, const CxlCheck& check) {
  json.Bool("superblock_damaged", check.superblock_damaged).Bool("closed", check.closed);
}

template <typename Check>
std::string ToJson(const Check& check, std::span<const CheckRow<Check>> rows) {
  JsonWriter json;
  json.BeginObject().Bool("sound", check.sound());
  for (const CheckRow<Check>& row : rows) json.Number(row.name, check.*row.field);
  AddFlags(json, check);
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

std::string ToText(const CxlCheck& check) {
  std::string text;
  for (const std::string& line : check.damage) text += line + '\n';
  text += fmt::format("{} segments, {} live records, {} models\n", check.segments, check.live, check.models);
  if (!check.closed) text += "it was not closed: the next start reads all of it\n";
  return text +
         (check.sound() ? "sound\n" : "damaged; the next start of the daemon saves what can be saved\n");
}

/// Exits are by the status: damage is kDataLoss, with all there is to print.
template <typename Check>
Result<std::string> Tell(const Check& check, std::span<const CheckRow<Check>> rows, Format format) {
  std::string text = format == Format::kJson ? ToJson(check, rows) : ToText(check);
  if (!check.sound()) return kvtier::Status(Code::kDataLoss, std::move(text));
  return text;
}

/// By what stands there: the memory of a CXL tier is a file, also one in a folder, or a device.
bool IsOfCxlTier(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return fs::exists(path, ignored);
  return !fs::exists(path + "/FORMAT", ignored) &&
         fs::exists(path + "/" + std::string(kCxlFileName), ignored);
}

}  // namespace

Result<std::string> VerifyStore(const std::string& path, Format format) {
  if (IsOfCxlTier(path)) {
    KVTIER_ASSIGN(const CxlCheck check, CheckCxlStore(path));
    return Tell<CxlCheck>(check, kCxlRows, format);
  }
  KVTIER_ASSIGN(const ColdCheck check, CheckColdStore(path));
  return Tell<ColdCheck>(check, kColdRows, format);
}

Result<std::string> RepairStore(const std::string& path, Format format) {
  if (IsOfCxlTier(path)) {
    return kvtier::Status(
        Code::kFailedPrecondition,
        path +
            " is the memory of a CXL tier, which the daemon itself repairs: its start restores "
            "headers and size and drops what is damaged, and so does whoever reads it later");
  }
  KVTIER_ASSIGN(const ColdRepair repair, RepairColdStore(path));
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
