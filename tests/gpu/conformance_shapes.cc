#include <algorithm>
#include <cmath>

#include "kernels/convert.h"
#include "kernels/dequantize.h"
#include "kernels/dequantize_kv8.h"
#include "kernels/quantize.h"
#include "kernels/quantize_kv8.h"
#include "tests/codecs/engine_layouts.h"
#include "tests/gpu/conformance.h"
#include "tests/gpu/machine_layers.h"
#include "tests/kernels/team_cases.h"

namespace kvtier {
namespace {

/// What encoding must give: the sections of a layer in memory of the host, made by the specification.
class Specified {
 public:
  Specified(Specified&&) = default;
  Specified(const Rung& rung, const BlockShape& shape, const Bytes& raw)
      : memory_(BaseBytesOf(rung, shape) + AllTails(shape)) {
    uint8_t* at = memory_.data();
    layer_ = {.shape = shape, .coding = rung.coding, .base = at};
    const SectionBytes bytes = SectionBytesOf(shape);
    at += BaseBytesOf(rung, shape);
    const auto part = [&](bool is_there, uint64_t size) {
      uint8_t* const part = is_there ? at : nullptr;
      at += AlignSection(size);
      return part;
    };
    layer_.boost = part(rung.has_boost && shape.nb > 0, bytes.boost);
    layer_.k_tail = part(rung.has_k_tail, bytes.k_low);
    layer_.v_tail = part(rung.has_v_tail, bytes.v_low);
    Encode(raw);
  }

  const CodedLayer<uint8_t>& layer() const { return layer_; }
  RowErrors k, v;

  /// Into a view, by the specification.
  void Decode(const KvLayerView& view) const {
    const BlockShape& shape = layer_.shape;
    if (layer_.coding == LayerCoding::kRaw) return DecodeRaw(view);
    if (layer_.coding == LayerCoding::kKv8) {
      const DequantizeKv8Args args = {
          .shape = shape, .in = internal::Kv8SectionsOf(ReadOnly(layer_)), .out = view};
      LaunchSerial(Kv8Launch(shape), [&](const SerialTeam& team) { DequantizeKv8(team, args); });
      return;
    }
    const DequantizeArgs args = {
        .shape = shape, .in = internal::PlaneSectionsOf(ReadOnly(layer_)), .out = view};
    LaunchSerial(DequantizeLaunch(shape), [&](const SerialTeam& team) { Dequantize(team, args); });
  }

 private:
  static uint64_t AllTails(const BlockShape& shape) {
    const SectionBytes bytes = SectionBytesOf(shape);
    return AlignSection(bytes.boost) + AlignSection(bytes.k_low) + AlignSection(bytes.v_low);
  }

