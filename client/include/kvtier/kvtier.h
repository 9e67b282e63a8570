/* libkvtier, C ABI. A client of the kvtier daemon, for inference engines.
 *
 * Rules that hold for every call:
 *  - It ends by its deadline. A daemon that is dead, stuck or restarting makes it a miss (KVTIER_NOT_FOUND,
 *    KVTIER_UNAVAILABLE or KVTIER_DEADLINE_EXCEEDED), never a hang, and never aborts the process. After a
 * restart of the daemon the library registers its models again by itself.
 *  - Errors are codes; kvtier_last_error() has the text for the calling thread.
 *  - Any thread may call anything on one handle at the same time. After fork() the child's handles answer
 *    KVTIER_FAILED_PRECONDITION, and so does kvtier_open there until exec(): fork first, then open.
 *  - Handles are opaque; a handle used after its release or after a restart of the daemon answers
 * KVTIER_STALE.
 *  - "K and V" are as the engine stores them: post-RoPE keys. Sizes are in bytes unless the name says
 * otherwise.
 */
#ifndef KVTIER_KVTIER_H_
#define KVTIER_KVTIER_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVTIER_API __attribute__((visibility("default")))
#define KVTIER_KEY_BYTES 32
#define KVTIER_TIMEOUT_DEFAULT 0 /* the handle's default, 100 ms unless set */

typedef enum kvtier_code {
  KVTIER_OK = 0,
  KVTIER_CANCELLED = 1,
  KVTIER_INVALID_ARGUMENT = 3,
  KVTIER_DEADLINE_EXCEEDED = 4,
  KVTIER_NOT_FOUND = 5, /* a miss */
  KVTIER_PRESENT = 6,   /* put of a key that is there: its image is kept */
  KVTIER_PERMISSION_DENIED = 7,
  KVTIER_RESOURCE_EXHAUSTED = 8, /* full; shed */
  KVTIER_FAILED_PRECONDITION = 9,
  KVTIER_ABORTED = 10,
  KVTIER_OUT_OF_RANGE = 11,
  KVTIER_UNSUPPORTED = 12,
  KVTIER_INTERNAL = 13,
  KVTIER_UNAVAILABLE = 14, /* no daemon */
  KVTIER_CORRUPT = 15,
  KVTIER_UNAUTHENTICATED = 16,
  KVTIER_STALE = 100,  /* destination bytes of that block are invalid: recompute */
  KVTIER_PENDING = 101 /* being stored right now */
} kvtier_code;

typedef enum kvtier_precision {
  KVTIER_PRECISION_ANY = 0,
  KVTIER_INT2 = 1,
  KVTIER_K4V2 = 2,
  KVTIER_INT4 = 3,
  KVTIER_BITS8 = 4,
  KVTIER_BITS16 = 5
} kvtier_precision;

/* FP8 as the Open Compute Project defines it: E4M3 without infinities (largest 448), E5M2 (57344). */
typedef enum kvtier_dtype {
  KVTIER_FP16 = 1,
  KVTIER_BF16 = 2,
  KVTIER_FP8_E4M3 = 3,
  KVTIER_FP8_E5M2 = 4,
  KVTIER_FP32 = 5 /* of destinations only */
} kvtier_dtype;
typedef enum kvtier_durability { KVTIER_MEMORY = 0, KVTIER_DURABLE = 1 } kvtier_durability;

typedef struct kvtier_client kvtier_client; /* a connection */
typedef struct kvtier_model kvtier_model;   /* a registered model, owned by the connection */
typedef struct kvtier_lease kvtier_lease;   /* blocks pinned in the read pools */
typedef uint64_t kvtier_ticket;             /* a put, prefetch or fetch under way; 0 is none */

/* ---- connection */

typedef struct kvtier_options {
  uint32_t struct_size; /* sizeof(kvtier_options): later versions add fields at the end */
  const char* socket;   /* path of the daemon's socket; NULL: $KVTIER_SOCKET, else /run/kvtier/kvtierd.sock */
  const char* client_name; /* for people, at most 64 bytes; NULL: the program's name */
  uint32_t timeout_ms;     /* default deadline of every call; 0: 100 */
  uint32_t fetch_threads;  /* that do asynchronous fetches, at most 64; 0: 1 */
} kvtier_options;

/* Connects. KVTIER_UNAVAILABLE when no daemon answers within the time-out (then *out is NULL).
 * KVTIER_RESOURCE_EXHAUSTED when the process has room for fewer than 16 more descriptors. */
