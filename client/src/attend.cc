#include "client/src/attend.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "client/src/errors.h"
#include "client/src/structs.h"
#include "kernels/simd/attend_simd.h"

namespace kvtier::client {
namespace {

/// More than any model has.
constexpr uint32_t kMaxQueryHeads = 4096;

Status Invalid(const char* what) {
  return Status(Code::kInvalidArgument, std::string("attention: ") + what);
}

/// One of the caller's arrays.
struct Array {
  const float* first;
  size_t count;
};
bool Overlap(const Array& a, const Array& b) {
  const auto begin = [](const Array& x) { return reinterpret_cast<uintptr_t>(x.first); };
  const auto end = [&](const Array& x) { return begin(x) + x.count * sizeof(float); };
  return begin(a) < end(b) && begin(b) < end(a);
}

/// Results are written while queries are still read.
Status CheckArrays(const kvtier_attention& attention, const ModelSpec& spec, size_t blocks) {
  const size_t heads = attention.query_heads;
  const Array q = {attention.q, heads * spec.k_dim};
  const Array arrays[] = {q,
                          {attention.o, heads * spec.v_dim},
                          {attention.m, heads},
                          {attention.l, heads},
                          {attention.mass, attention.mass == nullptr ? 0 : blocks}};
  for (const Array& a : arrays) {
    for (const Array& b : arrays) {
      if (&a < &b && Overlap(a, b)) return Invalid("two of q, o, m, l and mass overlap");
    }
  }
  // Infinity and NaN have the largest magnitudes, as bits: one maximum and no branch in the loop.
  uint32_t largest = 0;
  for (size_t i = 0; i < q.count; ++i)
    largest = std::max(largest, std::bit_cast<uint32_t>(q.first[i]) & 0x7fffffff);
  if (!std::isfinite(std::bit_cast<float>(largest))) return Invalid("q has a number that is not finite");
  return Status::Ok();
}

/// What the sums over blocks grow in. V stays in the form that a block's codec leaves it in, and is brought
/// into one form once, at the end.
class Sums {
 public:
  explicit Sums(const Attention& attention, uint32_t v_dim)
      : heads_(attention.query.query_heads),
        v_dim_(v_dim),
        part_(heads_, v_dim),
        rotated_(heads_, v_dim),
        plain_(attention.out) {
    std::fill_n(plain_.o, size_t{heads_} * v_dim, 0.0f);
    std::fill_n(plain_.m, heads_, -INFINITY);
    std::fill_n(plain_.l, heads_, 0.0f);
  }
  AttentionPartial part() { return part_.View(); }
  void AddPart(VForm form) {
    MergeAttentionSimd(part(), heads_, v_dim_, form == VForm::kRotated ? rotated_.View() : plain_);
  }
  void Finish() {
    for (uint32_t head = 0; head < heads_; ++head) RotateV(rotated_.View().o + size_t{head} * v_dim_, v_dim_);
    MergeAttentionSimd(rotated_.View(), heads_, v_dim_, plain_);
  }

 private:
  uint32_t heads_, v_dim_;
  OwnedPartial part_, rotated_;
  AttentionPartial plain_;
};

struct AttendedBlock {
  VForm form;
  float k_error, v_error;  ///< of the layer
};

Result<AttendedBlock> AttendBlock(Lease& lease, size_t index, const Attention& attention,
                                  const AttentionPartial& out) {
  KVTIER_ASSIGN(const LeasedImage opened, OpenBlock(lease, index));
  CheckedBlock& checked = *opened.block;
  KVTIER_ASSIGN(const VForm form,
                AttendImage(checked, attention.layer, attention.query, out, opened.guard()));
  return AttendedBlock{.form = form,
                       .k_error = checked.image().KError(attention.layer),
                       .v_error = checked.image().VError(attention.layer)};
}

/// mass[block] from log sum exp by block and head; blocks that were left out have -infinity.
void FillMass(std::span<const float> lse, const Attention& attention, std::span<float> mass) {
  const uint32_t heads = attention.query.query_heads;
  for (size_t block = 0; block < mass.size(); ++block) {
    float sum = 0;
    for (uint32_t head = 0; head < heads; ++head)
      sum +=
          AttentionMass(lse[block * heads + head], LogSumExp(attention.out.m[head], attention.out.l[head]));
    mass[block] = sum / static_cast<float>(heads);
  }
}

}  // namespace

Result<Attention> Attention::Check(const kvtier_attention* attention, uint32_t layer, const ModelSpec& spec,
                                   size_t blocks) {
  if (attention == nullptr) return Invalid("it is NULL");
  KVTIER_TRY(StructOf(attention, "attention").status());
  if (attention->q == nullptr || attention->o == nullptr || attention->m == nullptr ||
      attention->l == nullptr)
    return Invalid("q, o, m or l is NULL");
  const uint32_t heads = attention->query_heads;
  if (heads == 0 || heads % spec.kv_heads != 0 || heads > kMaxQueryHeads)
    return Invalid("query_heads is not a multiple of the model's kv_heads, or too large");
  if (!std::isfinite(attention->scale)) return Invalid("scale is not finite");
  if (layer >= spec.layers) return Invalid("layer is outside the model's");
  KVTIER_TRY(CheckArrays(*attention, spec, blocks));
  Attention checked;
  checked.query = {.q = attention->q, .query_heads = heads, .scale = attention->scale};
  checked.query.scales = ScalesOf(spec, layer);
  checked.out = {.o = attention->o, .m = attention->m, .l = attention->l};
  checked.mass = attention->mass;
  checked.layer = static_cast<uint16_t>(layer);
  return checked;
}

Result<VForm> AttendImage(CheckedBlock& block, uint16_t layer, const AttentionQuery& query,
                          const AttentionPartial& out, const SlotGuard& guard) {
  if (!guard.HoldsBefore()) return Torn();
  const ImageView& image = block.image();
  if (!block.IsVerified(layer)) {
    const Status verified = VerifyLayer(image, layer);
    if (!guard.HoldsAfter()) return Torn();
    KVTIER_TRY(verified);
    block.SetVerified(layer);
  }
  const VForm form =
      image.codec->attend(image.identity.shape, image.table[layer].planes, image.Parts(layer), query, out);
  if (!guard.HoldsAfter()) return Torn();
  return form;
}

void AttendBlocks(Lease& lease, size_t first, const Attention& attention,
                  std::span<kvtier_block_result> results) {
  const uint32_t heads = attention.query.query_heads;
  Sums sums(attention, lease.model->spec.v_dim);
  std::vector<float> lse(attention.mass != nullptr ? results.size() * heads : 0, -INFINITY);
  for (size_t i = 0; i < results.size(); ++i) {
    const Result<AttendedBlock> attended = AttendBlock(lease, first + i, attention, sums.part());
    results[i] = {};
    results[i].code = ToC(attended.status().code());
    if (!attended.ok()) {
      lease.NoteIfDamaged(first + i, attended.status());
      Fail(attended.status());
      continue;
    }
    results[i].precision = lease.blocks[first + i].info.precision;
    results[i].k_error = attended->k_error;
    results[i].v_error = attended->v_error;
    const AttentionPartial part = sums.part();
    for (uint32_t head = 0; head < heads && !lse.empty(); ++head)
      lse[i * heads + head] = LogSumExp(part.m[head], part.l[head]);
    sums.AddPart(attended->form);
  }
  sums.Finish();
  if (attention.mass != nullptr) FillMass(lse, attention, {attention.mass, results.size()});
}

}  // namespace kvtier::client