  void Encode(const Bytes& raw) {
    const BlockShape& shape = layer_.shape;
    const size_t rows = size_t{shape.kv_heads} * shape.tokens;
    if (layer_.coding == LayerCoding::kRaw) {
      memcpy(layer_.base, raw.data(), raw.size());
    } else if (layer_.coding == LayerCoding::kKv8) {
      std::vector<Kv8RowErrors> k_rows(rows), v_rows(rows);
      const QuantizeKv8Args args = {.source = {.shape = shape, .raw = raw.data()},
                                    .out = internal::Kv8SectionsOf(layer_),
                                    .k_errors = k_rows.data(),
                                    .v_errors = v_rows.data()};
      LaunchSerial(Kv8Launch(shape), [&](const SerialTeam& team) { QuantizeKv8(team, args); });
      for (const Kv8RowErrors& row : k_rows) k.square += row.square, k.int4 += row.error;
      for (const Kv8RowErrors& row : v_rows) v.square += row.square, v.int4 += row.error;
    } else {
      std::vector<RowErrors> k_rows(rows), v_rows(rows);
      const QuantizeArgs args = {.shape = shape,
                                 .raw = raw.data(),
                                 .out = internal::PlaneSectionsOf(layer_),
                                 .k_errors = k_rows.data(),
                                 .v_errors = v_rows.data(),
                                 .measure_v = ErrorMeasure::kDecoded};
      LaunchSerial(QuantizeLaunch(shape), [&](const SerialTeam& team) { Quantize(team, args); });
      k = Sum(k_rows);
      v = Sum(v_rows);
    }
  }
  static RowErrors Sum(const std::vector<RowErrors>& rows) {
    RowErrors sum;
    for (const RowErrors& row : rows) {
      sum.square += row.square;
      sum.int4 += row.int4;
      sum.int2 += row.int2;
    }
    return sum;
  }
  void DecodeRaw(const KvLayerView& view) const {
    const BlockShape& s = layer_.shape;
    const auto* from = reinterpret_cast<const std::byte*>(layer_.base);
    for (const bool is_k : {true, false}) {
      const uint32_t dim = is_k ? s.k_dim : s.v_dim;
      const RowConversion conversion = {.from = s.dtype,
                                        .to = view.dtype,
                                        .scale = is_k ? view.scales.k : view.scales.v,
                                        .form = is_k ? VForm::kPlain : view.v_form};
      for (uint32_t row = 0; row < uint32_t{s.kv_heads} * s.tokens;
           ++row, from += dim * DTypeBytes(s.dtype)) {
        Bytes converted(dim * DTypeBytes(view.dtype));
        ConvertRow(conversion, from, dim, converted.data());
        std::byte* to = (is_k ? view.k : view.v) + view.Row(row / s.tokens, row % s.tokens);
        for (uint32_t i = 0; i < converted.size(); ++i)
          to[i / DTypeBytes(view.dtype) * view.channel_stride + i % DTypeBytes(view.dtype)] = converted[i];
      }
    }
  }

