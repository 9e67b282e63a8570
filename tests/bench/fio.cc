#include "tests/bench/fio.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <vector>

namespace kvtier::bench {
namespace {

struct Closer {
  void operator()(FILE* pipe) const { pclose(pipe); }
};

Result<std::string> OutputOf(const std::string& command) {
  std::unique_ptr<FILE, Closer> pipe(popen(command.c_str(), "r"));
  if (!pipe) return Status(Code::kUnavailable, "cannot start a shell");
  std::string output;
  char buffer[4096];
  while (const size_t got = fread(buffer, 1, sizeof(buffer), pipe.get())) output.append(buffer, got);
  const int status = pclose(pipe.release());
  if (status != 0) return Status(Code::kUnavailable, "fio failed: " + output.substr(0, 300));
  return output;
}

/// fio also prints notes, each on a line of its own; empty: no result.
std::string LineOfResult(const std::string& output) {
  std::istringstream stream(output);
  for (std::string line; std::getline(stream, line);)
    if (line.starts_with("3;")) return line;
  return {};
}

}  // namespace

Result<FioResult> RunFio(const FioJob& job) {
  if (std::system("command -v fio >/dev/null 2>&1") != 0)
    return Status(Code::kNotFound, "fio is not installed");
  std::ostringstream command;
  // Terse version 3: one line of fields by number, the same in every release.
  command << "fio --name=job --filename='" << job.file
          << "' --ioengine=io_uring --direct=1 --output-format=terse"
          << " --terse-version=3 --percentile_list=50:99 --bs=" << job.block_bytes
          << " --iodepth=" << job.depth << " --size=" << job.file_bytes / job.block_bytes * job.block_bytes;
  if (job.write) {
    command << " --rw=write --end_fsync=1 --fdatasync=" << job.sync_every;
  } else {
    command << " --rw=randread --time_based --runtime=" << job.seconds;
  }
  KVTIER_ASSIGN(const std::string output, OutputOf(command.str() + " 2>&1"));
  std::vector<std::string> fields;
  std::istringstream result_line(LineOfResult(output));
  for (std::string field; std::getline(result_line, field, ';');) fields.push_back(field);
  // Numbered from 0: reads at 5 (KiB), bandwidth 6 (KiB/s), percentiles from 17; writes 41 further on.
  const size_t base = job.write ? 46 : 5;
  if (fields.size() < base + 14) return Status(Code::kUnavailable, "fio said: " + output.substr(0, 300));
  const auto percentile = [&](size_t at) {
    const size_t equals = fields[at].find('=');
    return equals == std::string::npos ? 0 : std::strtod(fields[at].c_str() + equals + 1, nullptr);
  };
  FioResult result;
  const double runtime_ms = std::strtod(fields[base + 3].c_str(), nullptr);
  result.gbps = std::strtod(fields[base].c_str(), nullptr) * 1024 / (runtime_ms * 1e6);
  result.p50_us = percentile(base + 12);
  result.p99_us = percentile(base + 13);
  return result;
}

}  // namespace kvtier::bench