KVTIER_API kvtier_code kvtier_open(const kvtier_options* options, kvtier_client** out);
/* Ends the connection: leases and tickets with it. NULL is allowed. */
KVTIER_API void kvtier_close(kvtier_client* handle);
/* Text of the calling thread's last error; "" when there was none. Valid until its next call. */
KVTIER_API const char* kvtier_last_error(void);
KVTIER_API const char* kvtier_code_name(kvtier_code code);
KVTIER_API const char* kvtier_precision_name(kvtier_precision precision); /* "INT4", "BITS16"; "UNKNOWN" */
KVTIER_API const char* kvtier_version(void);

/* ---- models and keys */

typedef struct kvtier_model_spec {
  uint32_t struct_size;
  const char* model_id;      /* required */
  const char* revision;      /* of the weights; NULL is "" here and below */
  const char* lora;          /* id and version */
  const char* config_digest; /* RoPE scaling and whatever else changes K or V */
  const char* kv_scales;     /* ids of the engine's own cache scales */
  const char* layout_id;     /* the engine's name for its KV layout */
  uint32_t layer_group;
  uint32_t layers, kv_heads, k_dim, v_dim;
  kvtier_dtype dtype;
  uint32_t tokens_per_block;                                     /* 64 or 128; 0: 128 */
  uint32_t tp_rank, tp_size, pp_rank, pp_size, cp_rank, cp_size; /* sizes of 0 mean 1 */
  uint32_t first_raw_rows;                                       /* FP16 rows at position 0, 1 to 4; 0: 1 */
  int32_t boost_channels;                                        /* boosted K channels at INT2; -1: half */
  kvtier_precision floor;                                        /* lowest precision allowed */
  /* What a number in FP8 is multiplied by to give K or V, one a layer, finite and positive; NULL: 1. Of the
   * model's own cache where that is FP8, and of every FP8 destination. */
  const float *k_scales, *v_scales;
} kvtier_model_spec;

KVTIER_API kvtier_code kvtier_register_model(kvtier_client* handle, const kvtier_model_spec* spec,
                                             kvtier_model** out);
/* 32 bytes: everything besides tokens that changes K and V. The parent of block 0. */
KVTIER_API kvtier_code kvtier_model_namespace(const kvtier_model* model, uint8_t out[KVTIER_KEY_BYTES]);

/* One block of a sequence. `tokens` below tokens_per_block: the tail block. */
typedef struct kvtier_block_ref {
  uint8_t key[KVTIER_KEY_BYTES];
  uint8_t parent[KVTIER_KEY_BYTES];
  uint64_t position; /* of its first token */
  uint32_t tokens;
} kvtier_block_ref;

/* Keys of a sequence from its first token: full blocks, then a tail block for the rest. Pure hashing, no
 * daemon. *count is the number of blocks; KVTIER_OUT_OF_RANGE when it is above `capacity` (then nothing was
 * written). */
KVTIER_API kvtier_code kvtier_keys(const kvtier_model* model, const int32_t* tokens, size_t n_tokens,
                                   kvtier_block_ref* out, size_t capacity, size_t* count);
/* For engines with chained hashes of their own: the key of a full block. */
KVTIER_API kvtier_code kvtier_foreign_key(const kvtier_model* model, const void* engine_hash, size_t bytes,
                                          uint8_t out[KVTIER_KEY_BYTES]);

/* ---- reading */

/* The blocks in question. refs[0 .. count) are consecutive. With `tokens` (those of the whole sequence,
 * n_tokens of them) tail blocks take part: a tail that is a prefix of the tokens after the last matched block
 * counts as a hit. */
typedef struct kvtier_query {
  uint32_t struct_size;
  const kvtier_block_ref* refs;
  size_t count;
  const int32_t* tokens;
  size_t n_tokens;
  int before_last_token; /* not 0: the last token of the sequence must stay for the engine to compute */
} kvtier_query;

typedef struct kvtier_match {
  kvtier_precision precision;
  uint32_t tier; /* 0 is the highest */
} kvtier_match;

typedef struct kvtier_lookup_result {
  size_t blocks;        /* unbroken run of full blocks */
  uint32_t tail_tokens; /* of a matching tail block after it, 0: none */
  size_t tokens;        /* all that hits */
} kvtier_lookup_result;

/* Never pins, never moves. No hit is KVTIER_OK with zeros. `matches` may be NULL, else has room for
 * query->count. */
