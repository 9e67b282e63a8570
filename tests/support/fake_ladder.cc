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
  }
  return done;
}

Status FakeLadder::Move(const MoveOrder& order, MoveOutcome& outcome) {
  ++moves_;
  Image image{.key = order.identity.key, .name_space = order.identity.name_space, .codec = order.codec->id};
  if (order.staged) {
    std::memcpy(&image.owner, order.staged->raw.data(), sizeof(image.owner));
  } else {
    const std::optional<Image> source = At(order.source);
    if (!source && publish_failed_moves) return Status(Code::kDataLoss, "never written");
    // The source is pinned: it must be there, and be this block.
    KVTIER_CHECK(source && source->key == order.identity.key &&
                 source->name_space == order.identity.name_space);
    if (source->corrupt) return Status(Code::kDataLoss, "corrupt source");
    image.owner = source->owner;
    if (!CanRequantize(source->codec, *order.codec, order.identity.shape)) image.codec = source->codec;
  }
  const Codec& codec = *FindCodec(image.codec);
  uint64_t bytes = PlainImageBytes(codec, order.identity.shape);
  if (has_raw_layer && has_raw_layer(image.owner) && !IsRawCodec(image.codec)) bytes += kRawLayerExtra;
  const bool host = arenas_.contains(order.target.container) &&
                    arenas_.at(order.target.container).tier == order.target.tier;
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
    RecoveredSegment& segment = segments_[{order.target.tier.value, order.target.container}];
    segment.number = order.target.container;
    KVTIER_CHECK(segment.sequence == 0 || segment.sequence == order.target.epoch);
    segment.sequence = order.target.epoch;
    segment.used_bytes = std::max(segment.used_bytes, order.target.offset + order.target.bytes);
  }
  images_[SpotOf(order.target)] = image;
  outcome.codec = image.codec;
  outcome.image_bytes = bytes;
  outcome.k_error = IsRawCodec(image.codec) ? 0.0f : 0.1f;
  outcome.v_error = outcome.k_error;
  return Status::Ok();
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
    index_[{commit->tier.value, commit->item.identity.key}] = commit->item;
  } else if (const auto* erase = std::get_if<EraseJob>(&job.work)) {
    done.status = Erase(*erase);
  } else if (const auto* recycle = std::get_if<RecycleJob>(&job.work)) {
    ++recycles_;
    const uint8_t tier = recycle->tier.value;
    std::erase_if(index_, [&](const auto& item) {
      return item.first.first == tier && item.second.place.container == recycle->segment;
    });
    std::erase_if(images_, [&](const auto& item) {
      return std::get<0>(item.first) == tier && std::get<1>(item.first) == recycle->segment;
    });
    segments_[{tier, recycle->segment}] = {.number = recycle->segment, .sequence = recycle->new_sequence};
  } else if (const auto* model = std::get_if<PutModelJob>(&job.work)) {
    models_[model->model.name_space] = model->model;
  }
  return done;
}

Status FakeLadder::Erase(const EraseJob& erase) {
  for (const ColdRecord& item : erase.items) {
    const auto found = index_.find({erase.tier.value, item.identity.key});
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

void FakeLadder::ForgetArenas() {
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
    if (at.first == tier.value) recovery.blocks.push_back(record);
  }
  for (const auto& [at, segment] : segments_) {
    if (at.first == tier.value) recovery.segments.push_back(segment);
  }
  return recovery;
}

}  // namespace kvtier
