#include "tiers/cuda/gpu_arenas.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <string>
#include <utility>

namespace kvtier {
namespace {

/// What is wrong with a device, whatever CUDA calls it, means that it cannot be used now.
Status OfDevice(const Status& status) {
  const bool as_it_is = status.ok() || status.code() == Code::kResourceExhausted;
  return as_it_is ? status : Status(Code::kUnavailable, status.message());
}

uint64_t HeaderBytes(const BlockShape& shape) {
  return AlignUp(kImageHeaderBytes + kLayerEntryBytes * shape.layers, kImageAlign);
}

}  // namespace

struct GpuArenas::Arena {
  Arena(const ArenaSpec& made, DeviceBuffer buffer)
      : spec(made), memory(std::move(buffer)), epochs(made.slots) {}

  const ArenaSpec spec;
  const DeviceBuffer memory;
  std::vector<std::atomic<uint64_t>> epochs;  ///< what device memory says, for the host

  std::byte* EpochAddress(uint32_t slot) const { return memory.data() + uint64_t{slot} * sizeof(uint64_t); }
  bool HasSlot(const Place& place) const {
    return place.slot < spec.slots &&
           place.offset == ArenaHeaderBytes(spec.slots) + place.slot * spec.slot_bytes &&
           place.bytes <= spec.slot_bytes;
  }
};

/// A read on its way.
struct GpuArenas::Pending {
  PartRead* read = nullptr;
  std::shared_ptr<Arena> arena;  ///< stays until it has been read
  const std::byte* source = nullptr;
  std::span<std::byte> target;
  bool is_done = false;

