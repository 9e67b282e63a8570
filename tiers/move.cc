#include "tiers/move.h"

#include <cmath>

#include "codecs/image_layout.h"
#include "tiers/base/clock.h"
#include "tiers/cold_tail.h"

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

/// What was read: a whole image, or a base with the tails that are of use.
struct Source {
  ImageView image;
  std::array<std::optional<TailView>, kColdTails.size()> tails;

  bool has_tails() const { return tails[0].has_value(); }  // V completes what K has completed
};

Result<TailView> CheckTail(const ImageView& base, ColdPart part, Result<std::span<const std::byte>>& bytes) {
  if (!bytes.ok()) return bytes.status();
  KVTIER_ASSIGN(TailView tail, ParseTail(*bytes));
  if (tail.part != part) return Status(Code::kDataLoss, "tail: another part");
  KVTIER_TRY(MatchTail(tail, base));
  return tail;
}

std::vector<Medium::PartRead> ReadsOf(const Place& place, const TailPlaces& tails) {
  std::vector<Medium::PartRead> reads;
  reads.push_back({.place = place});
  for (const Place& tail : tails) {
    if (tail.bytes > 0) reads.push_back({.place = tail});
  }
  return reads;
}

/// Of what was read, base first. A tail that is of no use is left out and reported.
Result<Source> SourceOf(const BlockIdentity& identity, std::span<Medium::PartRead> reads,
                        MoveOutcome& outcome) {
  outcome.source_failed = !reads[0].bytes.ok();
  if (outcome.source_failed) return reads[0].bytes.status();
  Source source;
  KVTIER_ASSIGN(source.image, ParseImage(*reads[0].bytes));
  KVTIER_TRY(MatchIdentity(source.image, identity));
  for (size_t i = 1; i < reads.size(); ++i) {
    const ColdPart part = reads[i].place.part;
    Result<TailView> tail = CheckTail(source.image, part, reads[i].bytes);
    outcome.source_tails[TailIndex(part)] = tail.status().code();
    if (tail.ok()) source.tails[TailIndex(part)] = std::move(tail).value();
  }
  if (!source.has_tails()) source.tails = {};
  return source;
}

/// Reads a base and its tails at once.
std::vector<Medium::PartRead> ReadAll(std::vector<Medium::PartRead> reads, Medium& medium,
                                      MoveScratch& scratch) {
  for (Medium::PartRead& read : reads) {
    const ColdPart part = read.place.part;
    read.bounce = part == ColdPart::kBase ? &scratch.source : &scratch.tails[TailIndex(part)];
  }
  medium.ReadParts(reads, *scratch.io);
  return reads;
}

/// Puts the tails back beside the base, into `out`; damaged ones are left out and reported. An image of 0
/// bytes: nothing but the base is left.
BuiltImage Join(Source& source, std::span<std::byte> out, LayerCrew* crew, MoveOutcome& outcome) {
  while (source.has_tails()) {
    const TailView* v_tail = source.tails[1].has_value() ? &*source.tails[1] : nullptr;
    JoinedImage joined = JoinImage(source.image, *source.tails[0], v_tail, out, crew);
    if (!joined.k_damaged && !joined.v_damaged) return std::move(joined.image);
    if (joined.v_damaged) outcome.source_tails[TailIndex(ColdPart::kVTail)] = Code::kDataLoss;
    if (joined.k_damaged) outcome.source_tails[TailIndex(ColdPart::kKTail)] = Code::kDataLoss;
    source.tails[1].reset();
    if (joined.k_damaged) source.tails[0].reset();
  }
  return {Status::Ok(), 0};
}

uint64_t JoinedBytesMax(const Source& source) {
  uint64_t bytes = source.image.bytes.size();
  for (const auto& tail : source.tails) bytes += tail.has_value() ? tail->bytes.size() : 0;
  return bytes;
}