KVTIER_API kvtier_code kvtier_lookup(kvtier_model* model, const kvtier_query* query, kvtier_match* matches,
                                     kvtier_lookup_result* result, uint32_t timeout_ms);

typedef struct kvtier_acquire_options {
  uint32_t struct_size;
  kvtier_precision min_precision;
  uint32_t ttl_ms; /* 0: the daemon's default, 10 s */
  uint32_t timeout_ms;
  /* What must be read from a cold tier comes at the best precision whose image has at most so many bytes;
   * where none is so small, at min_precision or the lowest there is. 0: the best there is. A time-out of a
   * few milliseconds does the same. */
  uint64_t max_block_bytes;
} kvtier_acquire_options;

typedef struct kvtier_block_info {
  uint8_t key[KVTIER_KEY_BYTES];
  uint64_t position;
  uint32_t tokens;
  kvtier_precision precision;
  uint32_t served_from;   /* tier that held it when it was asked for */
  uint64_t image_bytes;   /* encoded, with header and table */
  float k_error, v_error; /* relative rms over all layers, measured when it was encoded */
} kvtier_block_info;

/* Matches and pins in one step, promoting what no host tier holds. A run shorter than asked is KVTIER_OK: see
 * kvtier_lease_count. KVTIER_NOT_FOUND when nothing hits (then *out is NULL). */
KVTIER_API kvtier_code kvtier_acquire(kvtier_model* model, const kvtier_query* query,
                                      const kvtier_acquire_options* options, kvtier_lease** out);
/* Blocks held: full blocks, then at most one tail block. */
KVTIER_API size_t kvtier_lease_count(const kvtier_lease* lease);
/* Tokens held by those blocks. */
KVTIER_API size_t kvtier_lease_tokens(const kvtier_lease* lease);
KVTIER_API kvtier_code kvtier_lease_block(const kvtier_lease* lease, size_t index, kvtier_block_info* out);

/* K and V inside the caller's memory. Element (layer, K or V, head, token, channel) is at
 *   base(layer) + (V ? v_offset : 0) + row(token) + head * head_stride + channel * channel_stride
 * all strides in bytes. base(layer) = bases[layer] when n_bases is the number of layers, else bases[0] +
 * layer * layer_stride. Where V is memory of its own, v_bases has its bases, n_bases of them, and v_offset is
 * 0. Without a page table row(token) = token * token_stride; with one row(token) =
 * page_table[token / page_tokens] * page_stride + (token % page_tokens) * token_stride. `token` counts from
 * the first token of the first block of the call.
 * Strides that reach further than any memory, and those of a destination that put elements over one another,
 * are KVTIER_INVALID_ARGUMENT.
 * A destination may have any dtype: values are rounded to nearest even; FP8 has value / scale of the model's
 * layer and ends at its largest number. With KVTIER_VIEW_ROTATED_V every full group of 64 channels of V is
 * left as H64 v / 8, with the Sylvester matrix H64, for engines that apply H64 / 8 to each head's attention
 * output instead: cheaper for blocks below BITS8, which are stored so, and dearer for others; a last group of
 * fewer channels is plain. */
#define KVTIER_VIEW_ROTATED_V 1 /* a bit of kvtier_view.flags; destinations only */
typedef struct kvtier_view {
  uint32_t struct_size;
  void* const* bases;
  size_t n_bases; /* 1 or the number of layers */
  int64_t layer_stride;
  int64_t v_offset;
  int64_t head_stride, token_stride, channel_stride; /* channel_stride 0: packed */
  const int32_t* page_table;
  size_t n_pages;
  uint32_t page_tokens;
  int64_t page_stride;
  kvtier_dtype dtype; /* of a source: the model's */
  uint64_t flags;
  void* const* v_bases; /* or NULL */
} kvtier_view;

typedef struct kvtier_block_result {
  kvtier_code code; /* KVTIER_OK, or why the destination bytes of this block are invalid */
  kvtier_precision precision;
  float k_error, v_error; /* relative rms over the layers fetched */
} kvtier_block_result;

/* Decodes blocks [first, first + count) of the lease, layers [first_layer, first_layer + layers) (layers 0:
 * all), into the view. `results` has room for count; a range outside the lease is KVTIER_INVALID_ARGUMENT and
 * leaves it as it was. KVTIER_OK when every block is; else the code of the
 * first that is not. */
