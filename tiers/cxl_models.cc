#include "tiers/cxl_models.h"

#include <cstring>
#include <optional>

#include "tiers/cold_folder.h"
#include "tiers/crc32c.h"

namespace kvtier {

namespace {

constexpr uint64_t kUnit = sizeof(CxlModelHeader);
constexpr size_t kCrcFrom = offsetof(CxlModelHeader, fields_bytes);

std::string EncodeEntry(const StoreUuid& uuid, const ModelRecord& model) {
  CxlModelHeader header{.magic = kCxlModelMagic,
                        .crc = 0,
                        .fields_bytes = model.fields.size(),
                        .uuid = uuid,
                        .name_space = model.name_space.bytes};
  std::string entry(reinterpret_cast<const char*>(&header), sizeof(header));
  entry += model.fields;
  header.crc = Crc32c(std::as_bytes(std::span(entry)).subspan(kCrcFrom));
  std::memcpy(entry.data(), &header, sizeof(header));
  return entry;
}

/// The entry at the start of `bytes`, if a sound one is there.
std::optional<ModelRecord> DecodeEntry(const StoreUuid& uuid, std::span<const std::byte> bytes) {
  CxlModelHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kCxlModelMagic || header.uuid != uuid) return std::nullopt;
  if (header.fields_bytes > bytes.size() - kUnit) return std::nullopt;
  const auto entry = bytes.first(kUnit + header.fields_bytes);
  if (header.crc != Crc32c(entry.subspan(kCrcFrom))) return std::nullopt;
  return ModelRecord{
      .name_space = {header.name_space},
      .fields = std::string(reinterpret_cast<const char*>(entry.data()) + kUnit, header.fields_bytes)};
}

/// Whether the header of an entry was never written to its end: the last bytes of a digest are not zeros.
bool IsUnfinished(std::span<const std::byte> unit) {
  return IsZero(unit.last(sizeof(uint64_t)));
}

}  // namespace

CxlModelArea ReadCxlModels(std::span<const std::byte> start, const StoreUuid& uuid) {
  KVTIER_CHECK(start.size() == kCxlMetaBytes);
  CxlModelArea area;
  uint64_t dirty_end = area.end;  // of what stands behind area.end and is no entry
  for (uint64_t at = area.end; at < kCxlMetaBytes;) {
    std::optional<ModelRecord> model;
    const bool empty = IsZero(start.subspan(at, kUnit));
    if (!empty) model = DecodeEntry(uuid, start.subspan(at));
    if (!model) {
      at += kUnit;
      if (!empty) dirty_end = at;
      continue;
    }
    // Entries stand one behind the other: whatever is between two of them was one.
    if (dirty_end > area.end) area.damaged.push_back({area.end, dirty_end});
    at = AlignUp(at + kUnit + model->fields.size(), kUnit);
    area.fields[model->name_space.bytes] = std::move(model->fields);
    area.end = dirty_end = at;
  }
  if (dirty_end == area.end) return area;
  const CxlModelArea::Range rest{area.end, dirty_end};
  if (IsUnfinished(start.subspan(area.end, kUnit))) {
    area.unfinished = rest;
  } else {
    area.damaged.push_back(rest);
  }
  return area;
}

std::vector<ModelRecord> CxlModels::Load(uint64_t& dropped) {
  CxlModelArea area = ReadCxlModels(memory_.span().first(kCxlMetaBytes), uuid_);
  dropped += area.damaged.size();
  // Nobody can use them, and what follows the last sound entry is where the next one goes.
  if (area.unfinished.end > 0) area.damaged.push_back(area.unfinished);
  for (const auto& [begin, end] : area.damaged) {
    memory_.Zero(begin, end - begin);
    memory_.Persist(begin, end - begin).IgnoreBecause("the next start finds them again");
  }
  end_ = area.end;
  known_ = std::move(area.fields);
  std::vector<ModelRecord> models;
  for (const auto& [name_space, fields] : known_)
    models.push_back({.name_space = {name_space}, .fields = fields});
  return models;
}

Status CxlModels::Put(const ModelRecord& model) {
  if (model.fields.size() > kMaxModelFieldsBytes) {
    return Status(Code::kInvalidArgument,
                  "model fields of " + std::to_string(model.fields.size()) + " bytes");
  }
  const auto known = known_.find(model.name_space.bytes);
  if (known != known_.end() && known->second == model.fields) return Status::Ok();
  const std::string entry = EncodeEntry(uuid_, model);
  if (entry.size() > kCxlMetaBytes - end_) return Status(Code::kOutOfRange, "the area of models is full");
  // The header last: an entry that a power cut leaves half is none.
  const auto bytes = std::as_bytes(std::span(entry));
  memory_.Write(end_ + kUnit, bytes.subspan(kUnit));
  memory_.Write(end_, bytes.first(kUnit));
  KVTIER_TRY(memory_.Persist(end_, entry.size()));
  end_ = AlignUp(end_ + entry.size(), kUnit);
  known_[model.name_space.bytes] = model.fields;
  return Status::Ok();
}

}  // namespace kvtier
