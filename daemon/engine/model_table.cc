#include "daemon/engine/model_table.h"

#include "codecs/image_layout.h"
#include "daemon/policy/keys.h"

namespace kvtier {
namespace {

std::shared_ptr<const std::vector<Fp8Scales>> LayerScales(const ModelSpec& spec) {
  if (spec.k_scales.empty() && spec.v_scales.empty()) return nullptr;
  auto scales = std::make_shared<std::vector<Fp8Scales>>(spec.layers);
  for (size_t layer = 0; layer < scales->size(); ++layer) (*scales)[layer] = ScalesOf(spec, layer);
  return scales;
}

}  // namespace

Result<TenantId> ModelTable::Tenant(const std::string& name) {
  if (const auto found = tenant_by_name_.find(name); found != tenant_by_name_.end()) return found->second;
  if (tenants_.size() >= kMaxTenants) return Status(Code::kResourceExhausted, "too many tenants");
  const TenantId id{static_cast<uint32_t>(tenants_.size())};
  tenants_.push_back(name);
  tenant_by_name_.emplace(name, id);
  return id;
}

Result<ModelId> ModelTable::Register(TenantId tenant, const ModelSpec& spec) {
  KVTIER_TRY(ValidateModelSpec(spec));
  const NamespaceDigest name_space = ComputeNamespace(TenantName(tenant), spec);
  if (const Model* known = Find(name_space)) return known->id;
  if (models_.size() >= kMaxModels) return Status(Code::kResourceExhausted, "too many models");
  const ModelId id{static_cast<uint32_t>(models_.size())};
  Model& model = models_.emplace_back();
  model.id = id;
  model.tenant = tenant;
  model.name_space = name_space;
  model.spec = spec;
  model.scales = LayerScales(spec);
  const BlockShape first = kvtier::ShapeOf(spec, 0, static_cast<uint16_t>(spec.tokens_per_block));
  for (const Codec* codec : AllCodecs()) {
    const BlockShape stored = StoredShape(codec->id, first);
    if (!codec->supports(stored)) continue;
    model.sealed_slot_bytes[static_cast<size_t>(codec->id)] =
        AlignUp(PlainImageBytes(*codec, stored), kSlotAlign);
  }
  model_by_name_space_.emplace(name_space, id);
  return id;
}

const Model* ModelTable::Find(const NamespaceDigest& name_space) const {
  const auto found = model_by_name_space_.find(name_space);
  return found == model_by_name_space_.end() ? nullptr : &models_[found->second.value];
}

BlockShape ModelTable::ShapeOf(const Entry& entry) const {
  return kvtier::ShapeOf(at(entry.model).spec, entry.first_position, entry.tokens);
}

BlockIdentity ModelTable::IdentityOf(const Entry& entry) const {
  return {.key = entry.key,
          .name_space = at(entry.model).name_space,
          .first_position = entry.first_position,
          .shape = ShapeOf(entry)};
}

}  // namespace kvtier