KVTIER_API kvtier_code kvtier_fetch(kvtier_lease* lease, size_t first, size_t count, uint32_t first_layer,
                                    uint32_t layers, const kvtier_view* destination,
                                    kvtier_block_result* results);
/* The same by the library's own threads, layer by layer: the first layer of all blocks, then the second, so
 * that an engine computes with the first layers while later ones are decoded. The arrays that the view points
 * to are copied; the destination must stay until the ticket has ended, was cancelled, or the handle is
 * closed. KVTIER_RESOURCE_EXHAUSTED: too many under way. */
KVTIER_API kvtier_code kvtier_fetch_async(kvtier_lease* lease, size_t first, size_t count,
                                          uint32_t first_layer, uint32_t layers,
                                          const kvtier_view* destination, kvtier_ticket* ticket);
/* Until `layer` (of the model) and those before it are decoded; the caller decodes what no thread has begun
 * to. results[i] is of block first + i of the lease
 * and as of that layer; it has room for the fetch's count. Answers as kvtier_fetch; any number of times until
 * kvtier_wait has ended the ticket. */
KVTIER_API kvtier_code kvtier_wait_layer(kvtier_client* handle, kvtier_ticket ticket, uint32_t layer,
                                         kvtier_block_result* results, size_t capacity, uint32_t timeout_ms);

/* One decode step of one layer. All arrays are the caller's, fp32; none may overlap another. */
typedef struct kvtier_attention {
  uint32_t struct_size;
  const float* q;       /* [query_heads][k_dim], after RoPE, finite */
  uint32_t query_heads; /* a multiple of kv_heads; head h reads KV head h / (query_heads / kv_heads) */
  float scale;          /* what q . k is multiplied by, usually 1 / sqrt(k_dim) */
  float* o;             /* [query_heads][v_dim] */
  float* m;             /* [query_heads] */
  float* l;             /* [query_heads] */
  float* mass; /* [count], or NULL: share of the attention over these blocks, mean over query heads */
} kvtier_attention;

/* Attention over blocks [first, first + count) of the lease in one layer, on the bytes as they are stored,
 * whatever precision each block has. With x_t = scale * q . k_t for the tokens of the blocks, by query head:
 *  - m = max x_t
 *  - l = sum exp(x_t - m)
 *  - o = sum exp(x_t - m) * v_t
 * A score that is not a number, or is +infinity (K as stored can have both), makes l NaN and with it the
 * attention of that query head, here and in every merge; m leaves NaN out.
 * Nothing is masked: the queries come after the blocks. For tokens that are in no block (its own new ones)
 * the engine makes the same three numbers and merges; the attention is o / l:
 *  - M = max(m, m')
 *  - l exp(m - M) + l' exp(m' - M), and o likewise
 * Blocks below BITS8 are read with q and the weights of V rounded to 8 bits where the CPU has vectors
 * (codecs/FORMAT.md, "Attention"). Checksums are verified when a lease first reads a (block, layer).
 * `results` has room for count. A block that is not KVTIER_OK is left out of the sums and has mass 0; without
 * any block m = -infinity, l = 0, o = 0. KVTIER_OK when every block is; else the code of the first that is
 * not. A range outside the lease is KVTIER_INVALID_ARGUMENT and leaves everything as it was. */
KVTIER_API kvtier_code kvtier_attend(kvtier_lease* lease, size_t first, size_t count, uint32_t layer,
                                     const kvtier_attention* attention, kvtier_block_result* results);
/* Frees the lease in every case, also when the answer is an error. KVTIER_STALE: it had expired. NULL is
 * KVTIER_STALE. After KVTIER_DEADLINE_EXCEEDED the release goes on in the background. */
KVTIER_API kvtier_code kvtier_release(kvtier_lease* lease);

/* ---- writing */

typedef struct kvtier_put_options {
  uint32_t struct_size;
  kvtier_durability durability;
  kvtier_precision floor;
  uint32_t priority; /* 0 to 255, higher stays longer */
  uint32_t ttl_ms;   /* 0: none */
  uint32_t timeout_ms;
} kvtier_put_options;

typedef struct kvtier_put_result {
  kvtier_code code; /* KVTIER_OK stored, KVTIER_PRESENT, else refused or dropped */
  kvtier_precision precision;
  uint32_t tier;
} kvtier_put_result;