  /// What the encoder is to make of it, from its header and table in `target`; nothing where the host is to
  /// see to it.
  std::optional<GpuEncodeOrder> Order() const;
};

std::optional<GpuEncodeOrder> GpuArenas::Pending::Order() const {
  if (read->wanted == nullptr) return std::nullopt;
  const Result<ImageView> image = ParseImage(target);
  if (!image.ok() || !MatchIdentity(*image, *read->identity).ok()) return std::nullopt;
  const CodecId codec = image->codec->id;
  const bool encodes =
      CanRequantize(codec, *read->wanted, read->identity->shape) && !CanCut(codec, read->wanted->id);
  if (!encodes) return std::nullopt;
  GpuEncodeOrder order;
  order.identity = *read->identity;
  order.codec = read->wanted;
  order.out = target;
  for (size_t i = 0; i < image->table.size(); ++i) {
    const ImageLayout::Part& base = image->layout.layers[i][static_cast<int>(Region::kBase)];
    const bool is_raw = IsRawCodec(codec) || image->table[i].planes == kPlaneRaw;
    order.layers.push_back({.shape = image->identity.shape,
                            .coding = is_raw ? LayerCoding::kRaw : LayerCoding::kKv8,
                            .scales = read->scales.empty() ? Fp8Scales{} : read->scales[i],
                            .base = reinterpret_cast<const uint8_t*>(source + base.offset)});
    order.checks.push_back(
        {.bytes = base.bytes, .crc = image->table[i].crc[static_cast<int>(Region::kBase)]});
  }
  return order;
}

GpuArenas::~GpuArenas() = default;

Status GpuArenas::Create(const ArenaSpec& spec) {
  const bool fits = spec.slots > 0 && spec.slot_bytes > 0 && spec.slot_bytes % kSlotAlign == 0 &&
                    spec.slot_bytes <= options_.capacity_bytes / spec.slots;
  if (!fits) return Status(Code::kInvalidArgument, "an arena of impossible size");
  const uint64_t bytes = ArenaBytes(spec.slots, spec.slot_bytes);
  {
    std::lock_guard lock(mutex_);
    if (arenas_.contains(spec.id.value)) return Status(Code::kAlreadyExists, "this arena exists");
    if (bytes > options_.capacity_bytes - allocated_bytes_) {
      return Status(Code::kResourceExhausted, "no room in the GPU tier");
    }
    allocated_bytes_ += bytes;
  }
  const auto make = [&]() -> Result<std::shared_ptr<Arena>> {
    KVTIER_ASSIGN(DeviceBuffer memory, device_.Allocate(bytes));
    const std::vector<std::byte> zeros(ArenaHeaderBytes(spec.slots));
    KVTIER_ASSIGN(std::unique_ptr<GpuTransfers> transfers, Borrow());
    const std::array clear = {GpuUpload{.source = zeros, .target = memory.data()}};
    const Status cleared = transfers->Upload(clear);
    GiveBack(std::move(transfers));
    KVTIER_TRY(cleared);
    return std::make_shared<Arena>(spec, std::move(memory));
  };
  Result<std::shared_ptr<Arena>> arena = make();
  std::lock_guard lock(mutex_);
  if (arena.ok() && arenas_.emplace(spec.id.value, std::move(*arena)).second) return Status::Ok();
  allocated_bytes_ -= bytes;
  return arena.ok() ? Status(Code::kAlreadyExists, "this arena exists") : OfDevice(arena.status());
}

void GpuArenas::Destroy(ArenaId id) {
  std::shared_ptr<Arena> arena;  // freed after the lock is released
  std::lock_guard lock(mutex_);
  const auto found = arenas_.find(id.value);
  if (found == arenas_.end()) return;
  arena = std::move(found->second);
  arenas_.erase(found);
  allocated_bytes_ -= arena->memory.size();
}

Result<CudaHandle> GpuArenas::Export(ArenaId id) {
  const std::shared_ptr<Arena> arena = Find(id.value);
  if (arena == nullptr) return Status(Code::kNotFound, "no such arena");
  return device_.Export(arena->memory);
}

uint64_t GpuArenas::allocated_bytes() const {
  std::lock_guard lock(mutex_);
  return allocated_bytes_;
}

std::shared_ptr<GpuArenas::Arena> GpuArenas::Find(uint32_t id) const {
  std::lock_guard lock(mutex_);
  const auto found = arenas_.find(id);
  return found == arenas_.end() ? nullptr : found->second;
}

Result<std::shared_ptr<GpuArenas::Arena>> GpuArenas::Resolve(const Place& place) const {
  std::shared_ptr<Arena> arena = Find(place.container);
  if (arena == nullptr) return Status(Code::kNotFound, "no arena " + std::to_string(place.container));
  if (arena->HasSlot(place)) return arena;
  return Status(Code::kInvalidArgument, "not a slot of arena " + std::to_string(place.container));
}

Result<std::unique_ptr<GpuTransfers>> GpuArenas::Borrow() {
  std::unique_ptr<GpuTransfers> transfers;
  {
    std::lock_guard lock(mutex_);
    if (lent_ == options_.concurrent_calls) {
      return Status(Code::kResourceExhausted, "more threads use the GPU than were announced");
    }
    ++lent_;
    if (!idle_.empty()) {
      transfers = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (transfers != nullptr) return transfers;
  Result<std::unique_ptr<GpuTransfers>> made = GpuTransfers::Make(device_);
  if (!made.ok()) GiveBack(nullptr);
  return made;
}

void GpuArenas::GiveBack(std::unique_ptr<GpuTransfers> transfers) {
  std::lock_guard lock(mutex_);
  --lent_;
  if (transfers != nullptr) idle_.push_back(std::move(transfers));
}

Result<std::span<const std::byte>> GpuArenas::Read(const Place& place, BlockIo& io, AlignedBuffer& bounce) {
  std::array<PartRead, 1> read;
  read[0].place = place;
  read[0].bounce = &bounce;
  ReadParts(read, io);
  return std::move(read[0].bytes);
}

Result<GpuArenas::Pending> GpuArenas::Prepare(PartRead& read) const {
  KVTIER_ASSIGN(std::shared_ptr<Arena> arena, Resolve(read.place));
  if (arena->epochs[read.place.slot].load(std::memory_order_acquire) != read.place.epoch) {
    return Status(Code::kStale, "the slot has another epoch");
  }
  KVTIER_ASSIGN(const std::span<std::byte> target, read.bounce->Reserve(read.place.bytes));
  const std::byte* const source = arena->memory.data() + read.place.offset;
  return Pending{
      .read = &read, .arena = std::move(arena), .source = source, .target = target.first(read.place.bytes)};
}

void GpuArenas::ReadParts(std::span<PartRead> reads, BlockIo& /*io*/) {
  std::vector<Pending> pending;
  for (PartRead& read : reads) {
    Result<Pending> prepared = Prepare(read);
    if (prepared.ok()) {
      pending.push_back(std::move(*prepared));
    } else {
      read.bytes = prepared.status();
    }
  }
  if (pending.empty()) return;
  Result<std::unique_ptr<GpuTransfers>> transfers = Borrow();
  const Status status = transfers.ok() ? ReadAll(pending, **transfers) : transfers.status();
  if (transfers.ok()) GiveBack(std::move(*transfers));
  for (const Pending& one : pending) {
    if (!one.is_done) one.read->bytes = OfDevice(status);
  }
}

Status GpuArenas::ReadAll(std::span<Pending> pending, GpuTransfers& transfers) {
  const bool any_wanted =
      std::ranges::any_of(pending, [](const Pending& one) { return one.read->wanted != nullptr; });
  std::unique_ptr<GpuEncoder> encoder;
  if (any_wanted) {
    std::lock_guard lock(mutex_);
    encoder = std::move(encoder_);
  }
  if (encoder != nullptr) {
    const Status status = ReadEncoded(pending, *encoder, transfers);
    std::lock_guard lock(mutex_);
    encoder_ = std::move(encoder);
    if (!status.ok()) return status;
  }
  std::vector<GpuDownload> parts;
  for (const Pending& one : pending) {
    if (!one.is_done) parts.push_back({.source = one.source, .target = one.target});
  }
  KVTIER_TRY(transfers.Download(parts));
  for (Pending& one : pending) {
    if (!std::exchange(one.is_done, true)) one.read->bytes = std::span<const std::byte>(one.target);
  }
  return Status::Ok();
}

/// Those of which the encoder can make what is wanted. The others, and what it cannot do, are left to the
/// host.
Status GpuArenas::ReadEncoded(std::span<Pending> pending, GpuEncoder& encoder, GpuTransfers& transfers) {
  std::vector<GpuDownload> headers;
  for (const Pending& one : pending) {
    if (one.read->wanted == nullptr) continue;
    const uint64_t bytes = std::min(HeaderBytes(one.read->identity->shape), one.read->place.bytes);
    headers.push_back({.source = one.source, .target = one.target.first(bytes)});
  }
  KVTIER_TRY(transfers.Download(headers));
  std::vector<GpuEncodeOrder> orders;
  std::vector<Pending*> ordered;
  for (Pending& one : pending) {
    std::optional<GpuEncodeOrder> order = one.Order();
    if (!order.has_value()) continue;
    orders.push_back(*std::move(order));
    ordered.push_back(&one);
  }
  if (orders.empty()) return Status::Ok();
  encoder.Encode(orders);
  for (size_t i = 0; i < orders.size(); ++i) {
    const BuiltImage& built = orders[i].built;
    if (built.status.ok()) {
      ordered[i]->read->bytes = std::span<const std::byte>(ordered[i]->target.first(built.image_bytes));
    } else if (built.status.code() == Code::kDataLoss) {
      ordered[i]->read->bytes = built.status;
    } else {
      continue;
    }
    ordered[i]->is_done = true;
  }
  return Status::Ok();
}

Result<std::span<std::byte>> GpuArenas::BeginWrite(const Place& place, AlignedBuffer& bounce) {
  KVTIER_TRY(device_.Usable());
  KVTIER_ASSIGN(const std::shared_ptr<Arena> arena, Resolve(place));
  std::atomic<uint64_t>& epoch = arena->epochs[place.slot];
  if (epoch.load(std::memory_order_relaxed) > place.epoch) {
    return Status(Code::kStale, "the slot has a newer epoch");
  }
  epoch.store(place.epoch, std::memory_order_release);
  KVTIER_ASSIGN(const std::span<std::byte> room, bounce.Reserve(place.bytes));
  return room.first(place.bytes);
}

Status GpuArenas::FinishWrite(const Place& place, BlockIo& io, std::span<std::byte> built,
                              uint64_t image_bytes, const RecordMeta& meta) {
  std::array<PartWrite, 1> write;
  write[0].place = place;
  write[0].built = built;
  write[0].image_bytes = image_bytes;
  write[0].meta = meta;
  FinishWrites(write, io);
  return write[0].status;
}

void GpuArenas::FinishWrites(std::span<PartWrite> writes, BlockIo& /*io*/) {
  std::vector<std::shared_ptr<Arena>> arenas;  // stay until they have been written
  std::vector<GpuUpload> parts;
  for (PartWrite& write : writes) {
    Result<std::shared_ptr<Arena>> arena = Resolve(write.place);
    write.status = arena.status();
    if (!arena.ok()) continue;
    KVTIER_CHECK(write.image_bytes <= write.place.bytes && write.image_bytes <= write.built.size());
    parts.push_back({.source = std::as_bytes(std::span(&write.place.epoch, 1)),
                     .target = (*arena)->EpochAddress(write.place.slot)});
    parts.push_back({.source = write.built.first(write.image_bytes),
                     .target = (*arena)->memory.data() + write.place.offset});
    arenas.push_back(std::move(*arena));
  }
  if (parts.empty()) return;
  Result<std::unique_ptr<GpuTransfers>> transfers = Borrow();
  const Status status = transfers.ok() ? (*transfers)->Upload(parts) : transfers.status();
  if (transfers.ok()) GiveBack(std::move(*transfers));
  for (PartWrite& write : writes) {
    if (write.status.ok()) write.status = OfDevice(status);
  }
}

}  // namespace kvtier
