#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tiers/medium.h"

namespace kvtier {

/// A stretch of a client's staging memory, kept mapped while someone holds `keep`. The client can write it at
/// any time.
struct StagedSource {
  std::shared_ptr<const void> keep;
  std::span<const std::byte> raw;  ///< RawBlockBytes of the shape
};

/// One block from one place to another, requantized on the way.
struct MoveOrder {
  BlockIdentity identity;
  RecordMeta meta;
  std::optional<StagedSource> staged;  ///< a put; else the source is a place
  Place source;
  TailPlaces source_tails{};  ///< planes beside it that are to be read as well
  Medium* source_medium = nullptr;
  Place target;
  TailPlaces target_tails{};  ///< for planes that `codec`, int2, leaves out; used where the source has them
  Medium* target_medium = nullptr;
  /// Wanted at the target. A quantized source that cannot be cut to it is copied as it is; a shape that it
  /// does not take (a short tail) stays as it is.
  const Codec* codec = nullptr;
  std::shared_ptr<const std::vector<Fp8Scales>> scales = nullptr;  ///< by layer, of FP8 blocks; null: 1
};

/// What became of a K tail or V tail.
struct TailOutcome {
  Code code = Code::kOk;
  uint64_t bytes = 0;  ///< payload at the target; 0: the source has none, or it could not be written
  float error = 0;     ///< of K, or of V, with it
};

struct MoveOutcome {
  CodecId codec = CodecId::kNone;  ///< what stands at the target
  uint64_t image_bytes = 0;
  bool any_raw_layer = false;
  float k_error = 0, v_error = 0;                      ///< rms over layers, at the target's rung
  uint32_t binding = 0;                                ///< see ColdRecord
  std::array<TailOutcome, kColdTails.size()> tails{};  ///< at the target: one that failed costs itself only
  /// Of the source: not kOk where planes could not be used, kDataLoss where they are damaged or not this
  /// block's. What stands at the target is then the rung that was left.
  std::array<Code, kColdTails.size()> source_tails{};
  uint64_t encoded_bytes = 0;  ///< raw bytes that went through an encoder, and the time that took
  uint64_t encode_ns = 0;
  /// Set when the target was too small: the bytes that the image needs. The Status is kOutOfRange then.
  uint64_t needed_bytes = 0;
  bool source_failed =
      false;  ///< with an error: the source could not be read, and the target was not touched
};

inline constexpr uint64_t kRetainedBounceBytes = uint64_t{4} << 20;

/// What a move writes, base first, and the buffers that hold it until it is written.
struct MoveWrites {
  std::vector<Medium::PartWrite> parts;
  AlignedBuffer base;
  std::array<AlignedBuffer, kColdTails.size()> tails;

  void ShrinkToUse(uint64_t bytes);
  void ShrinkTo(uint64_t bytes);
};

/// Scratch of one worker, reused between moves. A buffer keeps kRetainedBounceBytes, or what the last move
/// that used it needed, until Trim.
struct MoveScratch {
  BlockIo* io = nullptr;
  LayerCrew* crew = nullptr;  ///< null: the worker does every layer itself
  AlignedBuffer source;
  std::array<AlignedBuffer, kColdTails.size()> tails;
  AlignedBuffer whole;  ///< an image that only its parts are written of
  MoveWrites writes;
  AlignedBuffer layers;  ///< decoded ones, on their way into another codec

  /// Gives back all above kRetainedBounceBytes: nothing is to be moved at the moment.
  void Trim();
};

/// The reads of an order's source, base first, without bounce buffers. Not for a put. The order stays until
/// they are done.
std::vector<Medium::PartRead> SourceReads(const MoveOrder& order);

/// Read, verify, requantize, write, verify. On any error the target holds nothing valid and must not be
/// published; `outcome` then carries needed_bytes and source_failed only. kDataLoss means that the *source*
/// is corrupt (or answers to another identity). Threads: any worker; the caller keeps source and target
/// pinned.
Status MoveBlock(const MoveOrder& order, MoveScratch& scratch, MoveOutcome& outcome);

/// MoveBlock in steps, for a caller that does the I/O of many at once. From `reads`, which are SourceReads of
/// the order, done (none for a put), to `writes`, left to the caller. Errors: as MoveBlock, nothing to write.
Status BuildMove(const MoveOrder& order, std::span<Medium::PartRead> reads, MoveScratch& scratch,
                 MoveWrites& writes, MoveOutcome& outcome);
/// Takes what came of the writes into `outcome`. A tail that could not be written costs itself only.
Status EndMove(MoveWrites& writes, MoveOutcome& outcome);

/// Reads the image at `place` and checks header, identity and every part. `outcome` says what stands there,
/// and which of the tails beside it are bad. Errors: the medium's; kUnimplemented; kDataLoss.
Status VerifyBlock(const BlockIdentity& identity, const Place& place, const TailPlaces& tails, Medium& medium,
                   MoveScratch& scratch, MoveOutcome& outcome);

}  // namespace kvtier
