#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/batch.h"
#include "kernels/batch_sections.h"
#include "kernels/section_bytes.h"
#include "tests/codecs/engine_layouts.h"
#include "tests/gpu/batch_machine.h"

// Encoded layers and engines' layers in the memory of a machine.

namespace kvtier {

using Bytes = std::vector<std::byte>;

/// A codec by what a layer of it has.
struct Rung {
  std::string name;
  LayerCoding coding;
  bool has_boost, has_k_tail, has_v_tail;
};
inline Rung RungOf(const std::string& name) {
  if (name == "kv4p") return {name, LayerCoding::kPlanes, false, true, true};
  if (name == "kv42") return {name, LayerCoding::kPlanes, false, true, false};
  if (name == "kv2p") return {name, LayerCoding::kPlanes, true, false, false};
  if (name == "kv8") return {name, LayerCoding::kKv8, false, false, false};
  return {name, LayerCoding::kRaw, false, false, false};
}

inline uint64_t BaseBytesOf(const Rung& rung, const BlockShape& shape) {
  if (rung.coding == LayerCoding::kRaw) return AlignSection(RawLayerBytes(shape));
  if (rung.coding == LayerCoding::kPlanes) return internal::BaseBytes(SectionBytesOf(shape));
  const Kv8SectionBytes b = Kv8SectionBytesOf(shape);
  return AlignSection(b.k_ranges) + AlignSection(b.v_scales) + AlignSection(b.raw_rows) +
         AlignSection(b.k_codes) + AlignSection(b.v_codes);
}

/// A layer whose parts are filled with 0xCD. kv8 has no boost, so the shape loses its nb.
inline CodedLayer<uint8_t> NewLayer(BatchMachine& machine, const Rung& rung, BlockShape shape) {
  if (rung.coding != LayerCoding::kPlanes) shape.nb = 0;
  if (rung.coding == LayerCoding::kRaw) shape.nraw = 0;
  const SectionBytes bytes = SectionBytesOf(shape);
  const auto part = [&](bool is_there, uint64_t size) {
    return is_there ? reinterpret_cast<uint8_t*>(machine.Allocate(AlignSection(size))) : nullptr;
  };
  return {.shape = shape,
          .coding = rung.coding,
          .base = part(true, BaseBytesOf(rung, shape)),
          .boost = part(rung.has_boost && shape.nb > 0, bytes.boost),
          .k_tail = part(rung.has_k_tail, bytes.k_low),
          .v_tail = part(rung.has_v_tail, bytes.v_low)};
}

inline CodedLayer<const uint8_t> ReadOnly(const CodedLayer<uint8_t>& layer) {
  return {.shape = layer.shape,
          .coding = layer.coding,
          .scales = layer.scales,
          .base = layer.base,
          .boost = layer.boost,
          .k_tail = layer.k_tail,
          .v_tail = layer.v_tail};
}

/// Sections without padding, in the order of golden files. False: padding is not zero.
inline bool StripLayer(const CodedLayer<uint8_t>& layer, Bytes& sections) {
  bool is_zero = true;
  const auto take = [&](const uint8_t*& at, uint64_t bytes) {
    const auto* section = reinterpret_cast<const std::byte*>(at);
    sections.insert(sections.end(), section, section + bytes);
    for (uint64_t i = bytes; i < AlignSection(bytes); ++i) is_zero &= at[i] == 0;
    at += AlignSection(bytes);
  };
  const uint8_t* base = layer.base;
  if (layer.coding == LayerCoding::kRaw) {
    take(base, RawLayerBytes(layer.shape));
  } else if (layer.coding == LayerCoding::kKv8) {
    const Kv8SectionBytes b = Kv8SectionBytesOf(layer.shape);
    for (const uint64_t bytes : {b.k_ranges, b.v_scales, b.raw_rows, b.k_codes, b.v_codes}) take(base, bytes);
  } else {
    const SectionBytes b = SectionBytesOf(layer.shape);
    for (const uint64_t bytes : {b.k_ranges, b.v_scales, b.raw_rows, b.k_high, b.v_high}) take(base, bytes);
    const uint8_t *k_tail = layer.k_tail, *v_tail = layer.v_tail, *boost = layer.boost;
    if (k_tail != nullptr) take(k_tail, b.k_low);
    if (v_tail != nullptr) take(v_tail, b.v_low);
    if (boost != nullptr) take(boost, b.boost);
  }
  return is_zero;
}

/// The view of a layout in the machine's memory; its page table is there too.
inline KvLayerView ViewOf(BatchMachine& machine, const EngineLayout& layout, DType dtype) {
  KvLayerView view = layout.View(machine.Allocate(layout.bytes), dtype);
  if (!layout.pages.empty()) {
    const size_t bytes = layout.pages.size() * sizeof(int32_t);
    auto* pages = reinterpret_cast<int32_t*>(machine.Allocate(bytes));
    memcpy(pages, layout.pages.data(), bytes);
    view.page_table = pages;
  }
  return view;
}

/// move(address in the view, bytes of raw so far) for every element, in the order of RawLayerBytes.
template <typename Move>
void ForEachElement(const BlockShape& s, const KvLayerView& view, const Move& move) {
  size_t at = 0;
  for (const bool is_k : {true, false}) {
    for (uint32_t head = 0; head < s.kv_heads; ++head) {
      for (uint32_t token = 0; token < s.tokens; ++token) {
        std::byte* row = (is_k ? view.k : view.v) + view.Row(head, token);
        for (uint32_t c = 0; c < (is_k ? s.k_dim : s.v_dim); ++c, at += DTypeBytes(view.dtype))
          move(row + c * view.channel_stride, at);
      }
    }
  }
}
inline void FillView(const BlockShape& s, const KvLayerView& view, const Bytes& raw) {
  ForEachElement(s, view,
                 [&](std::byte* to, size_t at) { memcpy(to, raw.data() + at, DTypeBytes(view.dtype)); });
}
inline Bytes ReadView(const BlockShape& s, const KvLayerView& view) {
  Bytes raw;
  ForEachElement(s, view, [&](const std::byte* from, size_t) {
    raw.insert(raw.end(), from, from + DTypeBytes(view.dtype));
  });
  return raw;
}

/// An array of one batch in the machine's memory.
template <typename Item>
Item* ArrayOf(BatchMachine& machine, const std::vector<Item>& items) {
  auto* array = reinterpret_cast<Item*>(machine.Allocate(items.size() * sizeof(Item) + 1));
  if (!items.empty()) memcpy(static_cast<void*>(array), items.data(), items.size() * sizeof(Item));
  return array;
}

}  // namespace kvtier
