#pragma once

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/batch.h"
#include "kernels/batch_encode_v.h"
#include "kernels/batch_planes.h"
#include "kernels/batch_rows.h"
#include "kernels/batch_sections.h"
#include "kernels/batch_source.h"
#include "kernels/host_device.h"
#include "kernels/team.h"

// One head of a layer as attention reads it, for lanes that share it by columns: K as numbers c with a scale
// and a minimum by channel, V as numbers z with a scale by row.

namespace kvtier::internal {

/// The 16 numbers of a column in one row.
struct ColumnRow {
  float value[kColumn];
  float scale = 1;        ///< V: what they are multiplied by
  bool is_plain = false;  ///< K: values themselves, without scale and minimum

  KVTIER_HD void Set(uint32_t r, const Four& four) {
    KVTIER_HD_UNROLLED
    for (uint32_t i = 0; i < kRun; ++i) value[r * kRun + i] = four.value[i];
  }
};

/// H64 / 8 of a row of V for a lane's column of it. Called by whole warps.
template <Team T>
KVTIER_HD void TurnRawV(const T& team, const uint8_t* row, uint32_t v_dim, const Column& column,
                        ColumnRow& out) {
  if (TileCodes(v_dim, column.tile) < kTileCodes) return;
  if constexpr (StandsAlone<T>) {
    float group[kTileCodes];
    for (uint32_t i = 0; i < kTileCodes; ++i)
      group[i] = FromHalf(LoadWord<uint16_t>(row + 2 * (column.tile + i)));
    RotateGroups(group, kTileCodes);
    KVTIER_HD_UNROLLED
    for (uint32_t r = 0; r < 4; ++r) out.Set(r, FourOf(group + column.Run(r) - column.tile));
  } else {
    HadamardOfColumns(team, column.part, out.value);
    KVTIER_HD_UNROLLED
    for (uint32_t i = 0; i < kColumn; ++i) out.value[i] *= 0.125f;
  }
}

/// What a lane looks up once for its column of K, where there is nothing.
struct NoPlaces {};

/// kPlanes. V is in rotated form.
struct PlanesRows {
  BlockShape shape;
  const PlaneSections<const uint8_t>& in;  ///< in scratch: eleven pointers are too many registers
  uint32_t head;
  const uint16_t* boost;  ///< FindBoost

  using Places = BoostPlaces;
  KVTIER_HD Places PlacesOf(const Column& column) const {
    return in.k_low == nullptr && in.boost_ids != nullptr ? BoostPlacesOf(boost, column) : Places{};
  }
  KVTIER_HD KChannelRange KRangeOf(uint32_t channel) const {
    return LoadKRange(shape, in, head, channel, boost);
  }
  KVTIER_HD ColumnRow LoadK(uint32_t token, const Column& column, const Places& places) const {
    ColumnRow out;
    out.is_plain = token < shape.nraw;
    if (out.is_plain) {
      const uint8_t* raw = in.k_raw + 2 * (uint64_t{head} * shape.nraw + token) * shape.k_dim;
      KVTIER_HD_UNROLLED
      for (uint32_t r = 0; r < 4; ++r) out.Set(r, LoadHalves(raw + 2 * column.Run(r)));
      return out;
    }
    const RunCodes codes = LoadKCodes(shape, in, PlaneRow(shape, head, token), column, places);
    KVTIER_HD_UNROLLED
    for (uint32_t r = 0; r < 4; ++r) {
      KVTIER_HD_UNROLLED
      for (uint32_t i = 0; i < kRun; ++i) out.value[r * kRun + i] = FloatOfByte(codes.of[r], i);
    }
    return out;
  }
  /// Not for raw rows.
  KVTIER_HD ColumnRow LoadV(uint32_t token, const Column& column) const {
    ColumnRow out;
    const uint64_t row = PlaneRow(shape, head, token);
    out.scale = VScale(in.v_scale[row * VGroups(shape) + column.tile / kTileCodes]) / 2;
    VGridOf(PlaneReader(in.v_high, in.v_low, row, shape.v_dim / 4, column, 0).Next(), in.v_low != nullptr,
            out.value);
    return out;
  }
  KVTIER_HD const uint8_t* RawV(uint32_t token) const {
    return in.v_raw + 2 * (uint64_t{head} * shape.nraw + token) * shape.v_dim;
  }
};

/// kKv8.
struct Kv8Rows {
  BlockShape shape;
  Kv8Sections<const uint8_t> in;
  uint32_t head;

