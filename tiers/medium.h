#pragma once

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
    Result<std::span<const std::byte>> bytes = Status(Code::kInternal, "not read");
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
  };
  /// FinishWrite of several places: at once where the medium can.
  virtual void FinishWrites(std::span<PartWrite> writes, BlockIo& io) {
    for (PartWrite& write : writes) {
      write.status = FinishWrite(write.place, io, write.built, write.image_bytes, write.meta);
    }
  }
  /// Whether several small blocks at once are faster than one after the other.
  virtual bool likes_batches() const { return false; }
};

}  // namespace kvtier
