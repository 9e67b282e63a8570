// Runs a copy of GatherBoostBits with a missing barrier on threads. Built with ThreadSanitizer it must fail:
// canaries_test.cc runs it and reads its report.
//   kvtier_faulty_on_threads none|missing-before-ids|missing-after-ids
#include <cstdio>
#include <string_view>

#include "tests/kernels/faulty_bodies.h"
#include "tests/kernels/plane_buffers.h"
#include "tests/support/teams/thread_team.h"

namespace kvtier {
namespace {

template <BarrierFault fault>
void RunBody() {
  const PlaneBuffers planes(kCanaryShape, 1), out(kCanaryShape, 0x5A);
  const GatherBoostArgs args = {.shape = kCanaryShape, .in = planes.Read(), .out = out.sections()};
  LaunchThreads(GatherBoostLaunch(kCanaryShape), 32,
                [&](const ThreadTeam& team) { FaultyGatherBoostBits<fault>(team, args); });
}

int Main(std::string_view fault) {
  if (fault == "none") {
    RunBody<BarrierFault::kNone>();
  } else if (fault == "missing-before-ids") {
    RunBody<BarrierFault::kMissingBeforeIds>();
  } else if (fault == "missing-after-ids") {
    RunBody<BarrierFault::kMissingAfterIds>();
  } else {
    std::fprintf(stderr, "unknown fault\n");
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace kvtier

int main(int argc, char** argv) {
  return kvtier::Main(argc == 2 ? argv[1] : "");
}
