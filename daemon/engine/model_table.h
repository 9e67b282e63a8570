#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/engine/entry.h"
#include "daemon/policy/model_spec.h"
#include "tiers/image.h"

namespace kvtier {

inline constexpr size_t kCodecIds = 7;  ///< values of CodecId

/// Of a model's record on one cold tier.
enum class Persisted : uint8_t {
  kNo,
  kOrdered,
  kYes,
  kRefused,  ///< the tier keeps as many models as it may
};

struct Model {
  ModelId id;
  TenantId tenant;
  NamespaceDigest name_space;
  ModelSpec spec;
  std::shared_ptr<const std::vector<Fp8Scales>> scales;  ///< of `spec`, by layer; null: 1
  std::array<Persisted, kMaxTiers> persisted{};
  uint64_t blocks = 0;  ///< stored
  uint64_t image_bytes = 0;
  /// By codec id: the slot of a sealed block (its size at position 0, the larger one), 0 where the codec
  /// cannot.
  std::array<uint64_t, kCodecIds> sealed_slot_bytes{};
};

/// Tenants and models by daemon-local numbers. Both only grow, up to a bound: numbers stay valid for a boot.
/// Threads: single-owner.
class ModelTable {
 public:
  static constexpr size_t kMaxTenants = 65536;
  static constexpr size_t kMaxModels = 65536;

  /// Errors: kResourceExhausted.
  Result<TenantId> Tenant(const std::string& name);
  const std::string& TenantName(TenantId id) const { return tenants_[id.value]; }

  /// The model of `spec` for a tenant, made when it is new. Errors: kResourceExhausted, what
  /// ValidateModelSpec says.
  Result<ModelId> Register(TenantId tenant, const ModelSpec& spec);
  /// Null when unknown.
  const Model* Find(const NamespaceDigest& name_space) const;

  Model& at(ModelId id) { return models_[id.value]; }
  const Model& at(ModelId id) const { return models_[id.value]; }
  bool Known(ModelId id) const { return id.value < models_.size(); }
  const std::vector<Model>& models() const { return models_; }
  BlockIdentity IdentityOf(const Entry& entry) const;
  BlockShape ShapeOf(const Entry& entry) const;

 private:
  std::vector<std::string> tenants_;
  std::unordered_map<std::string, TenantId> tenant_by_name_;
  std::vector<Model> models_;
  std::unordered_map<NamespaceDigest, ModelId> model_by_name_space_;
};

}  // namespace kvtier
