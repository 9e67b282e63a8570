#include <cmath>
#include <fstream>
#include <map>

#include "tests/codecs/golden_input.h"
#include "tests/gpu/conformance.h"
#include "tests/gpu/machine_layers.h"
#include "tests/support/fixture.h"

namespace kvtier {
namespace {

struct Errors {
  double k_int4 = 0, k_int2 = 0, v_int4 = 0, v_int2 = 0;
};

std::map<std::string, Errors> LoadErrors(const std::string& data_folder) {
  std::map<std::string, Errors> all;
  std::ifstream file(data_folder + "/errors.txt");
  std::string name;
  for (Errors e; file >> name >> e.k_int4 >> e.k_int2 >> e.v_int4 >> e.v_int2;) all[name] = e;
  return all;
}

/// A golden block, and what it becomes on a machine.
class GoldenBlock {
 public:
  GoldenBlock(BatchMachine& machine, const GoldenCase& golden, const Fixture& fixture,
              const std::string& data_folder)
      : machine_(machine),
        golden_(golden),
        folder_(data_folder + "/golden/"),
        shape_(ShapeOf(golden, fixture)),
        raw_(RawOf(golden, fixture)) {}

  /// From an engine's pages, to the rung and back into pages.
  void CheckRung(const Rung& rung, const Errors& errors, Conformance& out) {
    const EncodeItem item = {.source = Pages(raw_), .target = NewLayer(machine_, rung, shape_)};
    const std::string name = golden_.name + "." + rung.name;
    EncodedHead* heads = NewHeads();
    Ran(EncodeBatchArgs{.items = ArrayOf<EncodeItem>(machine_, {item}),
                        .count = 1,
                        .heads_max = shape_.kv_heads,
                        .heads = heads},
        "encode " + name, out);
    CheckBytes(item.target, name, "encode ", out);
    CheckHeads(rung, heads, errors, "encode " + name, out);
    CheckDecoded(item.target, name, out);
  }

  /// From a raw layer.
  void CheckRequantized(const Rung& rung, Conformance& out) {
    CodedLayer<uint8_t> raw = NewLayer(machine_, RungOf("raw16"), shape_);
    memcpy(raw.base, raw_.data(), raw_.size());
    const RequantizeItem item = {.source = ReadOnly(raw), .target = NewLayer(machine_, rung, shape_)};
    Ran(RequantizeBatchArgs{.items = ArrayOf<RequantizeItem>(machine_, {item}),
                            .count = 1,
                            .heads_max = shape_.kv_heads,
                            .heads = NewHeads()},
        "requantize", out);
    CheckBytes(item.target, golden_.name + "." + rung.name, "requantize ", out);
  }

  /// kv4p to kv42 to kv2p, and at once; in the end to the bytes that a golden file has.
  void CheckCuts(Conformance& out) {
    const EncodeItem encoded = {.source = Pages(raw_), .target = NewLayer(machine_, RungOf("kv4p"), shape_)};
    Ran(EncodeBatchArgs{.items = ArrayOf<EncodeItem>(machine_, {encoded}),
                        .count = 1,
                        .heads_max = shape_.kv_heads,
                        .heads = NewHeads()},
        "encode", out);
    const CodedLayer<uint8_t> k4v2 = Cut(encoded.target, "kv42", out);
    CheckBytes(Cut(encoded.target, "kv2p", out), golden_.name + ".kv2p", "cut kv4p to ", out);
    CheckBytes(Cut(k4v2, "kv2p", out), golden_.name + ".kv2p", "cut kv42 to ", out);
  }

 private:
  KvLayerView Pages(const Bytes& raw) {
    const KvLayerView view = ViewOf(machine_, PagedLayout("pages", shape_, 2, 16, 5), DType::kFp16);
    if (!raw.empty()) FillView(shape_, view, raw);
    return view;
  }
  EncodedHead* NewHeads() { return ArrayOf(machine_, std::vector<EncodedHead>(shape_.kv_heads)); }
  Bytes Golden(const std::string& file, Conformance& out) const {
    auto bytes = ReadFileBytes(folder_ + file);
    out.Check(bytes.ok(), "read " + file);
    return bytes.ok() ? *bytes : Bytes{};
  }
  void Ran(const AnyBatch& batch, const std::string& what, Conformance& out) {
    const char* error = machine_.Run(batch);
    out.Check(error == nullptr, what + ": " + (error == nullptr ? "" : error));
  }
  void CheckBytes(const CodedLayer<uint8_t>& layer, const std::string& file, const std::string& how,
                  Conformance& out) const {
    Bytes sections;
    out.Check(StripLayer(layer, sections), how + file + ": padding is zero");
    out.Check(sections == Golden(file, out), how + file + ": golden bytes");
  }
  void CheckDecoded(const CodedLayer<uint8_t>& layer, const std::string& name, Conformance& out) {
    const DecodeItem item = {.source = ReadOnly(layer), .target = Pages({})};
    Ran(
        DecodeBatchArgs{
            .items = ArrayOf<DecodeItem>(machine_, {item}), .count = 1, .heads_max = shape_.kv_heads},
        "decode " + name, out);
    out.Check(ReadView(shape_, item.target) == Golden(name + ".f16", out),
              "decode " + name + ": golden values");
  }
  CodedLayer<uint8_t> Cut(const CodedLayer<uint8_t>& from, const std::string& to, Conformance& out) {
    const CutItem item = {.source = ReadOnly(from), .target = NewLayer(machine_, RungOf(to), shape_)};
    Ran(CutBatchArgs{.items = ArrayOf<CutItem>(machine_, {item}), .count = 1, .heads_max = shape_.kv_heads},
        "cut", out);
    return item.target;
  }
  void CheckHeads(const Rung& rung, const EncodedHead* heads, const Errors& errors, const std::string& what,
                  Conformance& out) const {
    const EncodedHead sum = SumHeads(heads, shape_.kv_heads);
    out.Check(sum.fits == 1 && sum.inexact == 0, what + ": fits");
    if (rung.coding != LayerCoding::kPlanes) return;
    const auto near = [&](double squares, double all, double expected) {
      constexpr double kFp16Ulp = 1.0 / 2048;
      out.Check(std::abs(std::sqrt(squares / all) - expected) <= expected * kFp16Ulp,
                what + ": stated error");
    };
    near(sum.k.int4, sum.k.square, errors.k_int4);
    near(sum.k.int2, sum.k.square, errors.k_int2);
    near(sum.v.int4, sum.v.square, errors.v_int4);
    near(sum.v.int2, sum.v.square, errors.v_int2);
  }

  BatchMachine& machine_;
  const GoldenCase& golden_;
  std::string folder_;
  BlockShape shape_;
  Bytes raw_;
};

}  // namespace

void CheckGolden(BatchMachine& machine, const std::string& data_folder, Conformance& out) {
  const std::map<std::string, Errors> errors = LoadErrors(data_folder);
  for (const GoldenCase& golden : GoldenCases()) {
    const Result<Fixture> fixture = Fixture::Load(data_folder + "/" + golden.fixture);
    out.Check(fixture.ok() && errors.contains(golden.name), "load " + golden.fixture);
    if (!fixture.ok() || !errors.contains(golden.name)) continue;
    GoldenBlock block(machine, golden, *fixture, data_folder);
    for (const std::string& codec : golden.codecs) {
      block.CheckRung(RungOf(codec), errors.at(golden.name), out);
      block.CheckRequantized(RungOf(codec), out);
    }
    block.CheckCuts(out);
  }
}

}  // namespace kvtier
