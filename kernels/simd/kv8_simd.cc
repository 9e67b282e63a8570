#include "kernels/simd/kv8_simd.h"

#include "kernels/team.h"

namespace kvtier {

void QuantizeKv8Simd(const QuantizeKv8Args& args) {
  LaunchSerial(Kv8Launch(args.source.shape), [&](const SerialTeam& team) { QuantizeKv8(team, args); });
}

void DequantizeKv8Simd(const DequantizeKv8Args& args) {
  LaunchSerial(Kv8Launch(args.shape), [&](const SerialTeam& team) { DequantizeKv8(team, args); });
}

}  // namespace kvtier