  KVTIER_HD static NoPlaces PlacesOf(const Column& /*column*/) { return {}; }
  KVTIER_HD KChannelRange KRangeOf(uint32_t channel) const {
    const uint64_t at = 2 * (uint64_t{head} * shape.k_dim + channel);
    return {.scale = FromHalf(LoadWord<uint16_t>(in.k_scale + at)),
            .minimum = FromHalf(LoadWord<uint16_t>(in.k_min + at))};
  }
  KVTIER_HD ColumnRow LoadK(uint32_t token, const Column& column, NoPlaces /*none*/) const {
    ColumnRow out;
    out.is_plain = token < shape.nraw;
    KVTIER_HD_UNROLLED
    for (uint32_t r = 0; r < 4; ++r) {
      if (out.is_plain) {
        const uint64_t raw_row = uint64_t{head} * shape.nraw + token;
        out.Set(r, LoadHalves(in.k_raw + 2 * (raw_row * shape.k_dim + column.Run(r))));
        continue;
      }
      const uint64_t row = uint64_t{head} * shape.tokens + token;
      const auto codes = LoadWord<uint32_t>(in.k_codes + row * shape.k_dim + column.Run(r));
      KVTIER_HD_UNROLLED
      for (uint32_t i = 0; i < kRun; ++i) out.value[r * kRun + i] = static_cast<float>(codes >> 8 * i & 0xff);
    }
    return out;
  }
  KVTIER_HD ColumnRow LoadV(uint32_t token, const Column& column) const {
    ColumnRow out;
    const uint64_t row = uint64_t{head} * shape.tokens + token;
    out.scale = FromHalf(LoadWord<uint16_t>(in.v_scale + 2 * row));
    KVTIER_HD_UNROLLED
    for (uint32_t r = 0; r < 4; ++r) {
      const auto codes = LoadWord<uint32_t>(in.v_codes + row * shape.v_dim + column.Run(r));
      KVTIER_HD_UNROLLED
      for (uint32_t i = 0; i < kRun; ++i)
        out.value[r * kRun + i] = Fp8Value(codes >> 8 * i & 0xff, DType::kE4m3);
    }
    return out;
  }
  KVTIER_HD const uint8_t* RawV(uint32_t token) const {
    return in.v_raw + 2 * (uint64_t{head} * shape.nraw + token) * shape.v_dim;
  }
};

/// kRaw. It has no raw rows apart.
struct RawRows {
  BlockShape shape;
  RowSource source;

  KVTIER_HD static NoPlaces PlacesOf(const Column& /*column*/) { return {}; }
  KVTIER_HD static KChannelRange KRangeOf(uint32_t /*channel*/) { return {.scale = 1, .minimum = 0}; }
  KVTIER_HD ColumnRow LoadK(uint32_t token, const Column& column, NoPlaces /*none*/) const {
    ColumnRow out;
    KVTIER_HD_UNROLLED
    for (uint32_t r = 0; r < 4; ++r) out.Set(r, source.LoadK(token, column.Run(r)));
    return out;
  }
  KVTIER_HD ColumnRow LoadV(uint32_t token, const Column& column) const {
    ColumnRow out;
    KVTIER_HD_UNROLLED
    for (uint32_t r = 0; r < 4; ++r) out.Set(r, source.LoadV(token, column.Run(r)));
    return out;
  }
  KVTIER_HD static const uint8_t* RawV(uint32_t /*token*/) { return nullptr; }
};

}  // namespace kvtier::internal
