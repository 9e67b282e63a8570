#include <kvtier/kvtier.hpp>

#include <cstdio>
#include <numeric>
#include <vector>

int main() {
  auto client = kvtier::api::Client::Open();  // $KVTIER_SOCKET, else /run/kvtier/kvtierd.sock
  if (!client) return std::fprintf(stderr, "%s\n", kvtier_last_error()), 1;

  kvtier_model_spec spec = kvtier::api::ModelSpec();
  spec.model_id = "example";
  spec.layers = 4, spec.kv_heads = 2, spec.k_dim = 64, spec.v_dim = 64;
  auto model = client->RegisterModel(spec);
  if (!model) return std::fprintf(stderr, "%s\n", kvtier_last_error()), 1;

  std::vector<int32_t> tokens(256);  // two blocks of 128
  std::iota(tokens.begin(), tokens.end(), 0);
  auto sequence = model->Keys(tokens);
  if (!sequence) return 1;

  // K and V as [layer][K, V][head][token][channel], fp16.
  std::vector<uint16_t> kv(4 * 2 * 2 * 256 * 64, 0x3c00), back(kv.size());
  void* base = kv.data();
  kvtier_view view = kvtier::api::ContiguousView(&base, 1);
  view.layer_stride = 2 * 2 * 256 * 64 * 2, view.v_offset = 2 * 256 * 64 * 2;
  view.head_stride = 256 * 64 * 2, view.token_stride = 64 * 2;

  auto ticket = model->Put(sequence->Query(), view);
  if (!ticket || client->Wait(*ticket, {}, 1000) != KVTIER_OK) return 1;

  auto lease = model->Acquire(sequence->Query());  // a code instead of a lease is a miss: compute, then put
  if (!lease) return std::fprintf(stderr, "%s\n", kvtier_last_error()), 1;
  std::vector<kvtier_block_result> results(lease->count());
  base = back.data();
  if (lease->Fetch(0, view, results) != KVTIER_OK) return 1;
  for (const auto& block : results)
    std::printf("precision %d, error of K %.4f\n", block.precision, block.k_error);
  return back == kv ? 0 : 1;
}
