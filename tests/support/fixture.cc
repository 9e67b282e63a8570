#include "tests/support/fixture.h"

#include <cerrno>
#include <cstring>
#include <fstream>

namespace kvtier {
namespace {

Result<std::vector<uint16_t>> ReadHalves(const std::string& path) {
  KVTIER_ASSIGN(const std::vector<std::byte> bytes, ReadFileBytes(path));
  std::vector<uint16_t> halves(bytes.size() / 2);
  memcpy(halves.data(), bytes.data(), halves.size() * 2);
  return halves;
}

}  // namespace

Result<std::vector<std::byte>> ReadFileBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return StatusFromErrno(errno, path);
  std::vector<std::byte> bytes(static_cast<size_t>(file.tellg()));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!file) return Status(Code::kUnavailable, path + ": short read");
  return bytes;
}

Result<Fixture> Fixture::Load(const std::string& path_prefix) {
  Fixture fixture;
  KVTIER_ASSIGN(fixture.kv_, ReadHalves(path_prefix + ".kv.f16"));
  KVTIER_ASSIGN(fixture.q_, ReadHalves(path_prefix + ".q.f16"));
  constexpr size_t kKvHead = size_t{kLayers} * 2 * kTokens * kDim;
  constexpr size_t kQueryHead = size_t{kLayers} * kQueryTokens * kDim;
  fixture.kv_heads_ = static_cast<uint32_t>(fixture.kv_.size() / kKvHead);
  fixture.query_heads_ = static_cast<uint32_t>(fixture.q_.size() / kQueryHead);
  if (fixture.kv_heads_ == 0 || fixture.kv_.size() % kKvHead != 0 || fixture.q_.size() % kQueryHead != 0 ||
      fixture.query_heads_ % fixture.kv_heads_ != 0)
    return Status(Code::kDataLoss, path_prefix + ": sizes are not those of a fixture");

  std::ifstream token_file(path_prefix + ".tokens.txt");
  for (uint32_t id = 0; token_file >> id;) fixture.token_ids_.push_back(id);
  if (fixture.token_ids_.size() != kTokens)
    return Status(Code::kDataLoss, path_prefix + ": wrong token count");
  return fixture;
}

const uint16_t* Fixture::Plane(uint32_t layer, uint32_t k_or_v) const {
  return kv_.data() + (size_t{layer} * 2 + k_or_v) * kv_heads_ * kTokens * kDim;
}

const uint16_t* Fixture::Q(uint32_t layer) const {
  return q_.data() + size_t{layer} * query_heads_ * kQueryTokens * kDim;
}

BlockShape Fixture::Shape(uint16_t tokens, uint8_t nraw, uint8_t nb) const {
  return {.layers = kLayers,
          .kv_heads = static_cast<uint16_t>(kv_heads_),
          .k_dim = kDim,
          .v_dim = kDim,
          .tokens = tokens,
          .dtype = DType::kFp16,
          .nraw = nraw,
          .nb = nb};
}

std::vector<std::byte> Fixture::RawBlock(uint32_t first_token, uint32_t tokens) const {
  KVTIER_CHECK(uint64_t{first_token} + tokens <= kTokens);
  const size_t head_bytes = size_t{tokens} * kDim * 2;
  std::vector<std::byte> block(size_t{kLayers} * 2 * kv_heads_ * head_bytes);
  std::byte* target = block.data();
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    for (const uint16_t* plane : {K(layer), V(layer)}) {
      for (uint32_t head = 0; head < kv_heads_; ++head, target += head_bytes)
        memcpy(target, plane + (size_t{head} * kTokens + first_token) * kDim, head_bytes);
    }
  }
  return block;
}

}  // namespace kvtier