/// Builds the target's image in `out` from what was staged or read.
BuiltImage BuildTarget(const MoveOrder& order, const Codec& codec, const ImageView& source,
                       std::span<std::byte> out, MoveScratch& scratch) {
  const std::span<const Fp8Scales> scales =
      order.scales == nullptr ? std::span<const Fp8Scales>{} : std::span(*order.scales);
  return order.staged.has_value()
             ? EncodeImage(codec, order.identity, order.staged->raw, out, scratch.source, scratch.crew,
                           scales)
             : RequantizeImage(source, codec, order.identity, out, scratch.layers, scratch.crew, scales);
}

CodecId SourceCodec(const MoveOrder& order, const Source& source) {
  return order.staged.has_value() ? RawCodecOf(order.identity.shape.dtype) : source.image.codec->id;
}

Status BuildAndCount(const MoveOrder& order, const Codec& codec, const Source& source,
                     std::span<std::byte> out, MoveScratch& scratch, MoveOutcome& outcome,
                     uint64_t& image_bytes) {
  const SteadyClock stopwatch;
  const TimePoint start = stopwatch.Now();
  const BuiltImage built = BuildTarget(order, codec, source.image, out, scratch);
  image_bytes = built.image_bytes;
  KVTIER_TRY(built.status);
  if (!CanCut(SourceCodec(order, source), codec.id)) {
    outcome.encoded_bytes = RawBlockBytes(order.identity.shape);
    outcome.encode_ns = static_cast<uint64_t>((stopwatch.Now() - start).count());
  }
  return Status::Ok();
}

/// The most exact image of the plane family that the source gives, in scratch.whole or where it was read:
/// what base and tails are cut from.
Result<ImageView> WholeImage(const MoveOrder& order, Source& source, MoveScratch& scratch,
                             MoveOutcome& outcome) {
  if (source.has_tails()) {
    KVTIER_ASSIGN(const std::span<std::byte> out, scratch.whole.Reserve(JoinedBytesMax(source)));
    const BuiltImage joined = Join(source, out, scratch.crew, outcome);
    KVTIER_TRY(joined.status);
    if (joined.image_bytes > 0) return ParseImage(out.first(joined.image_bytes));
  }
  const CodecId source_codec = SourceCodec(order, source);
  const Codec& int4 = *FindCodec(CodecId::kKv4p);
  if (IsPlaneFamily(source_codec)) return source.image;
  uint64_t bytes = PlainImageBytes(int4, order.identity.shape);
  for (int pass = 0;; ++pass) {
    KVTIER_ASSIGN(const std::span<std::byte> out, scratch.whole.Reserve(bytes));
    const Status built = BuildAndCount(order, int4, source, out, scratch, outcome, bytes);
    if (built.ok()) return ParseImage(out.first(bytes));
    if (built.code() != Code::kOutOfRange || pass > 0) return built;  // raw layers are larger, once
  }
}

/// A tail of `whole` for its place. What goes wrong costs the tail only.
TailOutcome BuildTail(const MoveOrder& order, const ImageView& whole, ColdPart part, MoveWrites& writes) {
  const Place& place = order.target_tails[TailIndex(part)];
  TailOutcome outcome;
  const auto build = [&]() -> Status {
    KVTIER_ASSIGN(const std::span<std::byte> out,
                  order.target_medium->BeginWrite(place, writes.tails[TailIndex(part)]));
    const BuiltImage built = WriteTail(whole, part, out);
    KVTIER_TRY(built.status);
    KVTIER_ASSIGN(const TailView tail, ParseTail(out.first(built.image_bytes)));
    KVTIER_TRY(VerifyTail(tail));
    writes.parts.push_back(
        {.place = place, .built = out, .image_bytes = built.image_bytes, .meta = order.meta});
    outcome.bytes = built.image_bytes;
    outcome.error = tail.Error();
    return Status::Ok();
  };
  outcome.code = build().code();
  return outcome;
}

