#pragma once

#include <cstring>
#include <string>
#include <string_view>

#include "daemon/policy/model_spec.h"
#include "kvtier/kvtier.h"
#include "proto/kvtier.pb.h"
#include "tiers/base/status.h"

namespace kvtier::client {

/// Errors: those of ValidateModelSpec, so that nothing is sent that the daemon must refuse. Its own limits
/// come on top.
Result<v1::ModelSpec> SpecToWire(const kvtier_model_spec& spec);
/// Errors: kInternal when the daemon's answer cannot be.
Result<ModelSpec> SpecFromWire(const v1::ModelSpec& wire);

template <typename DigestType>
Result<DigestType> DigestFromWire(std::string_view bytes) {
  DigestType digest;
  if (bytes.size() != digest.bytes.size())
    return Status(Code::kInternal, "the daemon sent a digest of another size");
  std::memcpy(digest.bytes.data(), bytes.data(), bytes.size());
  return digest;
}

}  // namespace kvtier::client
