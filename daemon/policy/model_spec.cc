#include "daemon/policy/model_spec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "codecs/image_layout.h"
#include "daemon/policy/model_fields.h"

namespace kvtier {
namespace {

constexpr uint32_t kStoredVersion = 2;
constexpr uint32_t kMaxSpecTextBytes = 1024;  ///< of each text field
constexpr uint32_t kMaxTenantBytes = 256;
constexpr uint32_t kDimStep = 16;

Status Invalid(std::string_view field, std::string_view rule) {
  return Status(Code::kInvalidArgument, "model spec: " + std::string(field) + " " + std::string(rule));
}

Status Unsupported(std::string_view what) {
  return Status(Code::kUnimplemented, "model spec: " + std::string(what));
}

Status ValidateTexts(const ModelSpec& spec) {
  if (spec.model_id.empty()) return Invalid("model_id", "is empty");
  const std::pair<const char*, const std::string*> texts[] = {
      {"model_id", &spec.model_id},           {"revision", &spec.revision},   {"lora", &spec.lora},
      {"config_digest", &spec.config_digest}, {"kv_scales", &spec.kv_scales}, {"layout_id", &spec.layout_id}};
  for (const auto& [name, text] : texts) {
    if (text->size() > kMaxSpecTextBytes) return Invalid(name, "is longer than 1024 bytes");
  }
  return Status::Ok();
}

Status ValidateDims(const ModelSpec& spec) {
  if (spec.layers == 0 || spec.layers > kMaxLayers) return Invalid("layers", "is not in 1..1024");
  if (spec.kv_heads == 0) return Invalid("kv_heads", "is 0");
  if (spec.k_dim == 0) return Invalid("k_dim", "is 0");
  if (spec.v_dim == 0)
    return Unsupported("v_dim is 0: latent attention layouts are not stored in this version");
  if (spec.k_dim > kMaxHeadDim || spec.v_dim > kMaxHeadDim) {
    return Unsupported("k_dim or v_dim above 256: latent attention layouts are not stored in this version");
  }
  if (spec.k_dim % kDimStep != 0 || spec.v_dim % kDimStep != 0) {
    return Unsupported("k_dim and v_dim must be multiples of 16");
  }
  return Status::Ok();
}

Status ValidateDtype(DType dtype) {
  switch (dtype) {
    case DType::kFp16:
    case DType::kBf16:
    case DType::kE4m3:
    case DType::kE5m2:
      return Status::Ok();
    case DType::kFp32:
      return Unsupported("fp32 KV is not stored: fp32 is for destinations alone");
  }
  return Invalid("dtype", "is unknown");
}

Status ValidateScales(std::string_view name, const std::vector<float>& scales, uint16_t layers) {
  if (!scales.empty() && scales.size() != layers) return Invalid(name, "has not one number a layer");
  const bool are_positive =
      std::ranges::all_of(scales, [](float scale) { return std::isnormal(scale) && scale > 0; });
  return are_positive ? Status::Ok() : Invalid(name, "has a number that is not finite and positive");
}

Status ValidateShard(std::string_view name, const ModelSpec::Shard& shard) {
  if (shard.size == 0) return Invalid(name, "shard has size 0");
  if (shard.rank >= shard.size) return Invalid(name, "shard has a rank that is not below its size");
  return Status::Ok();
}

void AppendU32(std::string& out, uint32_t value) {
  char bytes[sizeof(value)];
  std::memcpy(bytes, &value, sizeof(value));
  out.append(bytes, sizeof(bytes));
}

void AppendText(std::string& out, std::string_view text) {
  AppendU32(out, static_cast<uint32_t>(text.size()));
  out.append(text);
}

void AppendFloats(std::string& out, const std::vector<float>& floats) {
  AppendText(out, {reinterpret_cast<const char*>(floats.data()), floats.size() * sizeof(float)});
}

/// Takes fields off the front; after the first failure it takes nothing more.
class FieldReader {
 public:
  explicit FieldReader(std::string_view bytes) : rest_(bytes) {}

  uint32_t U32() {
    uint32_t value = 0;
    const std::string_view bytes = Take(sizeof(value));
    if (!failed_) std::memcpy(&value, bytes.data(), sizeof(value));
    return value;
  }
  std::string Text() {
    const uint32_t bytes = U32();
    return std::string(Take(bytes));
  }
  std::vector<float> Floats() {
    const std::string_view bytes = Take(U32());
    std::vector<float> floats(bytes.size() / sizeof(float));
    if (floats.size() * sizeof(float) != bytes.size()) failed_ = true;
    if (!floats.empty()) std::memcpy(floats.data(), bytes.data(), floats.size() * sizeof(float));
    return floats;
  }
  template <typename T>
  T Number() {
    const uint32_t value = U32();
    if constexpr (!std::is_enum_v<T>) {
      if (value > std::numeric_limits<T>::max()) failed_ = true;
    } else {
      if (value > std::numeric_limits<std::underlying_type_t<T>>::max()) failed_ = true;
    }
    return static_cast<T>(value);
  }
  bool failed() const { return failed_; }
  bool AtEnd() const { return rest_.empty(); }

