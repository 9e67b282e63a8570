#include "kernels/simd/quantize_simd.h"

#include "kernels/team.h"

namespace kvtier {

void QuantizeSimd(const QuantizeArgs& args) {
  LaunchSerial(QuantizeLaunch(args.shape), [&](const SerialTeam& team) { Quantize(team, args); });
}

}  // namespace kvtier
