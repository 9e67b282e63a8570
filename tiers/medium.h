#pragma once

#include <memory>
#include <optional>
#include <span>

#include "codecs/codec.h"
#include "tiers/base/aligned_buffer.h"
#include "tiers/base/block_io.h"
#include "tiers/base/status.h"
#include "tiers/image.h"
#include "tiers/place.h"

namespace kvtier {

/// What a persistent record says besides its image, so that a scan can rebuild index and chains.
struct RecordMeta {
  Key parent;
  Precision floor = Precision::kNone;
  bool is_tail = false;
};

class DeviceMedium;

/// What a DeviceMedium wants done between start and end of a read or a write.
struct DeviceRequest {
  std::optional<IoRequest> io;
  std::shared_ptr<const void> keep;  ///< what `io` needs to be there
};

/// The device behind a tier. The engine hands out places; a medium only moves bytes.
/// Threads: any transfer worker with its own BlockIo, concurrently, for different places. Errors: per call;
/// never a partial success.
class Medium {
 public:
  virtual ~Medium() = default;

  /// The image bytes at `place`, at most place.bytes, not yet parsed. Host media return the slot itself,
  /// others read into `bounce` (grown as needed). Valid until the place is freed or `bounce` is used again.
  virtual Result<std::span<const std::byte>> Read(const Place& place, BlockIo& io, AlignedBuffer& bounce) = 0;

  /// One of several reads, and what came of it.
  struct PartRead {
    Place place;
    AlignedBuffer* bounce = nullptr;
    /// Where the image is to become this codec's: a medium whose device encodes may give it so, verified, as
    /// RequantizeImage would. Null: as it stands. Both pointers and the scales stay until the read is done.
    const Codec* wanted = nullptr;
    const BlockIdentity* identity = nullptr;
    std::span<const Fp8Scales> scales = {};
    Result<std::span<const std::byte>> bytes = Status(Code::kInternal, "not read");
    DeviceRequest device = {};
  };
  /// Reads several places, each into its own bounce buffer: at once where the medium can.
  virtual void ReadParts(std::span<PartRead> reads, BlockIo& io) {
    for (PartRead& read : reads) read.bytes = Read(read.place, io, *read.bounce);
  }

  /// Where to build an image of up to place.bytes for `place`: the slot itself (its epoch is bumped first) or
  /// `bounce`.
  virtual Result<std::span<std::byte>> BeginWrite(const Place& place, AlignedBuffer& bounce) = 0;

  /// Puts the finished image, or a tail where place.part says so (a prefix of the span from BeginWrite, of
  /// `image_bytes`) on the medium. For a persistent medium the bytes are written but not yet synced: see
  /// Committer.
  virtual Status FinishWrite(const Place& place, BlockIo& io, std::span<std::byte> built,
                             uint64_t image_bytes, const RecordMeta& meta) = 0;

  /// One of several writes: what FinishWrite takes, and what came of it.
  struct PartWrite {
    Place place;
    std::span<std::byte> built;
    uint64_t image_bytes = 0;
    RecordMeta meta;
    Status status = Status(Code::kInternal, "not written");
    DeviceRequest device = {};
  };
  /// FinishWrite of several places: at once where the medium can.
  virtual void FinishWrites(std::span<PartWrite> writes, BlockIo& io) {
    for (PartWrite& write : writes) {
      write.status = FinishWrite(write.place, io, write.built, write.image_bytes, write.meta);
    }
  }

  /// Null: moving the bytes is a copy.
  virtual DeviceMedium* device() { return nullptr; }
};

/// A medium that moves bytes by requests to a device: its caller may have many of them under way, and do
/// other work meanwhile. Threads, Errors: as Medium.
class DeviceMedium {
 public:
  virtual ~DeviceMedium() = default;
  /// The request that reads the place, in read.device; or an error in read.bytes, and no request.
  virtual void StartRead(Medium::PartRead& read) = 0;
  /// After the request of StartRead: gives read.bytes.
  virtual void EndRead(Medium::PartRead& read) = 0;
  /// Whether StartWrite can go ahead: else FinishWrite has to prepare the device first.
  virtual bool ReadyFor(const Place& place) const = 0;
  /// The same for what FinishWrite does; the result goes to write.status.
  virtual void StartWrite(Medium::PartWrite& write) = 0;
  virtual void EndWrite(Medium::PartWrite& write) = 0;
};

}  // namespace kvtier
