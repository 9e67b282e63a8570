#include "kernels/simd/boost_simd.h"

#include "kernels/team.h"

namespace kvtier {

void GatherBoostSimd(const GatherBoostArgs& args) {
  LaunchSerial(GatherBoostLaunch(args.shape), [&](const SerialTeam& team) { GatherBoostBits(team, args); });
}

}  // namespace kvtier