 private:
  std::string_view Take(size_t bytes) {
    if (failed_ || bytes > rest_.size()) {
      failed_ = true;
      return {};
    }
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }

  std::string_view rest_;
  bool failed_ = false;
};

}  // namespace

Fp8Scales ScalesOf(const ModelSpec& spec, size_t layer) {
  return {.k = spec.k_scales.empty() ? 1.0f : spec.k_scales[layer],
          .v = spec.v_scales.empty() ? 1.0f : spec.v_scales[layer]};
}

BlockShape ShapeOf(const ModelSpec& spec, uint64_t first_position, uint16_t tokens) {
  BlockShape shape;
  shape.layers = spec.layers;
  shape.kv_heads = spec.kv_heads;
  shape.k_dim = spec.k_dim;
  shape.v_dim = spec.v_dim;
  shape.tokens = tokens;
  shape.dtype = spec.dtype;
  shape.nraw =
      first_position == 0 ? static_cast<uint8_t>(std::min<uint16_t>(spec.first_raw_rows, tokens)) : 0;
  shape.nb = spec.boost_channels;
  return shape;
}

Status ValidateModelSpec(const ModelSpec& spec) {
  KVTIER_TRY(ValidateTexts(spec));
  KVTIER_TRY(ValidateDims(spec));
  KVTIER_TRY(ValidateDtype(spec.dtype));
  if (spec.tokens_per_block != 64 && spec.tokens_per_block != 128) {
    return Invalid("tokens_per_block", "is neither 64 nor 128");
  }
  KVTIER_TRY(ValidateShard("tensor", spec.tensor));
  KVTIER_TRY(ValidateShard("pipeline", spec.pipeline));
  KVTIER_TRY(ValidateShard("context", spec.context));
  if (spec.first_raw_rows == 0 || spec.first_raw_rows > kMaxRawRows)
    return Invalid("first_raw_rows", "is not in 1..4");
  if (spec.boost_channels % 4 != 0 || spec.boost_channels > spec.k_dim) {
    return Invalid("boost_channels", "is not a multiple of 4 up to k_dim");
  }
  if (spec.floor > Precision::kBits16) return Invalid("floor", "is unknown");
  if (spec.floor > MostExact(spec.dtype)) return Invalid("floor", "is above the precision of the model's KV");
  KVTIER_TRY(ValidateScales("k_scales", spec.k_scales, spec.layers));
  KVTIER_TRY(ValidateScales("v_scales", spec.v_scales, spec.layers));
  if (RawBlockBytes(ShapeOf(spec, 0, static_cast<uint16_t>(spec.tokens_per_block))) > kMaxBlockBytes) {
    return Invalid("shape", "gives blocks above 64 MiB");
  }
  return Status::Ok();
}

std::string SerializeModel(std::string_view tenant, const ModelSpec& spec) {
  std::string out;
  AppendU32(out, kStoredVersion);
  AppendText(out, tenant);
  ForEachField(spec, [&out](const auto& field) {
    using Field = std::decay_t<decltype(field)>;
    if constexpr (std::is_same_v<Field, std::string>) {
      AppendText(out, field);
    } else if constexpr (std::is_same_v<Field, std::vector<float>>) {
      AppendFloats(out, field);
    } else {
      AppendU32(out, static_cast<uint32_t>(field));
    }
  });
  return out;
}

Result<StoredModel> ParseModel(std::string_view fields) {
  FieldReader reader(fields);
  const uint32_t version = reader.U32();
  if (!reader.failed() && version != kStoredVersion) {
    return Status(Code::kUnimplemented, "stored model: unknown version " + std::to_string(version));
  }
  StoredModel stored;
  stored.tenant = reader.Text();
  ForEachField(stored.spec, [&reader](auto& field) {
    using Field = std::decay_t<decltype(field)>;
    if constexpr (std::is_same_v<Field, std::string>) {
      field = reader.Text();
    } else if constexpr (std::is_same_v<Field, std::vector<float>>) {
      field = reader.Floats();
    } else {
      field = reader.Number<Field>();
    }
  });
  if (reader.failed() || !reader.AtEnd() || stored.tenant.size() > kMaxTenantBytes) {
    return Status(Code::kDataLoss, "stored model: fields do not add up");
  }
  if (const Status valid = ValidateModelSpec(stored.spec); !valid.ok()) {
    return Status(Code::kDataLoss, "stored " + valid.message());
  }
  return stored;
}

}  // namespace kvtier
