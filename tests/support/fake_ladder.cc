#include "tests/support/fake_ladder.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "codecs/image_layout.h"
#include "monitoring/metrics.h"
#include "tiers/base/check.h"

namespace kvtier {
namespace {

class NeverCalled final : public Medium {
 public:
  Result<std::span<const std::byte>> Read(const Place&, BlockIo&, AlignedBuffer&) override { return Never(); }
  Result<std::span<std::byte>> BeginWrite(const Place&, AlignedBuffer&) override { return Never(); }
  Status FinishWrite(const Place&, BlockIo&, std::span<std::byte>, uint64_t, const RecordMeta&) override {
    return Never();
  }

 private:
  static Status Never() { return Status(Code::kInternal, "a medium of the fake ladder was called"); }
};

/// How much larger an image is whose layers cannot all be encoded.
constexpr uint64_t kRawLayerExtra = 2048;

}  // namespace

Medium* FakeLadder::medium(TierId tier) {
  static std::array<NeverCalled, kMaxTiers> media;
  return &media[tier.value];
}

Completion FakeLadder::Execute(const Job& job) {
  Completion done{.id = job.id, .status = Status::Ok(), .outcome = {}};
  if (FailsOnLostGpu(job, done)) return done;
  const std::optional<Status> fault = job_fault ? job_fault(job) : std::nullopt;
  if (fault && !publish_failed_moves) {
    done.status = *fault;
    return done;
  }
  if (const auto* move = std::get_if<MoveJob>(&job.work)) {
    const Image before = images_[SpotOf(move->order.target)];
    done.status = Move(move->order, done.outcome);
    if (fault) images_[SpotOf(move->order.target)] = before;
  } else if (const auto* create = std::get_if<CreateArenaJob>(&job.work)) {
    KVTIER_CHECK(arenas_.emplace(create->spec.id.value, create->spec).second);
  } else if (const auto* destroy = std::get_if<DestroyArenaJob>(&job.work)) {
    const auto arena = arenas_.find(destroy->id.value);
    KVTIER_CHECK(arena != arenas_.end());
    std::erase_if(images_, [&](const auto& item) {
      return std::get<0>(item.first) == arena->second.tier.value &&
             std::get<1>(item.first) == destroy->id.value;
    });
    arenas_.erase(arena);
  } else if (const auto* verify = std::get_if<VerifyJob>(&job.work)) {
    const std::optional<Image> image = At(verify->place);
    KVTIER_CHECK(publish_failed_moves || (image && image->key == verify->identity.key));
    if (!image || image->corrupt) done.status = Status(Code::kDataLoss, "corrupt");
    for (const ColdPart part : kColdTails) {
      const Place& place = verify->tails[TailIndex(part)];
      if (place.bytes == 0) continue;
      const std::optional<Image> tail = At(place);
      const bool bad = !tail || tail->corrupt || (tail_read_fault && tail_read_fault(place));
      if (bad) done.outcome.source_tails[TailIndex(part)] = Code::kDataLoss;
    }
  }
  return done;
}

Status FakeLadder::Move(const MoveOrder& order, MoveOutcome& outcome) {
  ++moves_;
  Image image{.key = order.identity.key, .name_space = order.identity.name_space, .codec = order.codec->id};
  Image whole;  // what base and tails are cut from
  whole.codec = CodecId::kKv4p;
  if (order.staged) {
    std::memcpy(&image.owner, order.staged->raw.data(), sizeof(image.owner));
    image.encoding = ++encodings_;
  } else {
    const std::optional<Image> source = ReadParts(order, outcome);
    if (!source && publish_failed_moves) return Status(Code::kDataLoss, "never written");
    // The source is pinned: it must be there, and be this block.
    KVTIER_CHECK(source && source->key == order.identity.key &&
                 source->name_space == order.identity.name_space);
    if (source->corrupt) return Status(Code::kDataLoss, "corrupt source");
    image.owner = source->owner;
    image.encoding = source->encoding;
    if (!CanRequantize(source->codec, *order.codec, order.identity.shape)) image.codec = source->codec;
    whole.codec = IsPlaneFamily(source->codec) ? source->codec : CodecId::kKv4p;
  }
  const Codec& codec = *FindCodec(image.codec);
  uint64_t bytes = PlainImageBytes(codec, order.identity.shape);
  if (has_raw_layer && has_raw_layer(image.owner) && !IsRawCodec(image.codec)) bytes += kRawLayerExtra;
  const bool host = InArena(order.target);
  const uint64_t room = host ? order.target.bytes : order.target.bytes - kColdRecordHeaderBytes;
  if (bytes > room) {
    outcome.needed_bytes = bytes;
    return Status(Code::kOutOfRange, "the target is too small");
  }
  image.epoch = order.target.epoch;
  if (host) {
    const ArenaSpec& arena = arenas_.at(order.target.container);
    KVTIER_CHECK(order.target.slot < arena.slots && order.target.bytes == arena.slot_bytes);
    const auto old = images_.find(SpotOf(order.target));
    KVTIER_CHECK(old == images_.end() || old->second.epoch < image.epoch);
  } else {
    NoteSegment(order.target);
  }
  images_[SpotOf(order.target)] = image;
  whole.owner = image.owner;
  whole.encoding = image.encoding;
  if (!host && image.codec == CodecId::kKv2p) WriteTails(order, whole, outcome);
  outcome.codec = image.codec;
  outcome.image_bytes = bytes;
  outcome.k_error = IsRawCodec(image.codec) ? 0.0f : 0.1f;
  outcome.v_error = outcome.k_error;
  return Status::Ok();
}

/// The image that the base and the tails of the order make, where the source is in parts.
std::optional<FakeLadder::Image> FakeLadder::ReadParts(const MoveOrder& order, MoveOutcome& outcome) const {
  std::optional<Image> image = At(order.source);
  if (!image) return image;
  bool complete = true;
  for (const ColdPart part : kColdTails) {
    const Place& place = order.source_tails[TailIndex(part)];
    const std::optional<Image> tail = place.bytes > 0 ? At(place) : std::nullopt;
    if (place.bytes > 0 && (!tail || tail->corrupt || (tail_read_fault && tail_read_fault(place)))) {
      outcome.source_tails[TailIndex(part)] = Code::kDataLoss;
    } else if (tail) {
      // The source is pinned: its tails are its own, unless they were given up meanwhile.
      const bool own = tail->key == image->key && tail->encoding == image->encoding;
      KVTIER_CHECK(publish_failed_moves || (own && tail->owner == image->owner));
      if (complete) image->codec = tail->codec;
      continue;
    }
    complete = false;
  }
  return image;
}

void FakeLadder::WriteTails(const MoveOrder& order, const Image& whole, MoveOutcome& outcome) {
  for (const ColdPart part : kColdTails) {
    const Place& place = order.target_tails[TailIndex(part)];
    const CodecId rung = part == ColdPart::kKTail ? CodecId::kKv42 : CodecId::kKv4p;
    if (place.bytes == 0 || !CanCut(whole.codec, rung)) continue;
    TailOutcome& tail = outcome.tails[TailIndex(part)];
    if (tail_write_fault && tail_write_fault(place)) {
      tail.code = tail_write_code;
      break;
    }
    NoteSegment(place);
    Image image = whole;
    image.key = order.identity.key;
    image.name_space = order.identity.name_space;
    image.codec = rung;
    image.epoch = place.epoch;
    images_[SpotOf(place)] = image;
    tail.bytes = place.bytes - kColdRecordHeaderBytes;
    tail.error = 0.01f;
  }
}

void FakeLadder::NoteSegment(const Place& place) {
  RecoveredSegment& segment = segments_[{place.tier.value, place.container}];
  segment.number = place.container;
  KVTIER_CHECK(segment.sequence == 0 || segment.sequence == place.epoch);
  KVTIER_CHECK(!segment.part || *segment.part == place.part);
  segment.sequence = place.epoch;
  segment.part = place.part;
  segment.used_bytes = std::max(segment.used_bytes, place.offset + place.bytes);
}

Completion FakeLadder::Execute(const ColdJob& job) {
  Completion done{.id = job.id, .status = Status::Ok(), .outcome = {}};
  if (const std::optional<Status> fault = cold_fault ? cold_fault(job) : std::nullopt) {
    done.status = *fault;
    return done;
  }
  if (const auto* commit = std::get_if<CommitJob>(&job.work)) {
    const std::optional<Image> image = At(commit->item.place);
    KVTIER_CHECK(publish_failed_moves ||
                 (image && image->key == commit->item.identity.key && image->codec == commit->item.codec));
    index_[{commit->tier.value, commit->item.identity.key, ColdPart::kBase}] = commit->item;
    for (const ColdRecord& tail : commit->tails) {
      KVTIER_CHECK(publish_failed_moves || At(tail.place)->encoding == image->encoding);
      index_[{commit->tier.value, tail.identity.key, tail.place.part}] = tail;
    }
  } else if (const auto* erase = std::get_if<EraseJob>(&job.work)) {
    done.status = Erase(*erase);
  } else if (const auto* recycle = std::get_if<RecycleJob>(&job.work)) {
    ++recycles_;
    const uint8_t tier = recycle->tier.value;
    std::erase_if(index_, [&](const auto& item) {
      return std::get<0>(item.first) == tier && item.second.place.container == recycle->segment;
    });
    std::erase_if(images_, [&](const auto& item) {
      return std::get<0>(item.first) == tier && std::get<1>(item.first) == recycle->segment;
    });
    segments_[{tier, recycle->segment}] = {
        .number = recycle->segment, .sequence = recycle->new_sequence, .part = std::nullopt};
  } else if (const auto* model = std::get_if<PutModelJob>(&job.work)) {
    models_[model->model.name_space] = model->model;
  }
  return done;
}

Status FakeLadder::Erase(const EraseJob& erase) {
  for (const ColdRecord& item : erase.items) {
    const auto found = index_.find({erase.tier.value, item.identity.key, item.place.part});
    if (found != index_.end() && found->second.place == item.place) index_.erase(found);
  }
  return Status::Ok();
}

std::optional<FakeLadder::Image> FakeLadder::At(const Place& place) const {
  const auto found = images_.find(SpotOf(place));
  if (found == images_.end() || found->second.epoch != place.epoch) return std::nullopt;
  return found->second;
}

void FakeLadder::Corrupt(const Place& place) {
  images_.at(SpotOf(place)).corrupt = true;
}

void FakeLadder::LoseGpu(TierId tier) {
  lost_gpus_.insert(tier);
  std::erase_if(images_, [tier](const auto& item) { return std::get<0>(item.first) == tier.value; });
}

bool FakeLadder::InArena(const Place& place) const {
  const auto arena = arenas_.find(place.container);
  return arena != arenas_.end() && arena->second.tier == place.tier;
}

bool FakeLadder::FailsOnLostGpu(const Job& job, Completion& done) const {
  bool touched = false;
  done.device_lost = true;
  if (const auto* move = std::get_if<MoveJob>(&job.work)) {
    const MoveOrder& order = move->order;
    done.outcome.source_failed = !order.staged && lost_gpus_.contains(order.source.tier);
    touched = done.outcome.source_failed || lost_gpus_.contains(order.target.tier);
    // The threads of another device, which did the job, do not know the GPU.
    done.device_lost = (order.staged || InArena(order.source)) && InArena(order.target);
  } else if (const auto* create = std::get_if<CreateArenaJob>(&job.work)) {
    touched = lost_gpus_.contains(create->spec.tier);
  } else if (const auto* verify = std::get_if<VerifyJob>(&job.work)) {
    touched = lost_gpus_.contains(verify->place.tier);
  }
  if (touched) {
    done.status = Status(Code::kUnavailable, "GPU lost");
  } else {
    done.device_lost = done.outcome.source_failed = false;
  }
  return touched;
}

void FakeLadder::ForgetArenas() {
  lost_gpus_.clear();
  std::erase_if(images_, [this](const auto& item) {
    const auto arena = arenas_.find(std::get<1>(item.first));
    return arena != arenas_.end() && arena->second.tier.value == std::get<0>(item.first);
  });
  arenas_.clear();
}

ColdRecovery FakeLadder::Recovery(TierId tier) const {
  ColdRecovery recovery;
  for (const auto& [name_space, model] : models_) recovery.models.push_back(model);
  for (const auto& [at, record] : index_) {
    const auto& [at_tier, key, part] = at;
    if (at_tier != tier.value || part != ColdPart::kBase) continue;
    RecoveredBlock& block = recovery.blocks.emplace_back(RecoveredBlock{record, {}, {}});
    for (const ColdPart tail : kColdTails) {
      const auto found = index_.find({at_tier, key, tail});
      if (found == index_.end()) continue;
      const std::optional<Image> base = At(record.place), own = At(found->second.place);
      if (!base || !own || base->encoding != own->encoding) continue;  // an orphan
      (tail == ColdPart::kKTail ? block.k_tail : block.v_tail) = {.place = found->second.place,
                                                                  .error = 0.01f};
    }
  }
  for (const auto& [at, segment] : segments_) {
    if (at.first == tier.value) recovery.segments.push_back(segment);
  }
  return recovery;
}

}  // namespace kvtier