/* Copies the blocks out of the view; when it returns the source may be overwritten. The run of blocks at the
 * front that is present is not read; a durable put reads all, so that the daemon can make them durable. With
 * query->tokens, tail blocks that a stored block covers are dropped. A parent keeps at most 4 tail blocks,
 * the newest ones: a fifth takes the place of the oldest. The parent of a sequence shorter than a block is
 * the root (the namespace), so that all such sequences of a model share the root's four. The outcome of each
 * block comes with kvtier_wait; a ticket that is not waited for costs nothing. KVTIER_DEADLINE_EXCEEDED and
 * KVTIER_RESOURCE_EXHAUSTED: some blocks were not taken; those before them were, and *ticket is theirs. */
KVTIER_API kvtier_code kvtier_put(kvtier_model* model, const kvtier_query* blocks, const kvtier_view* source,
                                  const kvtier_put_options* options, kvtier_ticket* ticket);
/* Until the ticket has ended:
 *  - a put when every block stands at its durability, was refused or dropped. `results` may be NULL, else has
 *    room for the put's count. KVTIER_OK when each block is stored or present; else the code of the first
 *    that is not.
 *  - a prefetch when the moves that it started have ended; what could not be moved is no error.
 *  - a fetch when all its layers are done, or it was cancelled; KVTIER_OK when every block is, else the code
 *    of the first that is not. Nothing writes to its destination any more.
 * Once it has answered for them a ticket is KVTIER_STALE; after KVTIER_DEADLINE_EXCEEDED, and after
 * KVTIER_OUT_OF_RANGE where `capacity` is too small, it can be waited for again. The end of the session makes
 * tickets of puts and prefetches KVTIER_STALE. */
KVTIER_API kvtier_code kvtier_wait(kvtier_client* handle, kvtier_ticket ticket, kvtier_put_result* results,
                                   size_t capacity, uint32_t timeout_ms);

/* Starts moving blocks up to `tier`; *started counts the moves. */
KVTIER_API kvtier_code kvtier_prefetch(kvtier_model* model, const kvtier_query* query, uint32_t tier,
                                       uint32_t timeout_ms, kvtier_ticket* ticket, uint32_t* started);
/* Ends early what is not done: moves of a prefetch and of a put that nobody else waits for, and a fetch,
 * whose destination nothing writes to any more when this returns (its undone blocks are KVTIER_CANCELLED).
 * The ticket stays to be waited for. */
KVTIER_API kvtier_code kvtier_cancel(kvtier_client* handle, kvtier_ticket ticket);

/* For engines that must not block: an eventfd that is readable while kvtier_completed has something to tell.
 * It is the handle's; do not read or close it. Tickets that ended before the first call are not told. */
KVTIER_API kvtier_code kvtier_completion_fd(kvtier_client* handle, int* fd);
/* Takes up to `capacity` tickets that have ended, each once, oldest first; kvtier_wait answers for them
 * without waiting. Those that were waited for already are left out; of more than 4096 the oldest are. */
KVTIER_API kvtier_code kvtier_completed(kvtier_client* handle, kvtier_ticket* tickets, size_t capacity,
                                        size_t* count);
/* Forgets blocks; those under a lease go when it ends. `removed` may be NULL. After KVTIER_OK they are gone
 * for good, whatever happens to the daemon. KVTIER_ABORTED and KVTIER_DEADLINE_EXCEEDED: they are gone, but a
 * daemon that is killed now may find some again on its disk. */
KVTIER_API kvtier_code kvtier_remove(kvtier_model* model, const kvtier_query* query, uint64_t* removed,
                                     uint32_t timeout_ms);
/* Forgets every block of the model. */
KVTIER_API kvtier_code kvtier_clear(kvtier_model* model, uint64_t* removed, uint32_t timeout_ms);

/* ---- looking */

typedef struct kvtier_tier_stats {
  char name[16], medium[16], codec[16];
  uint64_t capacity_bytes, used_bytes;
  uint64_t blocks[6]; /* by kvtier_precision */
  int accepts_writes;
} kvtier_tier_stats;

typedef struct kvtier_stats {
  uint32_t struct_size;
  uint32_t tiers;
  kvtier_tier_stats tier[4];
  uint64_t blocks, leases, sessions, models;
  uint64_t boot_id[2]; /* another one after every start of the daemon */
} kvtier_stats;

KVTIER_API kvtier_code kvtier_get_stats(kvtier_client* handle, kvtier_stats* out, uint32_t timeout_ms);

#ifdef __cplusplus
}
#endif

#endif /* KVTIER_KVTIER_H_ */
