// The tails of blocks on their way: which a cold tier is to keep, which are read, committed and lost.
#include <utility>

#include "codecs/image_layout.h"
#include "daemon/engine/engine_impl.h"
#include "tiers/cold_tail.h"

namespace kvtier {

bool EngineImpl::KeepsTails(const Entry& entry, CodecId source, const Tier& to, Purpose purpose) const {
  const Codec& base = RungOf(ColdPart::kBase);
  if (!to.options.keep_tails || to.options.codec != base.id || purpose == Purpose::kPromote) return false;
  // A floor above the base keeps the block in one image; so do tail blocks, which are too short-lived.
  if (entry.is_tail || entry.floor > base.precision) return false;
  const BlockShape shape = models_.ShapeOf(entry);
  return source != base.id && CanRequantize(source, base, shape) &&
         (IsPlaneFamily(source) || CanRequantize(source, RungOf(ColdPart::kVTail), shape));
}

std::array<uint64_t, kColdTails.size()> EngineImpl::TailBytesFor(const BlockShape& shape, CodecId source,
                                                                 const Tier& to) {
  std::array<uint64_t, kColdTails.size()> tail_bytes{};
  for (const ColdPart part : kColdTails) {
    if (IsPlaneFamily(source) && !CanCut(source, RungOf(part).id)) continue;
    const uint64_t bytes = PlainTailBytes(shape, part);
    if (to.segments->CouldFit(ColdRecordBytes(bytes))) tail_bytes[TailIndex(part)] = bytes;
  }
  return tail_bytes;
}

/// Not those that complete more than the target keeps.
TailPlaces EngineImpl::TailsToRead(const Transfer& transfer) const {
  TailPlaces tails = ladder_.TailsOf(transfer.entry, *transfer.from);
  for (const ColdPart part : kColdTails) {
    const bool above = RungOf(part).precision > transfer.codec->precision;
    if (above && transfer.tail_bytes[TailIndex(part)] == 0) tails[TailIndex(part)] = {};
  }
  return tails;
}

/// Those that were written beside the base, whose record this is.
std::vector<ColdRecord> EngineImpl::TailsToCommit(const Transfer& transfer, const ColdRecord& base) {
  std::vector<ColdRecord> tails;
  for (const ColdPart part : kColdTails) {
    const TailOutcome& tail = transfer.outcome.tails[TailIndex(part)];
    if (tail.code != Code::kOk) ladder_.at(transfer.to).metrics->write_errors.Add();
    if (tail.bytes == 0) continue;
    const Place place = ladder_.TailPlace(transfer.entry, transfer.to, part);
    tails.push_back(TailRecord(base, place, tail.bytes, tail.error));
  }
  return tails;
}

/// The base may be safe while a tail is not: the block goes on without it.
void EngineImpl::LoseTailsNotCommitted(Transfer& transfer, const Completion& completion) {
  Tier& to = ladder_.at(transfer.to);
  for (const ColdPart part : kColdTails) {
    TailOutcome& tail = transfer.outcome.tails[TailIndex(part)];
    if (tail.bytes == 0 || completion.outcome.tails[TailIndex(part)].code == Code::kOk) continue;
    tail = {};
    to.segments->Seal(ladder_.TailPlace(transfer.entry, to.id, part));
    to.metrics->write_errors.Add();
  }
}

void EngineImpl::DropBadTails(const Transfer& transfer) {
  if (!transfer.from) return;
  for (const ColdPart part : kColdTails) {
    DropBadTail(transfer.entry, *transfer.from, transfer.source_tails[TailIndex(part)],
                transfer.outcome.source_tails[TailIndex(part)]);
  }
}

/// A tail that could not be read: damaged ones go, others may be read next time. Whether it went.
bool EngineImpl::DropBadTail(EntryId id, TierId tier, const Place& place, Code code) {
  if (place.bytes == 0 || code == Code::kOk) return false;
  // It may have been given up, or its copy, while it was being read.
  if (!table_.at(id).Has(tier.value) || ladder_.TailPlace(id, tier, place.part) != place) return false;
  TierMetrics& metrics = *ladder_.at(tier).metrics;
  if (code != Code::kDataLoss) {
    metrics.read_errors.Add();
    return false;
  }
  metrics.checksum_failures.Add();
  metrics.tails_damaged[TailIndex(place.part)].Add();
  ladder_.DropTail(id, tier, place.part, Ladder::Erasing::kAlone);
  return true;
}

}  // namespace kvtier
