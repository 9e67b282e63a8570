#include "tiers/cxl_models.h"

#include <algorithm>
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

}  // namespace

std::vector<ModelRecord> CxlModels::Load(uint64_t& dropped) {
  const std::span<const std::byte> area = memory_.span().first(kCxlMetaBytes);
  bool in_damage = false;
  for (uint64_t at = kCxlModelsOffset; at < kCxlMetaBytes;) {
    const auto unit = area.subspan(at, kUnit);
    const bool empty = std::all_of(unit.begin(), unit.end(), [](std::byte b) { return b == std::byte{0}; });
    std::optional<ModelRecord> model;
    if (!empty) model = DecodeEntry(uuid_, area.subspan(at));
    if (model) {
      at = AlignUp(at + kUnit + model->fields.size(), kUnit);
      known_[model->name_space.bytes] = std::move(model->fields);
    } else {
      // What is no entry is counted once, however long it is.
      if (!empty && !in_damage) ++dropped;
      at += kUnit;
    }
    in_damage = !empty && !model;
    if (!empty) end_ = at;
  }
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
