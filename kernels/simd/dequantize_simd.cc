#include "kernels/simd/dequantize_simd.h"

#include "kernels/team.h"

namespace kvtier {

void DequantizeSimd(const DequantizeArgs& args) {
  LaunchSerial(DequantizeLaunch(args.shape), [&](const SerialTeam& team) { Dequantize(team, args); });
}

}  // namespace kvtier