/// An image, and where the order has places for them, the planes that it leaves out.
Status BuildParts(const MoveOrder& order, Source& source, MoveScratch& scratch, MoveWrites& writes,
                  MoveOutcome& outcome) {
  KVTIER_ASSIGN(ImageView whole, WholeImage(order, source, scratch, outcome));
  MoveOrder base = order;
  base.staged.reset();
  const Codec& codec = TargetCodec(whole.codec->id, order);
  KVTIER_ASSIGN(const std::span<std::byte> out, order.target_medium->BeginWrite(order.target, writes.base));
  const BuiltImage built = BuildTarget(base, codec, whole, out, scratch);
  if (built.status.code() == Code::kOutOfRange) outcome.needed_bytes = built.image_bytes;
  KVTIER_TRY(built.status);
  KVTIER_TRY(CheckTarget(order, out.first(built.image_bytes), outcome));
  outcome.binding = BindingOf(out.first(built.image_bytes));
  writes.parts.push_back(
      {.place = order.target, .built = out, .image_bytes = built.image_bytes, .meta = order.meta});
  if (codec.id != CodecId::kKv2p) return Status::Ok();
  for (const ColdPart part : kColdTails) {
    if (order.target_tails[TailIndex(part)].bytes == 0 || !HasTail(whole, part)) continue;
    TailOutcome& tail = outcome.tails[TailIndex(part)];
    tail = BuildTail(order, whole, part, writes);
    if (tail.bytes == 0) break;  // V completes what K has completed
  }
  return Status::Ok();
}

Status BuildWhole(const MoveOrder& order, Source& source, MoveScratch& scratch, MoveWrites& writes,
                  MoveOutcome& outcome) {
  KVTIER_ASSIGN(const std::span<std::byte> out, order.target_medium->BeginWrite(order.target, writes.base));
  uint64_t image_bytes = 0;
  if (source.has_tails()) {
    const BuiltImage joined = Join(source, out, scratch.crew, outcome);
    if (joined.status.code() == Code::kOutOfRange) outcome.needed_bytes = joined.image_bytes;
    KVTIER_TRY(joined.status);
    image_bytes = joined.image_bytes;
  }
  if (image_bytes == 0) {
    const Codec& codec = TargetCodec(SourceCodec(order, source), order);
    const Status built = BuildAndCount(order, codec, source, out, scratch, outcome, image_bytes);
    if (built.code() == Code::kOutOfRange) outcome.needed_bytes = image_bytes;
    KVTIER_TRY(built);
  }
  KVTIER_TRY(CheckTarget(order, out.first(image_bytes), outcome));
  outcome.binding = BindingOf(out.first(image_bytes));
  writes.parts.push_back(
      {.place = order.target, .built = out, .image_bytes = image_bytes, .meta = order.meta});
  return Status::Ok();
}

Status Build(const MoveOrder& order, std::span<Medium::PartRead> reads, MoveScratch& scratch,
             MoveWrites& writes, MoveOutcome& outcome) {
  Source source;
  if (!order.staged.has_value()) {
    KVTIER_ASSIGN(source, SourceOf(order.identity, reads, outcome));
  }
  const CodecId codec = SourceCodec(order, source);
  const bool splits =
      order.target_tails[0].bytes > 0 &&
      (IsPlaneFamily(codec) || CanRequantize(codec, *FindCodec(CodecId::kKv4p), order.identity.shape));
  return splits ? BuildParts(order, source, scratch, writes, outcome)
                : BuildWhole(order, source, scratch, writes, outcome);
}

void KeepWhatIsUsed(MoveScratch& scratch) {
  scratch.source.ShrinkToUse(kRetainedBounceBytes);
  for (AlignedBuffer& tail : scratch.tails) tail.ShrinkToUse(kRetainedBounceBytes);
  scratch.whole.ShrinkToUse(kRetainedBounceBytes);
}

}  // namespace

void MoveWrites::ShrinkToUse(uint64_t bytes) {
  base.ShrinkToUse(bytes);
  for (AlignedBuffer& tail : tails) tail.ShrinkToUse(bytes);
}

void MoveWrites::ShrinkTo(uint64_t bytes) {
  base.ShrinkTo(bytes);
  for (AlignedBuffer& tail : tails) tail.ShrinkTo(bytes);
}

