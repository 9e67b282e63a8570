// kvtier_crash_campaign: see campaign.sh for the arguments. Exit codes: 0 all held, 1 something did not, 2
// usage.
#include <charconv>
#include <cstdio>
#include <string>
#include <string_view>

#include "tests/crash/campaign.h"

namespace {

/// The number after `name`, when argument `at` is that.
bool Take(int argc, char** argv, int& at, std::string_view name, uint32_t& out) {
  if (argv[at] != name || at + 1 >= argc) return false;
  const std::string_view text = argv[++at];
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

bool Take(int argc, char** argv, int& at, std::string_view name, double& out) {
  if (argv[at] != name || at + 1 >= argc) return false;
  const std::string_view text = argv[++at];
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

bool Take(int argc, char** argv, int& at, std::string_view name, std::string& out) {
  if (argv[at] != name || at + 1 >= argc) return false;
  out = argv[++at];
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  kvtier::crash::Options options;
  for (int at = 1; at < argc; ++at) {
    if (Take(argc, argv, at, "--kills", options.kills) || Take(argc, argv, at, "--seed", options.seed) ||
        Take(argc, argv, at, "--work-ms", options.work_ms) ||
        Take(argc, argv, at, "--live-blocks", options.live_blocks) ||
        Take(argc, argv, at, "--rewrite-share", options.rewrite_share) ||
        Take(argc, argv, at, "--after-kill", options.after_kill) ||
        Take(argc, argv, at, "--journal", options.journal))
      continue;
    std::fprintf(stderr,
                 "usage: kvtier_crash_campaign [--kills N] [--seed S] [--work-ms MS] [--live-blocks N]\n"
                 "                             [--rewrite-share S]\n"
                 "                             [--after-kill COMMAND] [--journal FILE]\n");
    return 2;
  }
  const kvtier::crash::Tally tally = kvtier::crash::Campaign(options).Run();
  std::fputs(tally.ToString().c_str(), stdout);
  return tally.Good() ? 0 : 1;
}
