#pragma once

#include <cstdint>

#include "kernels/batch.h"
#include "kernels/host_device.h"
#include "kernels/kv8_sections.h"
#include "kernels/plane_sections.h"
#include "kernels/section_bytes.h"
#include "kernels/team.h"

// The sections inside the parts of a CodedLayer.

namespace kvtier::internal {

template <typename Byte>
KVTIER_HD PlaneSections<Byte> PlaneSectionsOf(const CodedLayer<Byte>& layer) {
  const BlockShape& s = layer.shape;
  const SectionBytes bytes = SectionBytesOf(s);
  PlaneSections<Byte> sections;
  sections.k_scale = layer.base;
  sections.k_min = layer.base + bytes.k_ranges / 2;
  sections.v_scale = layer.base + AlignSection(bytes.k_ranges);
  sections.k_raw = sections.v_scale + AlignSection(bytes.v_scales);
  sections.v_raw = sections.k_raw + uint64_t{2} * s.kv_heads * s.nraw * s.k_dim;
  sections.k_high = sections.k_raw + AlignSection(bytes.raw_rows);
  sections.v_high = sections.k_high + AlignSection(bytes.k_high);
  sections.k_low = layer.k_tail;
  sections.v_low = layer.v_tail;
  if (layer.boost != nullptr && layer.k_tail == nullptr && s.nb > 0) {
    sections.boost_ids = layer.boost;
    sections.boost_low = layer.boost + uint64_t{s.kv_heads} * s.nb;
  }
  return sections;
}

template <typename Byte>
KVTIER_HD Kv8Sections<Byte> Kv8SectionsOf(const CodedLayer<Byte>& layer) {
  const BlockShape& s = layer.shape;
  const Kv8SectionBytes bytes = Kv8SectionBytesOf(s);
  Kv8Sections<Byte> sections;
  sections.k_scale = layer.base;
  sections.k_min = layer.base + bytes.k_ranges / 2;
  sections.v_scale = layer.base + AlignSection(bytes.k_ranges);
  sections.k_raw = sections.v_scale + AlignSection(bytes.v_scales);
  sections.v_raw = sections.k_raw + uint64_t{2} * s.kv_heads * s.nraw * s.k_dim;
  sections.k_codes = sections.k_raw + AlignSection(bytes.raw_rows);
  sections.v_codes = sections.k_codes + AlignSection(bytes.k_codes);
  return sections;
}

/// Of the plane family.
KVTIER_HD inline uint64_t BaseBytes(const SectionBytes& bytes) {
  return AlignSection(bytes.k_ranges) + AlignSection(bytes.v_scales) + AlignSection(bytes.raw_rows) +
         AlignSection(bytes.k_high) + AlignSection(bytes.v_high);
}

/// Zeros what follows a section up to where the next one begins.
template <Team T>
KVTIER_HD void ZeroPadding(const T& team, uint8_t* section, uint64_t bytes) {
  if (section == nullptr) return;
  for (uint64_t at = bytes + team.rank(); at < AlignSection(bytes); at += team.size()) section[at] = 0;
}

template <Team T>
KVTIER_HD void ZeroPlanePadding(const T& team, const CodedLayer<uint8_t>& layer) {
  const SectionBytes bytes = SectionBytesOf(layer.shape);
  const PlaneSections<uint8_t> sections = PlaneSectionsOf(layer);
  ZeroPadding(team, sections.k_scale, bytes.k_ranges);
  ZeroPadding(team, sections.v_scale, bytes.v_scales);
  ZeroPadding(team, sections.k_raw, bytes.raw_rows);
  ZeroPadding(team, sections.k_high, bytes.k_high);
  ZeroPadding(team, sections.v_high, bytes.v_high);
  ZeroPadding(team, sections.boost_ids, bytes.boost);
  ZeroPadding(team, sections.k_low, bytes.k_low);
  ZeroPadding(team, sections.v_low, bytes.v_low);
}

template <Team T>
KVTIER_HD void ZeroKv8Padding(const T& team, const CodedLayer<uint8_t>& layer) {
  const Kv8SectionBytes bytes = Kv8SectionBytesOf(layer.shape);
  const Kv8Sections<uint8_t> sections = Kv8SectionsOf(layer);
  ZeroPadding(team, sections.k_scale, bytes.k_ranges);
  ZeroPadding(team, sections.v_scale, bytes.v_scales);
  ZeroPadding(team, sections.k_raw, bytes.raw_rows);
  ZeroPadding(team, sections.k_codes, bytes.k_codes);
  ZeroPadding(team, sections.v_codes, bytes.v_codes);
}

}  // namespace kvtier::internal