  std::vector<uint8_t> memory_;
  CodedLayer<uint8_t> layer_;
};

struct Case {
  std::string name;
  BlockShape shape;  ///< as a layer of the rung states it
  Rung rung;
  EngineLayout layout;
  Bytes raw;
};

/// RandomRaw, with what BF16 rounds up to beyond fp16 brought back into its range.
Bytes FittingRaw(const BlockShape& shape) {
  Bytes raw = RandomRaw(shape);
  for (size_t at = 0; shape.dtype == DType::kBf16 && at < raw.size(); at += 2) {
    const uint16_t bits = Load16(&raw[at]);
    if ((bits & 0x7fff) >= kBf16AboveFp16) Store16(&raw[at], static_cast<uint16_t>(bits - 1));
  }
  return raw;
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  size_t number = 0;
  for (const BlockShape& shape : Shapes()) {
    for (const char* codec : {"raw16", "kv8", "kv4p", "kv42", "kv2p"}) {
      const Rung rung = RungOf(codec);
      const std::vector<EngineLayout> layouts = EngineLayouts(shape, DTypeBytes(shape.dtype));
      Case c = {.name = std::string(codec) + " " + Describe(shape),
                .shape = shape,
                .rung = rung,
                .layout = layouts[number++ % layouts.size()],
                .raw = FittingRaw(shape)};
      if (rung.coding != LayerCoding::kPlanes) c.shape.nb = 0;
      if (rung.coding == LayerCoding::kRaw) c.shape.nraw = 0;
      c.name += " " + c.layout.name;
      cases.push_back(c);
    }
  }
  return cases;
}
uint32_t HeadsMax(const std::vector<Case>& cases) {
  uint32_t heads = 0;
  for (const Case& c : cases) heads = std::max<uint32_t>(heads, c.shape.kv_heads);
  return heads;
}

Bytes Stripped(const CodedLayer<uint8_t>& layer) {
  Bytes sections;
  StripLayer(layer, sections);
  return sections;
}

/// Relative to the whole; both 0 is near.
bool Near(double a, double b) {
  constexpr double kTolerance = 1e-4;  // of squares, far below the fp16 that states them
  return std::abs(a - b) <= kTolerance * std::max(a, b);
}

void CheckHeads(const Case& c, const EncodedHead& sum, const Specified& specified, Conformance& out) {
  out.Check(sum.fits == 1 && sum.inexact == 0, "encode " + c.name + ": fits");
  if (c.rung.coding == LayerCoding::kRaw) return;
  const auto near = [](const RowErrors& a, const RowErrors& b) {
    return Near(a.square, b.square) && Near(a.int4, b.int4) && Near(a.int2, b.int2);
  };
  out.Check(near(sum.k, specified.k), "encode " + c.name + ": errors of K");
  // The grid tells V's error to the last place of fp16, not better.
  const bool is_kv8 = c.rung.coding == LayerCoding::kKv8;
  const auto close = [](double a, double b) { return std::abs(a - b) <= 2e-3 * std::max(a, b); };
  const RowErrors &v = sum.v, &expected = specified.v;
  out.Check(is_kv8 ? near(v, expected)
                   : Near(v.square, expected.square) && close(v.int4, expected.int4) &&
                         close(v.int2, expected.int2),
            "encode " + c.name + ": errors of V");
}

void CheckEncoding(BatchMachine& machine, const std::vector<Case>& cases,
                   const std::vector<Specified>& specified, Conformance& out) {
  std::vector<EncodeItem> items;
  for (const Case& c : cases) {
    EncodeItem item = {.source = ViewOf(machine, c.layout, c.shape.dtype),
                       .target = NewLayer(machine, c.rung, c.shape)};
    FillView(c.shape, item.source, c.raw);
    items.push_back(item);
  }
  const uint32_t heads_max = HeadsMax(cases);
  EncodedHead* heads = ArrayOf(machine, std::vector<EncodedHead>(items.size() * heads_max));
  const char* error = machine.Run(EncodeBatchArgs{.items = ArrayOf(machine, items),
                                                  .count = static_cast<uint32_t>(items.size()),
                                                  .heads_max = heads_max,
                                                  .heads = heads});
  out.Check(error == nullptr, std::string("encode: ") + (error == nullptr ? "" : error));
  for (size_t i = 0; i < cases.size(); ++i) {
    Bytes sections;
    out.Check(StripLayer(items[i].target, sections), "encode " + cases[i].name + ": padding is zero");
    out.Check(sections == Stripped(specified[i].layer()), "encode " + cases[i].name + ": bytes");
    CheckHeads(cases[i], SumHeads(heads + i * heads_max, cases[i].shape.kv_heads), specified[i], out);
  }
}

void CheckDecoding(BatchMachine& machine, const std::vector<Case>& cases,
                   const std::vector<Specified>& specified, DType dtype, VForm v_form, Conformance& out) {
  std::vector<DecodeItem> items;
  for (size_t i = 0; i < cases.size(); ++i) {
    const CodedLayer<uint8_t> source = NewLayer(machine, cases[i].rung, cases[i].shape);
    const auto copy = [](uint8_t* to, const uint8_t* from, uint64_t bytes) {
      if (to != nullptr) memcpy(to, from, bytes);
    };
    const SectionBytes bytes = SectionBytesOf(cases[i].shape);
    const CodedLayer<uint8_t>& layer = specified[i].layer();
    copy(source.base, layer.base, BaseBytesOf(cases[i].rung, cases[i].shape));
    copy(source.boost, layer.boost, bytes.boost);
    copy(source.k_tail, layer.k_tail, bytes.k_low);
    copy(source.v_tail, layer.v_tail, bytes.v_low);
    const std::vector<EngineLayout> layouts = EngineLayouts(cases[i].shape, DTypeBytes(dtype));
    DecodeItem item = {.source = ReadOnly(source),
                       .target = ViewOf(machine, layouts[(i + 3) % layouts.size()], dtype)};
    item.target.v_form = v_form;
    items.push_back(item);
  }
  const char* error = machine.Run(DecodeBatchArgs{.items = ArrayOf(machine, items),
                                                  .count = static_cast<uint32_t>(items.size()),
                                                  .heads_max = HeadsMax(cases)});
  out.Check(error == nullptr, std::string("decode: ") + (error == nullptr ? "" : error));
  for (size_t i = 0; i < cases.size(); ++i) {
    const BlockShape& shape = cases[i].shape;
    Decoded expected(shape, dtype);
    expected.view().v_form = v_form;
    specified[i].Decode(expected.view());
    out.Check(ReadView(shape, items[i].target) == ReadView(shape, expected.view()),
              "decode " + cases[i].name + " to type " + std::to_string(static_cast<int>(dtype)) + ", form " +
                  std::to_string(static_cast<int>(v_form)) + ": bytes");
  }
}

/// A kv8 layer into the plane family: what its decoded values are encoded to.
void CheckFromKv8(BatchMachine& machine, const std::vector<Case>& cases,
                  const std::vector<Specified>& specified, Conformance& out) {
  for (size_t i = 0; i < cases.size(); ++i) {
    if (cases[i].rung.coding != LayerCoding::kKv8) continue;
    const BlockShape& kv8_shape = cases[i].shape;
    Decoded decoded(kv8_shape, DType::kFp16);
    specified[i].Decode(decoded.view());
    BlockShape shape = kv8_shape;
    shape.nb = 4;
    BlockShape fp16_shape = shape;
    fp16_shape.dtype = DType::kFp16;
    const Rung rung = RungOf("kv2p");
    const Specified expected(rung, fp16_shape, ReadView(kv8_shape, decoded.view()));
    CodedLayer<uint8_t> source = NewLayer(machine, cases[i].rung, kv8_shape);
    memcpy(source.base, specified[i].layer().base, BaseBytesOf(cases[i].rung, kv8_shape));
    const RequantizeItem item = {.source = ReadOnly(source), .target = NewLayer(machine, rung, shape)};
    const char* error =
        machine.Run(RequantizeBatchArgs{.items = ArrayOf<RequantizeItem>(machine, {item}),
                                        .count = 1,
                                        .heads_max = shape.kv_heads,
                                        .heads = ArrayOf(machine, std::vector<EncodedHead>(shape.kv_heads))});
    out.Check(error == nullptr && Stripped(item.target) == Stripped(expected.layer()),
              "requantize " + cases[i].name + " to kv2p: bytes");
  }
}

/// A value that fp16 cannot hold is found wherever it is.
void CheckMisfits(BatchMachine& machine, Conformance& out) {
  const BlockShape shape = Shape(2, 64, 64, 8, 1, 32);
  const Bytes raw = RandomRaw(shape);
  for (const size_t element : {size_t{0}, raw.size() / 4, raw.size() / 2 - 1}) {
    for (const char* codec : {"kv4p", "kv8"}) {
      Bytes damaged = raw;
      Store16(damaged.data() + 2 * element, kFp16Infinity);
      const EncodeItem item = {.source = ViewOf(machine, PagedLayout("pages", shape, 2, 16, 0), DType::kFp16),
                               .target = NewLayer(machine, RungOf(codec), shape)};
      FillView(shape, item.source, damaged);
      EncodedHead* heads = ArrayOf(machine, std::vector<EncodedHead>(shape.kv_heads));
      const char* error = machine.Run(EncodeBatchArgs{.items = ArrayOf<EncodeItem>(machine, {item}),
                                                      .count = 1,
                                                      .heads_max = shape.kv_heads,
                                                      .heads = heads});
      out.Check(error == nullptr && SumHeads(heads, shape.kv_heads).fits == 0,
                std::string("encode ") + codec + ": an infinity is found");
    }
  }
}

}  // namespace

void CheckShapes(BatchMachine& machine, Conformance& out) {
  const std::vector<Case> cases = Cases();
  std::vector<Specified> specified;
  for (const Case& c : cases) specified.emplace_back(c.rung, c.shape, c.raw);
  CheckEncoding(machine, cases, specified, out);
  for (const DType dtype : {DType::kFp16, DType::kBf16, DType::kE4m3, DType::kFp32})
    for (const VForm form : {VForm::kPlain, VForm::kRotated})
      CheckDecoding(machine, cases, specified, dtype, form, out);
  CheckFromKv8(machine, cases, specified, out);
  CheckMisfits(machine, out);
}

}  // namespace kvtier
