#include "tiers/move.h"

#include <cmath>

#include "tiers/base/clock.h"

namespace kvtier {
namespace {

/// What stands in an image, for the engine's table.
void Describe(const ImageView& image, MoveOutcome& outcome) {
  outcome.codec = image.codec->id;
  outcome.image_bytes = image.bytes.size();
  double k_squares = 0, v_squares = 0;
  for (uint16_t layer = 0; layer < image.identity.shape.layers; ++layer) {
    const double k = image.KError(layer), v = image.VError(layer);
    k_squares += k * k;
    v_squares += v * v;
    outcome.any_raw_layer |= image.table[layer].planes == kPlaneRaw;
  }
  outcome.k_error = static_cast<float>(std::sqrt(k_squares / image.identity.shape.layers));
  outcome.v_error = static_cast<float>(std::sqrt(v_squares / image.identity.shape.layers));
}

Result<ImageView> ReadImage(const BlockIdentity& identity, const Place& place, Medium& medium,
                            MoveScratch& scratch) {
  KVTIER_ASSIGN(const std::span<const std::byte> bytes, medium.Read(place, *scratch.io, scratch.source));
  KVTIER_ASSIGN(ImageView image, ParseImage(bytes));
  KVTIER_TRY(MatchIdentity(image, identity));
  return image;
}

/// The codec of the target for a source in `source`.
const Codec& TargetCodec(CodecId source, const MoveOrder& order) {
  if (CanRequantize(source, *order.codec, order.identity.shape)) return *order.codec;
  const Codec* as_it_is = FindCodec(source);
  KVTIER_CHECK(as_it_is != nullptr);
  return *as_it_is;
}

/// Checks what was built, as a reader would: on error it is not the source that is bad.
Status CheckTarget(const MoveOrder& order, std::span<const std::byte> bytes, MoveOutcome& outcome) {
  const auto check = [&]() -> Status {
    KVTIER_ASSIGN(const ImageView image, ParseImage(bytes));
    KVTIER_TRY(MatchIdentity(image, order.identity));
    // The checksums of a raw image were taken from these very bytes a moment ago, and it is large.
    if (!IsRawCodec(image.codec->id)) KVTIER_TRY(VerifyImage(image));
    Describe(image, outcome);
    return Status::Ok();
  };
  const Status status = check();
  return status.ok() ? status : Status(Code::kInternal, "target does not verify: " + status.message());
}

Status Move(const MoveOrder& order, MoveScratch& scratch, MoveOutcome& outcome) {
  ImageView source;
  if (!order.staged.has_value()) {
    KVTIER_ASSIGN(source, ReadImage(order.identity, order.source, *order.source_medium, scratch));
  }
  const CodecId source_codec =
      order.staged.has_value() ? RawCodecOf(order.identity.shape.dtype) : source.codec->id;
  const Codec& codec = TargetCodec(source_codec, order);

  KVTIER_ASSIGN(const std::span<std::byte> out,
                order.target_medium->BeginWrite(order.target, scratch.target));
  const SteadyClock stopwatch;
  const TimePoint start = stopwatch.Now();
  const std::span<const Fp8Scales> scales =
      order.scales == nullptr ? std::span<const Fp8Scales>{} : std::span(*order.scales);
  const BuiltImage built =
      order.staged.has_value()
          ? EncodeImage(codec, order.identity, order.staged->raw, out, scratch.source, scratch.crew, scales)
          : RequantizeImage(source, codec, order.identity, out, scratch.layers, scratch.crew, scales);
  if (built.status.code() == Code::kOutOfRange) outcome.needed_bytes = built.image_bytes;
  KVTIER_TRY(built.status);
  if (!CanCut(source_codec, codec.id)) {
    outcome.encoded_bytes = RawBlockBytes(order.identity.shape);
    outcome.encode_ns = static_cast<uint64_t>((stopwatch.Now() - start).count());
  }
  KVTIER_TRY(CheckTarget(order, out.first(built.image_bytes), outcome));
  return order.target_medium->FinishWrite(order.target, *scratch.io, out, built.image_bytes, order.meta);
}

void KeepWhatIsUsed(MoveScratch& scratch) {
  scratch.source.ShrinkToUse(kRetainedBounceBytes);
  scratch.target.ShrinkToUse(kRetainedBounceBytes);
  scratch.layers.ShrinkToUse(kRetainedBounceBytes);
}

}  // namespace

void MoveScratch::Trim() {
  source.ShrinkTo(kRetainedBounceBytes);
  target.ShrinkTo(kRetainedBounceBytes);
  layers.ShrinkTo(kRetainedBounceBytes);
}

Status MoveBlock(const MoveOrder& order, MoveScratch& scratch, MoveOutcome& outcome) {
  KVTIER_CHECK(scratch.io != nullptr && order.codec != nullptr && order.target_medium != nullptr);
  KVTIER_CHECK(order.staged.has_value() || order.source_medium != nullptr);
  outcome = {};
  Status status = Move(order, scratch, outcome);
  if (!status.ok()) outcome = {.needed_bytes = outcome.needed_bytes};
  KeepWhatIsUsed(scratch);
  return status;
}

Status VerifyBlock(const BlockIdentity& identity, const Place& place, Medium& medium, MoveScratch& scratch,
                   MoveOutcome& outcome) {
  KVTIER_CHECK(scratch.io != nullptr);
  outcome = {};
  const auto verify = [&]() -> Status {
    KVTIER_ASSIGN(const ImageView image, ReadImage(identity, place, medium, scratch));
    KVTIER_TRY(VerifyImage(image));
    Describe(image, outcome);
    return Status::Ok();
  };
  Status status = verify();
  KeepWhatIsUsed(scratch);
  return status;
}

}  // namespace kvtier
