#include <cstdio>

#include "kernels/simd/dispatch.h"
#include "tests/bench/codecs.h"
#include "tests/bench/machine.h"

namespace kvtier::bench {
namespace {

const char* Verdict(const CodecLine& line) {
  return line.Holds() ? "ok" : "NOT YET";
}

/// Numbers with a width of their own, or a dash.
std::string Cell(double value) {
  if (value == 0) return "-";
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", value);
  return text;
}

void PrintBound(const CodecLine& line) {
  if (line.checksum_share) {
    std::printf("  checksums add %.0f %% (bound %.0f) %s, aim %.0f", *line.checksum_share * 100,
                kChecksumShareMax * 100, Verdict(line), kChecksumShareAim * 100);
  } else if (line.bound && line.bound->gbps_instead > 0) {
    std::printf("  bound %.2f or %.0f GB/s %s", line.bound->ratio, line.bound->gbps_instead, Verdict(line));
  } else if (line.bound) {
    std::printf("  bound %.2f %s, aim %.2f of the better: %.2f", line.bound->ratio, Verdict(line),
                line.bound->aim, line.to_best);
  }
  std::printf("\n");
}

}  // namespace

void PrintCodecTable(const std::vector<CodecLine>& lines) {
  for (const Field& field : DescribeMachine()) std::printf("%-10s %s\n", field.name, field.value.c_str());
  std::printf("%-10s %s\n", "simd", std::string(SimdLevelName(CurrentSimdLevel())).c_str());
  std::printf("\n%-6s %-25s %-12s %-5s %7s %7s %9s %10s\n", "codec", "operation", "shape", "set", "threads",
              "GB/s", "x memcpy", "x nt copy");
  for (const CodecLine& line : lines) {
    std::printf("%-6s %-25s %-12s %-5s %7u %7.2f %9s %10s", line.codec.c_str(), line.operation.c_str(),
                line.shape.c_str(), line.residency.c_str(), line.threads, line.gbps,
                Cell(line.to_memcpy).c_str(), Cell(line.to_stream).c_str());
    PrintBound(line);
  }
}

void PrintCodecJson(const std::vector<CodecLine>& lines) {
  std::printf("{\"benchmark\": \"codecs\", \"machine\": {");
  for (const Field& field : DescribeMachine())
    std::printf("\"%s\": \"%s\", ", field.name, field.value.c_str());
  std::printf("\"simd\": \"%s\"}, \"lines\": [", std::string(SimdLevelName(CurrentSimdLevel())).c_str());
  const char* comma = "";
  for (const CodecLine& line : lines) {
    std::printf(
        "%s\n  {\"codec\": \"%s\", \"operation\": \"%s\", \"shape\": \"%s\", \"set\": \"%s\", "
        "\"threads\": %u, \"gbps\": %.3f, \"to_memcpy\": %.3f, \"to_stream\": %.3f, \"to_best\": %.3f",
        comma, line.codec.c_str(), line.operation.c_str(), line.shape.c_str(), line.residency.c_str(),
        line.threads, line.gbps, line.to_memcpy, line.to_stream, line.to_best);
    if (line.checksum_share)
      std::printf(", \"checksum_share\": %.3f, \"bound\": %.2f", *line.checksum_share, kChecksumShareMax);
    if (line.bound) std::printf(", \"bound\": %.2f, \"aim\": %.2f", line.bound->ratio, line.bound->aim);
    if (line.bound || line.checksum_share) std::printf(", \"ok\": %s", line.Holds() ? "true" : "false");
    std::printf("}");
    comma = ",";
  }
  std::printf("]}\n");
}

}  // namespace kvtier::bench
