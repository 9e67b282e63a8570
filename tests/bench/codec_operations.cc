#include "tests/bench/codec_operations.h"

namespace kvtier::bench {
namespace {

bool IsPlaneFamily(const Codec& codec) {
  return codec.id == CodecId::kKv4p || codec.id == CodecId::kKv42 || codec.id == CodecId::kKv2p;
}

std::optional<SpeedBound> DramDecodeBound(const Codec& codec, Destination destination) {
  if (codec.id == CodecId::kKv8 && destination == Destination::kContiguous)
    return SpeedBound{.ratio = 0.6, .aim = 0.9};
  if (!IsPlaneFamily(codec)) return std::nullopt;
  switch (destination) {
    case Destination::kContiguous:
      return SpeedBound{.ratio = 1.3, .aim = 1.75};
    case Destination::kPaged:
      return SpeedBound{.ratio = 1.2, .aim = 1.6};
    case Destination::kRotatedV:
      return SpeedBound{.ratio = 1.5, .aim = 1.9};
    default:
      return std::nullopt;
  }
}

}  // namespace

std::string OperationName(const Operation& operation) {
  if (operation.source) {
    Operation usual = operation;
    usual.source.reset();
    return OperationName(usual) + (*operation.source == DType::kBf16 ? " of bf16" : " of e4m3");
  }
  switch (operation.work) {
    case Work::kEncode:
      return "encode";
    case Work::kDecode:
      return std::string("decode ") + DestinationName(operation.destination);
    case Work::kDecodeAndVerify:
      return "decode and check";
    case Work::kCut:
      return "to " + std::string(operation.to->name);
  }
  return "";
}

std::vector<Operation> OperationsOf(const Codec& codec, DType source) {
  if (source != SourcesOf(codec).front()) {
    // Raw layers are converted on their way out, others on their way in.
    return {{.work = IsRawCodec(codec.id) ? Work::kDecode : Work::kEncode, .source = source}};
  }
  std::vector<Operation> operations = {{.work = Work::kEncode}};
  for (const Destination destination : kDestinations)
    operations.push_back({.work = Work::kDecode, .destination = destination});
  operations.push_back({.work = Work::kDecodeAndVerify});
  for (const Codec* to : AllCodecs())
    if (to != &codec && CanCut(codec.id, to->id)) operations.push_back({.work = Work::kCut, .to = to});
  return operations;
}

void RunOnLayer(CodecWork& work, const Operation& operation, uint32_t layer, Stores stores) {
  switch (operation.work) {
    case Work::kEncode:
      return work.Encode(layer);
    case Work::kDecode:
      return work.Decode(layer, operation.destination, stores);
    case Work::kDecodeAndVerify:
      return work.DecodeAndVerify(layer, stores);
    case Work::kCut:
      return work.Cut(layer, *operation.to);
  }
}

std::optional<SpeedBound> BoundOf(const Codec& codec, const Operation& operation, Residency residency) {
  if (operation.source) return std::nullopt;
  if (residency == Residency::kCache) {
    const bool bound = IsPlaneFamily(codec) && operation.work == Work::kDecode &&
                       operation.destination == Destination::kContiguous;
    return bound ? std::optional(SpeedBound{.ratio = 0.45, .aim = 0.45, .gbps_instead = 25}) : std::nullopt;
  }
  switch (operation.work) {
    case Work::kDecode:
      return DramDecodeBound(codec, operation.destination);
    case Work::kEncode:
      if (codec.id == CodecId::kKv4p) return SpeedBound{.ratio = 0.55, .aim = 0.85};
      if (codec.id == CodecId::kKv8) return SpeedBound{.ratio = 0.6, .aim = 0.9};
      return std::nullopt;
    case Work::kCut:
      if (codec.id != CodecId::kKv4p) return std::nullopt;
      return operation.to->id == CodecId::kKv42 ? SpeedBound{.ratio = 3, .aim = 4.5}
                                                : SpeedBound{.ratio = 1.7, .aim = 3};
    case Work::kDecodeAndVerify:
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace kvtier::bench
