#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/host_device.h"
#include "kernels/layout.h"
#include "kernels/quantize_errors.h"

// What one launch over many layers of many blocks reads and writes. All pointers are to memory that the lanes
// can reach (on a GPU: device memory, or host memory that is mapped there), the arrays of items too. Items
// may differ in shape. kernels/cuda/launch.h launches, kernels/batch_*.h has the bodies.

namespace kvtier {

/// Lanes of a GPU's team that runs a body of a batch. Any team will do.
inline constexpr uint32_t kBatchLanes = 128;

/// How the bytes of one layer are laid out (codecs/FORMAT.md).
enum class LayerCoding : uint8_t {
  kRaw,     ///< as the engine stored it: raw16, raw8, and layers that could not be encoded
  kKv8,     ///< kv8
  kPlanes,  ///< kv4p, kv42, kv2p: which parts there are says which
};

/// Sets of codings, so that a launch can be left out for what a batch does not have.
constexpr uint32_t CodingBit(LayerCoding coding) {
  return uint32_t{1} << static_cast<uint32_t>(coding);
}
inline constexpr uint32_t kAllCodings = 7;

/// One layer of one block in its encoded form: the parts of an image, wherever each of them lies. Byte is
/// uint8_t, const or not. Each part begins at a multiple of 16 bytes and has the bytes that PartBytes says,
/// padding included; only kPlanes has more than a base.
template <typename Byte>
struct CodedLayer {
  BlockShape shape;  ///< as the image states it; its number of layers means nothing here
  LayerCoding coding = LayerCoding::kPlanes;
  Fp8Scales scales = {};  ///< kRaw with FP8 elements only
  Byte* base = nullptr;
  Byte* boost = nullptr;   ///< null: none, as where a K tail is, or where shape.nb is 0
  Byte* k_tail = nullptr;  ///< null: none
  Byte* v_tail = nullptr;  ///< null: none
};

/// What encoding found in one head of one layer. Sums over its tokens, raw rows included; kv8 has its one
/// error in `int4`.
struct EncodedHead {
  RowErrors k, v;
  /// 0: an element is NaN, infinite or beyond fp16. The layer cannot be encoded faithfully: what was written
  /// into its parts means nothing, and it is to be stored raw (a launch with LayerCoding::kRaw).
  uint32_t fits = 0;
  uint32_t inexact = 0;  ///< between the kernels of a launch: sums that are to be made again
};

/// Sums over the heads of a layer, in order.
inline EncodedHead SumHeads(const EncodedHead* heads, uint32_t count) {
  EncodedHead sum;
  sum.fits = 1;
  const auto add = [](RowErrors& into, const RowErrors& from) {
    into.square += from.square;
    into.int4 += from.int4;
    into.int2 += from.int2;
  };
  for (uint32_t head = 0; head < count; ++head) {
    add(sum.k, heads[head].k);
    add(sum.v, heads[head].v);
    sum.fits &= heads[head].fits;
  }
  return sum;
}

/// A layer in an engine's memory, and where it goes.
struct EncodeItem {
  KvLayerView source;  ///< dtype is that of target.shape
  CodedLayer<uint8_t> target;
};
/// Gathers and encodes in one pass; kRaw gathers alone.
struct EncodeBatchArgs {
  const EncodeItem* items = nullptr;  ///< [count]
  uint32_t count = 0;
  uint32_t heads_max = 0;          ///< kv_heads of an item, at most
  EncodedHead* heads = nullptr;    ///< [count][heads_max], those of an item's kv_heads are written
  uint32_t codings = kAllCodings;  ///< of the targets: at least those that there are
};

struct RequantizeItem {
  CodedLayer<const uint8_t> source;  ///< kRaw or kKv8
  CodedLayer<uint8_t> target;        ///< kPlanes or kKv8, of the same shape but for nraw and nb
};
/// Encodes what is already in raw or kv8 form. A kv8 source is read as the fp16 that its decoder gives, and
/// the errors are relative to that.
struct RequantizeBatchArgs {
  const RequantizeItem* items = nullptr;  ///< [count]
  uint32_t count = 0;
  uint32_t heads_max = 0;
  EncodedHead* heads = nullptr;    ///< [count][heads_max]
  uint32_t codings = kAllCodings;  ///< of the targets, as above
};

/// One step down the plane family, both sides kPlanes of one shape. The parts that the target has are copied,
/// its boost is gathered from the source's K tail where the source has none.
struct CutItem {
  CodedLayer<const uint8_t> source;
  CodedLayer<uint8_t> target;
};
struct CutBatchArgs {
  const CutItem* items = nullptr;  ///< [count]
  uint32_t count = 0;
  uint32_t heads_max = 0;
};

struct DecodeItem {
  CodedLayer<const uint8_t> source;
  KvLayerView target;
};
/// Decodes and scatters. Memory-safe on arbitrary bytes in the parts.
struct DecodeBatchArgs {
  const DecodeItem* items = nullptr;  ///< [count]
  uint32_t count = 0;
  uint32_t heads_max = 0;
  uint32_t codings = kAllCodings;  ///< of the sources: at least those that there are
};

/// Layers [first_item, first_item + items) of the batch, all of one coding, that one query attends to and one
/// block of lanes takes per KV head.
struct AttendSplit {
  uint32_t first_item = 0;
  uint32_t items = 0;
  uint32_t query = 0;
  LayerCoding coding = LayerCoding::kPlanes;
};
/// Decode attention over encoded layers (codecs/FORMAT.md, "Attention"), the part of every split. All layers
/// have the same kv_heads, k_dim and v_dim; a query may have blocks of several precisions.
struct AttendBatchArgs {
  const CodedLayer<const uint8_t>* items = nullptr;
  const AttendSplit* splits = nullptr;  ///< [split_count]
  uint32_t split_count = 0;
  uint32_t kv_heads = 0;
  uint32_t k_dim = 0;
  uint32_t v_dim = 0;
  uint32_t query_heads = 0;  ///< a multiple of kv_heads
  float scale = 1;           ///< of the dot products
  const float* q = nullptr;  ///< [queries][query_heads][k_dim]
  /// Per split, as AttentionPartial; o is rotated where the split is kPlanes.
  float* o = nullptr;    ///< [split_count][query_heads][v_dim]
  float* m = nullptr;    ///< [split_count][query_heads]
  float* l = nullptr;    ///< [split_count][query_heads]
  float* lse = nullptr;  ///< [items][query_heads]: log-sum-exp of every layer by itself. Null: not wanted
  uint32_t codings = kAllCodings;  ///< of the splits: at least those that there are
};

/// The splits of each query into one result, in plain form, and the attention mass of every layer.
struct CombineBatchArgs {
  const AttendSplit* splits = nullptr;  ///< as of the attention, those of a query side by side
  /// Splits [first_split[q], first_split[q + 1]) are those of query q.
  const uint32_t* first_split = nullptr;  ///< [queries + 1]
  uint32_t queries = 0;
  uint32_t query_heads = 0;
  uint32_t v_dim = 0;
  const float* part_o = nullptr;  ///< what the attention gave
  const float* part_m = nullptr;
  const float* part_l = nullptr;
  const float* part_lse = nullptr;  ///< null where no mass is wanted
  float* o = nullptr;               ///< [queries][query_heads][v_dim], not divided by l
  float* m = nullptr;               ///< [queries][query_heads]
  float* l = nullptr;               ///< [queries][query_heads]
  float* mass = nullptr;  ///< [items][query_heads], of 1 in all of a query's layers; null with part_lse
};

}  // namespace kvtier