void MoveScratch::Trim() {
  source.ShrinkTo(kRetainedBounceBytes);
  for (AlignedBuffer& tail : tails) tail.ShrinkTo(kRetainedBounceBytes);
  whole.ShrinkTo(kRetainedBounceBytes);
  writes.ShrinkTo(kRetainedBounceBytes);
  layers.ShrinkTo(kRetainedBounceBytes);
}

std::vector<Medium::PartRead> SourceReads(const MoveOrder& order) {
  KVTIER_CHECK(!order.staged.has_value());
  std::vector<Medium::PartRead> reads = ReadsOf(order.source, order.source_tails);
  // Base and tails are cut from the whole of the plane family.
  const bool splits = order.target_tails[0].bytes > 0;
  reads[0].wanted = splits ? FindCodec(CodecId::kKv4p) : order.codec;
  reads[0].identity = &order.identity;
  if (order.scales != nullptr) reads[0].scales = *order.scales;
  return reads;
}

Status BuildMove(const MoveOrder& order, std::span<Medium::PartRead> reads, MoveScratch& scratch,
                 MoveWrites& writes, MoveOutcome& outcome) {
  KVTIER_CHECK(order.codec != nullptr && order.target_medium != nullptr);
  KVTIER_CHECK(order.staged.has_value() || !reads.empty());
  outcome = {};
  writes.parts.clear();
  Status status = Build(order, reads, scratch, writes, outcome);
  if (!status.ok()) {
    outcome = {.needed_bytes = outcome.needed_bytes, .source_failed = outcome.source_failed};
    writes.parts.clear();
  }
  KeepWhatIsUsed(scratch);
  return status;
}

Status EndMove(MoveWrites& writes, MoveOutcome& outcome) {
  KVTIER_CHECK(!writes.parts.empty());
  Status status = writes.parts[0].status;
  Code tails = Code::kOk;  // V completes what K has completed
  for (size_t i = 1; i < writes.parts.size(); ++i) {
    if (tails == Code::kOk) tails = writes.parts[i].status.code();
    if (tails != Code::kOk) outcome.tails[TailIndex(writes.parts[i].place.part)] = {.code = tails};
  }
  if (!status.ok()) outcome = {};
  writes.parts.clear();
  writes.ShrinkToUse(kRetainedBounceBytes);
  return status;
}

Status MoveBlock(const MoveOrder& order, MoveScratch& scratch, MoveOutcome& outcome) {
  KVTIER_CHECK(scratch.io != nullptr);
  KVTIER_CHECK(order.staged.has_value() || order.source_medium != nullptr);
  std::vector<Medium::PartRead> reads;
  if (!order.staged.has_value()) reads = ReadAll(SourceReads(order), *order.source_medium, scratch);
  KVTIER_TRY(BuildMove(order, reads, scratch, scratch.writes, outcome));
  order.target_medium->FinishWrites(scratch.writes.parts, *scratch.io);
  return EndMove(scratch.writes, outcome);
}

Status VerifyBlock(const BlockIdentity& identity, const Place& place, const TailPlaces& tails, Medium& medium,
                   MoveScratch& scratch, MoveOutcome& outcome) {
  KVTIER_CHECK(scratch.io != nullptr);
  outcome = {};
  const auto verify = [&]() -> Status {
    std::vector<Medium::PartRead> reads = ReadAll(ReadsOf(place, tails), medium, scratch);
    KVTIER_ASSIGN(const Source source, SourceOf(identity, reads, outcome));
    KVTIER_TRY(VerifyImage(source.image));
    Describe(source.image, outcome);
    for (const ColdPart part : kColdTails) {
      const std::optional<TailView>& tail = source.tails[TailIndex(part)];
      if (tail.has_value() && !VerifyTail(*tail).ok()) {
        outcome.source_tails[TailIndex(part)] = Code::kDataLoss;
      }
    }
    return Status::Ok();
  };
  Status status = verify();
  KeepWhatIsUsed(scratch);
  return status;
}

}  // namespace kvtier
