#include "tests/e2e/e2e.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include "kernels/numerics.h"

namespace kvtier::e2e {

kvtier_model_spec TestSpec(const char* model_id) {
  kvtier_model_spec spec = api::ModelSpec();
  spec.model_id = model_id;
  spec.layers = kLayers;
  spec.kv_heads = kHeads;
  spec.k_dim = kDim;
  spec.v_dim = kDim;
  spec.tokens_per_block = kBlockTokens;
  return spec;
}

std::vector<int32_t> Tokens(uint32_t seed, size_t count) {
  std::mt19937 rng(seed);
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng() % 150'000);
  return tokens;
}

Kv Kv::Random(uint32_t seed, size_t tokens) {
  Kv kv(tokens);
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  for (uint16_t& value : kv.values_) value = Fp16FromFp32(normal(rng));
  return kv;
}

kvtier_view Kv::View(size_t first) {
  base_ = values_.data() + first * kDim;
  kvtier_view view = api::ContiguousView(&base_, 1);
  view.token_stride = kDim * 2;
  view.head_stride = static_cast<int64_t>(tokens_ * kDim * 2);
  view.v_offset = kHeads * view.head_stride;
  view.layer_stride = 2 * view.v_offset;
  return view;
}

template <typename Visit>
void Kv::ForEach(size_t first, size_t count, const Visit& visit) const {
  for (size_t plane = 0; plane < size_t{kLayers} * 2 * kHeads; ++plane) {
    const size_t start = (plane * tokens_ + first) * kDim;
    for (size_t i = start; i < start + count * kDim; ++i) visit(i);
  }
}

double Kv::ErrorOver(const Kv& other, size_t first, size_t count) const {
  double squares = 0, differences = 0;
  ForEach(first, count, [&](size_t i) {
    const double x = Fp32FromFp16(values_[i]), y = Fp32FromFp16(other.values_[i]);
    squares += x * x;
    differences += (x - y) * (x - y);
  });
  return std::sqrt(differences / squares);
}

bool Kv::SameOver(const Kv& other, size_t first, size_t count) const {
  bool same = true;
  ForEach(first, count, [&](size_t i) { same = same && values_[i] == other.values_[i]; });
  return same;
}

api::Outcome<Engine> Engine::Connect(const std::string& socket, const kvtier_model_spec& spec,
                                     uint32_t timeout_ms) {
  kvtier_options options{};
  options.struct_size = sizeof(options);
  options.socket = socket.c_str();
  options.timeout_ms = timeout_ms;
  auto client = api::Client::Open(options);
  if (!client) return client.code();
  auto model = client->RegisterModel(spec);
  if (!model) return model.code();
  return Engine{.client = std::move(*client), .model = *model};
}

api::Sequence Engine::Keys(std::vector<int32_t> tokens) const {
  auto sequence = model.Keys(std::move(tokens));
  KVTIER_CHECK(static_cast<bool>(sequence));
  return std::move(*sequence);
}

std::vector<kvtier_put_result> Engine::Put(const api::Sequence& sequence, Kv& kv,
                                           kvtier_durability durability) const {
  kvtier_put_options options = api::PutOptions();
  options.durability = durability;
  const auto ticket = model.Put(sequence.Query(), kv.View(), options);
  std::vector<kvtier_put_result> results(sequence.blocks());
  if (!ticket) {
    for (auto& result : results) result.code = ticket.code();
    return results;
  }
  const kvtier_code code = client.Wait(*ticket, results);
  if (code == KVTIER_STALE || code == KVTIER_DEADLINE_EXCEEDED) {
    for (auto& result : results) result.code = code;
  }
  return results;
}

size_t Engine::Hits(const api::Sequence& sequence) const {
  const auto found = model.Lookup(sequence.Query());
  return found ? found->blocks + (found->tail_tokens > 0 ? 1 : 0) : 0;
}

std::vector<kvtier_block_result> Engine::Fetch(const api::Sequence& sequence, Kv& out) const {
  auto lease = model.Acquire(sequence.Query());
  if (!lease) return {};
  std::vector<kvtier_block_result> results(lease->count());
  (void)lease->Fetch(0, out.View(), results);
  return results;
}

kvtier_stats Engine::Stats() const {
  const auto stats = client.Stats();
  KVTIER_CHECK(static_cast<bool>(stats));
  return *stats;
}

ProgramResult Ctl(const DaemonProcess& daemon, const std::string& arguments) {
  return RunProgram("kvtierctl", "--socket " + daemon.socket() + " " + arguments);
}

std::vector<std::string> KvtierResources(pid_t pid) {
  std::vector<std::string> names;
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:kvtier") != std::string::npos) names.push_back(line.substr(line.find(' ')));
  }
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    std::error_code ignored;
    const std::string target = std::filesystem::read_symlink(entry.path(), ignored);
    if (target.find("memfd:kvtier") != std::string::npos) names.push_back(target);
  }
  return names;
}

}  // namespace kvtier::e2e
