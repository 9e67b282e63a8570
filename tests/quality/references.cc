#include <algorithm>
#include <cmath>
#include <cstddef>

#include "kernels/numerics.h"
#include "tests/quality/cache.h"

namespace kvtier::quality {
namespace {

float Half(float value) {
  return Fp32FromFp16(Fp16FromFp32(value));
}

/// `count` numbers, `stride` apart.
struct Run {
  float* at;
  size_t count, stride = 1;

  float& operator[](size_t i) const { return at[i * stride]; }
};

/// Replaces a run by what it decodes to; returns its bits with metadata.
using QuantizeRun = double (*)(const Run& run);

/// Asymmetric with FP16 scale and zero point: KIVI (arXiv:2402.02750, section 3) and per-token INT4.
template <int kBits>
double Asymmetric(const Run& run) {
  float low = run[0], high = run[0];
  for (size_t i = 1; i < run.count; ++i) {
    low = std::min(low, run[i]);
    high = std::max(high, run[i]);
  }
  constexpr float kSteps = (1 << kBits) - 1;
  const float zero = Half(low), scale = Half((high - low) / kSteps);
  for (size_t i = 0; i < run.count; ++i) {
    const float code = scale > 0 ? std::clamp(std::nearbyint((run[i] - zero) / scale), 0.0f, kSteps) : 0;
    run[i] = Half(code * scale + zero);
  }
  constexpr double kMetadataBits = 32;
  return kBits * static_cast<double>(run.count) + kMetadataBits;
}

/// q8_0 of llama.cpp: 32 numbers, d = largest magnitude / 127 kept in FP16, codes rounded half away from
/// zero.
double Q8_0(const Run& run) {
  float largest = 0;
  for (size_t i = 0; i < run.count; ++i) largest = std::max(largest, std::fabs(run[i]));
  const float d = largest / 127, inverse = d > 0 ? 1 / d : 0;
  for (size_t i = 0; i < run.count; ++i) run[i] = std::round(run[i] * inverse) * Half(d);
  return 8.0 * static_cast<double>(run.count) + 16;
}

/// q4_0 of llama.cpp: 32 numbers, d = the number of largest magnitude / -8 kept in FP16, codes x / d + 8.5
/// cut off.
double Q4_0(const Run& run) {
  float extreme = 0;
  for (size_t i = 0; i < run.count; ++i)
    if (std::fabs(run[i]) > std::fabs(extreme)) extreme = run[i];
  const float d = extreme / -8, inverse = d != 0 ? 1 / d : 0;
  for (size_t i = 0; i < run.count; ++i) {
    const int code = std::min(15, static_cast<int>(run[i] * inverse + 8.5f));
    run[i] = static_cast<float>(code - 8) * Half(d);
  }
  return 4.0 * static_cast<double>(run.count) + 16;
}

/// Along the channels of every row, in groups.
double QuantizeRows(std::vector<float>& plane, size_t first_row_of_head, const LayerKv& kv, size_t group,
                    QuantizeRun quantize) {
  double bits = 0;
  for (size_t row = 0; row < size_t{kv.heads} * kv.tokens; ++row) {
    if (row % kv.tokens < first_row_of_head) continue;
    for (size_t c = 0; c < kv.dim; c += group) bits += quantize({&plane[row * kv.dim + c], group});
  }
  return bits;
}

/// Along the tokens of every channel, in groups that begin after `first_token`.
double QuantizeChannels(std::vector<float>& plane, size_t first_token, const LayerKv& kv, size_t group,
                        QuantizeRun quantize) {
  double bits = 0;
  for (size_t head = 0; head < kv.heads; ++head) {
    for (size_t start = 0; start < kv.tokens; start += group) {
      const size_t from = std::max(start, first_token),
                   tokens = std::min<size_t>(start + group, kv.tokens) - from;
      for (size_t c = 0; c < kv.dim; ++c)
        bits += quantize({&plane[(head * kv.tokens + from) * kv.dim + c], tokens, kv.dim});
    }
  }
  return bits;
}

/// Every 64 channels times the orthonormal Hadamard matrix; its own inverse.
void Rotate(std::vector<float>& plane) {
  constexpr size_t kChannels = 64;
  for (size_t at = 0; at < plane.size(); at += kChannels) {
    float* y = &plane[at];
    for (size_t h = 1; h < kChannels; h *= 2)
      for (size_t i = 0; i < kChannels; ++i)
        if ((i & h) == 0) {
          const float a = y[i], b = y[i + h];
          y[i] = a + b;
          y[i + h] = a - b;
        }
    for (size_t i = 0; i < kChannels; ++i) y[i] *= 0.125f;
  }
}

/// The first token stays FP16, as the attention sink does in our own codecs.
constexpr size_t kSinkTokens = 1;
double SinkBits(const LayerKv& kv) {
  return 16.0 * 2 * kSinkTokens * kv.heads * kv.dim;
}

/// KIVI: K per channel over groups of tokens, V per token over groups of channels.
template <int kBits>
double Kivi(LayerKv& kv) {
  constexpr size_t kGroup = 32;
  return QuantizeChannels(kv.k, kSinkTokens, kv, kGroup, Asymmetric<kBits>) +
         QuantizeRows(kv.v, kSinkTokens, kv, kGroup, Asymmetric<kBits>) + SinkBits(kv);
}

double PerTokenInt4(LayerKv& kv) {
  return QuantizeRows(kv.k, kSinkTokens, kv, kv.dim, Asymmetric<4>) +
         QuantizeRows(kv.v, kSinkTokens, kv, kv.dim, Asymmetric<4>) + SinkBits(kv);
}

template <QuantizeRun kQuantize>
double Llama(LayerKv& kv) {
  constexpr size_t kBlock = 32;
  return QuantizeRows(kv.k, 0, kv, kBlock, kQuantize) + QuantizeRows(kv.v, 0, kv, kBlock, kQuantize);
}

/// Rotating the queries as well, which llama.cpp does, and rotating K back are the same scores.
template <QuantizeRun kQuantize>
double RotatedLlama(LayerKv& kv) {
  Rotate(kv.k);
  Rotate(kv.v);
  const double bits = Llama<kQuantize>(kv);
  Rotate(kv.k);
  Rotate(kv.v);
  return bits;
}

}  // namespace

std::vector<LayerReference> LayerReferences() {
  return {{"KIVI-4 g32", Kivi<4>},
          {"KIVI-2 g32", Kivi<2>},
          {"INT4 per token", PerTokenInt4},
          {"q8_0", Llama<Q8_0>},
          {"q8_0 rotated", RotatedLlama<Q8_0>},
          {"q4_0", Llama<Q4_0>},
          {"q4_0 rotated", RotatedLlama<Q4_0>}};
}

std::vector<Method> ReferenceMethods() {
  std::vector<Method> methods;
  for (const LayerReference& reference : LayerReferences()) {
    methods.push_back(
        {reference.name, [quantize = reference.quantize](const Fixture& fixture) -> Result<Restored> {
           Restored restored;
           double bits = 0;
           for (uint32_t layer = 0; layer < fixture.layers(); ++layer) {
             restored.layers.push_back(OriginalLayer(fixture, layer));
             bits += quantize(restored.layers.back());
           }
           restored.bytes = static_cast<uint64_t>(bits / 8);
           return restored;
         }});
  }
  return methods;
}

}  // namespace kvtier::quality
