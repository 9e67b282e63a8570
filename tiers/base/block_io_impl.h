#pragma once

#include "tiers/base/block_io.h"

/// What the two kinds of BlockIo share; for block_io*.cc only.
namespace kvtier {

/// EINTR and EAGAIN in a row on one request before it fails.
inline constexpr uint32_t kMaxIoRetries = 16;
/// The kernel moves at most about 2 GiB a call; longer requests take several.
inline constexpr uint64_t kMaxIoCallBytes = uint64_t{1} << 30;

/// How far one request has come.
struct IoProgress {
  uint64_t done_bytes = 0;
  uint32_t retries = 0;
};

enum class IoStep : uint8_t { kAgain, kFinished };

/// Takes what the kernel returned for the rest of `request` (a count, or minus errno) and says whether to
/// call again. On kFinished request.status is final.
IoStep AdvanceRequest(IoRequest& request, IoProgress& progress, int64_t returned);

std::unique_ptr<BlockIo> MakeSyncBlockIo();
/// Errors: kUnavailable where a ring cannot be set up.
Result<std::unique_ptr<BlockIo>> MakeUringBlockIo();

}  // namespace kvtier
