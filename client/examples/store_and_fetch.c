/* The life of a prompt in C: look up, store what is missing, and fetch it back layer by layer.
 *   cc store_and_fetch.c $(pkg-config --cflags --libs kvtier)
 * Run twice against one daemon it finds its blocks the second time. */
#include <kvtier/kvtier.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 4, KV_HEADS = 2, HEAD_DIM = 64, TOKENS = 300, MAX_BLOCKS = 8 };
enum {
  HEAD_BYTES = TOKENS * HEAD_DIM * 2,
  PLANE_BYTES = KV_HEADS * HEAD_BYTES,
  LAYER_BYTES = 2 * PLANE_BYTES
};

static int Fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, kvtier_last_error());
  return 1;
}

/* FP16 memory of an engine: [layer][K, V][head][token][channel]. */
static kvtier_view ViewOf(void** base) {
  kvtier_view view;
  memset(&view, 0, sizeof(view));
  view.struct_size = sizeof(view);
  view.bases = base;
  view.n_bases = 1;
  view.layer_stride = LAYER_BYTES;
  view.v_offset = PLANE_BYTES;
  view.head_stride = HEAD_BYTES;
  view.token_stride = HEAD_DIM * 2;
  view.dtype = KVTIER_FP16;
  return view;
}

static int Store(kvtier_client* client, kvtier_model* model, const kvtier_query* query, void* kv) {
  kvtier_view view = ViewOf(&kv);
  kvtier_ticket ticket = 0;
  if (kvtier_put(model, query, &view, NULL, &ticket) != KVTIER_OK) return Fail("put");
  if (kvtier_wait(client, ticket, NULL, 0, 5000) != KVTIER_OK) return Fail("wait");
  return 0;
}

/* Decodes into `out` while the first layers could be computed with already. */
static int Fetch(kvtier_client* client, kvtier_model* model, const kvtier_query* query, void* out) {
  kvtier_block_result results[MAX_BLOCKS];
  kvtier_view view = ViewOf(&out);
  kvtier_ticket ticket = 0;
  kvtier_lease* lease = NULL;
  uint32_t layer = 0;
  int failed = 0;
  if (kvtier_acquire(model, query, NULL, &lease) != KVTIER_OK) return Fail("acquire");
  if (kvtier_fetch_async(lease, 0, kvtier_lease_count(lease), 0, 0, &view, &ticket) != KVTIER_OK)
    failed = Fail("fetch");
  for (; !failed && layer < LAYERS; ++layer) {
    if (kvtier_wait_layer(client, ticket, layer, results, MAX_BLOCKS, 5000) != KVTIER_OK)
      failed = Fail("wait for a layer");
  }
  if (ticket != 0) kvtier_wait(client, ticket, NULL, 0, 5000); /* from here on nothing writes to `out` */
  if (!failed)
    printf("%zu tokens fetched, error of K %.4f\n", kvtier_lease_tokens(lease), results[0].k_error);
  kvtier_release(lease);
  return failed;
}

static int Run(kvtier_client* client, uint16_t* kv, uint16_t* out) {
  kvtier_model_spec spec;
  kvtier_model* model = NULL;
  kvtier_block_ref refs[MAX_BLOCKS];
  kvtier_query query;
  kvtier_lookup_result found;
  int32_t tokens[TOKENS];
  size_t i = 0, blocks = 0;

  memset(&spec, 0, sizeof(spec));
  spec.struct_size = sizeof(spec);
  spec.model_id = "example-c";
  spec.layers = LAYERS;
  spec.kv_heads = KV_HEADS;
  spec.k_dim = spec.v_dim = HEAD_DIM;
  spec.dtype = KVTIER_FP16;
  spec.boost_channels = -1;
  if (kvtier_register_model(client, &spec, &model) != KVTIER_OK) return Fail("register");

  for (; i < TOKENS; ++i) tokens[i] = (int32_t)i;
  if (kvtier_keys(model, tokens, TOKENS, refs, MAX_BLOCKS, &blocks) != KVTIER_OK) return Fail("keys");
  memset(&query, 0, sizeof(query));
  query.struct_size = sizeof(query);
  query.refs = refs;
  query.count = blocks;
  query.tokens = tokens;
  query.n_tokens = TOKENS;

  if (kvtier_lookup(model, &query, NULL, &found, 0) != KVTIER_OK) return Fail("lookup");
  printf("%zu of %d tokens are there\n", found.tokens, TOKENS);
  if (found.tokens < TOKENS) {
    for (i = 0; i < LAYERS * LAYER_BYTES / 2; ++i) kv[i] = (uint16_t)(0x3800 + i % 0x400); /* 0.5 to 1 */
    if (Store(client, model, &query, kv) != 0) return 1;
  }
  return Fetch(client, model, &query, out);
}

int main(void) {
  kvtier_client* client = NULL;
  uint16_t *kv = calloc(LAYERS, LAYER_BYTES), *out = calloc(LAYERS, LAYER_BYTES);
  int failed = 1;
  if (kv == NULL || out == NULL) return 1;
  if (kvtier_open(NULL, &client) != KVTIER_OK) {
    Fail("open");
  } else {
    failed = Run(client, kv, out);
    kvtier_close(client);
  }
  free(kv);
  free(out);
  return failed;
}
