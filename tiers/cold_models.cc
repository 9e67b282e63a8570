#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "tiers/cold_folder.h"
#include "tiers/crc32c.h"

namespace kvtier {

namespace {

constexpr uint32_t kModelMagic = 0x314C4D4B;  // "KML1"

/// First bytes of a model file; the fields follow, up to the end of the file.
struct ModelFileHeader {
  uint32_t magic;
  uint32_t crc;  ///< over everything after it
  std::array<std::byte, 32> name_space;
};
static_assert(sizeof(ModelFileHeader) == 40);
constexpr size_t kCrcFrom = offsetof(ModelFileHeader, name_space);
constexpr std::string_view kModelSuffix = ".model";

uint32_t FileCrc(std::string_view bytes) {
  return Crc32c(std::as_bytes(std::span(bytes.data(), bytes.size())).subspan(kCrcFrom));
}

std::string EncodeModel(const ModelRecord& model) {
  ModelFileHeader header{.magic = kModelMagic, .crc = 0, .name_space = model.name_space.bytes};
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  bytes += model.fields;
  header.crc = FileCrc(bytes);
  std::memcpy(bytes.data(), &header, sizeof(header));
  return bytes;
}

/// `name`: the file's, which says the namespace again.
Result<ModelRecord> DecodeModel(std::string_view bytes, std::string_view name) {
  ModelFileHeader header;
  if (bytes.size() < sizeof(header)) return Status(Code::kDataLoss, "model file: too short");
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kModelMagic || header.crc != FileCrc(bytes)) {
    return Status(Code::kDataLoss, "model file: checksum");
  }
  ModelRecord model{.name_space = {header.name_space}, .fields = std::string(bytes.substr(sizeof(header)))};
  if (name != ModelFileName(model.name_space)) {
    return Status(Code::kDataLoss, "model file: another's name");
  }
  return model;
}

}  // namespace

Status WriteModelFile(const std::string& folder, const ModelRecord& model, uint32_t max_models) {
  if (model.fields.size() > kMaxModelFieldsBytes) {
    return Status(Code::kInvalidArgument,
                  "model fields of " + std::to_string(model.fields.size()) + " bytes");
  }
  const std::string path = folder + "/" + ModelFileName(model.name_space);
  const std::string bytes = EncodeModel(model);
  const Result<std::string> present = ReadWholeFile(path, bytes.size());
  if (present.ok() && *present == bytes) return Status::Ok();
  if (!present.ok() && present.status().code() == Code::kNotFound) {
    KVTIER_ASSIGN(const std::vector<std::string> names, ListFolder(folder));
    if (names.size() >= max_models) {
      return Status(Code::kOutOfRange, folder + " holds " + std::to_string(max_models) + " models");
    }
  }
  return WriteFileAtomically(path, bytes);
}

std::string ModelFileName(const NamespaceDigest& name_space) {
  return name_space.ToHex() + std::string(kModelSuffix);
}

Result<std::vector<ModelRecord>> ReadModelFiles(const std::string& folder, uint64_t& dropped) {
  KVTIER_ASSIGN(const std::vector<std::string> names, ListFolder(folder));
  std::vector<ModelRecord> models;
  for (const std::string& name : names) {
    if (!name.ends_with(kModelSuffix)) continue;
    const Result<std::string> bytes =
        ReadWholeFile(folder + "/" + name, sizeof(ModelFileHeader) + kMaxModelFieldsBytes);
    Result<ModelRecord> model = bytes.ok() ? DecodeModel(*bytes, name) : Result<ModelRecord>(bytes.status());
    if (model.ok()) {
      models.push_back(std::move(model).value());
    } else {
      ++dropped;
    }
  }
  return models;
}

Result<uint64_t> RemoveDamagedModels(const std::string& folder) {
  KVTIER_ASSIGN(const std::vector<std::string> names, ListFolder(folder));
  uint64_t removed = 0;
  for (const std::string& name : names) {
    if (!name.ends_with(kModelSuffix)) continue;
    const std::string path = folder + "/" + name;
    const Result<std::string> bytes = ReadWholeFile(path, sizeof(ModelFileHeader) + kMaxModelFieldsBytes);
    if (!bytes.ok() && bytes.status().code() != Code::kOutOfRange) continue;  // it may be read another time
    if (bytes.ok() && DecodeModel(*bytes, name).ok()) continue;
    if (::unlink(path.c_str()) != 0) return StatusFromErrno(errno, "remove damaged " + path);
    ++removed;
  }
  return removed;
}

Status RemoveModelsWithoutBlocks(const std::string& folder, ColdRecovery& recovery) {
  std::set<decltype(NamespaceDigest::bytes)> used;
  for (const RecoveredBlock& block : recovery.blocks) used.insert(block.identity.name_space.bytes);
  std::vector<ModelRecord> kept;
  for (ModelRecord& model : recovery.models) {
    if (used.contains(model.name_space.bytes)) {
      kept.push_back(std::move(model));
      continue;
    }
    const std::string path = folder + "/" + ModelFileName(model.name_space);
    if (::unlink(path.c_str()) != 0) return StatusFromErrno(errno, "remove unused " + path);
    ++recovery.removed_models;
  }
  recovery.models = std::move(kept);
  return Status::Ok();
}

Status RemoveHalfMadeModels(const std::string& folder) {
  KVTIER_ASSIGN(const std::vector<std::string> names, ListFolder(folder));
  for (const std::string& name : names) {
    const std::string path = folder + "/" + name;
    if (IsLeftover(name) && ::unlink(path.c_str()) != 0)
      return StatusFromErrno(errno, "remove half-made " + path);
  }
  return Status::Ok();
}

}  // namespace kvtier
