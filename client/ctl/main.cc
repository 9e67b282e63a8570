// kvtierctl: looks into a running daemon and tells it what to do, or into a store or configuration that none
// uses. Exit codes: 0 done, 1 error or damage, 2 usage.
#include <CLI/CLI.hpp>

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include "client/ctl/command_tree.h"
#include "client/ctl/completion.h"
#include "client/ctl/config_check.h"
#include "client/ctl/events.h"
#include "client/ctl/output.h"
#include "client/ctl/size.h"
#include "client/ctl/store_verbs.h"
#include "client/ctl/top.h"
#include "client/ctl/verbs.h"
#include "codecs/image_layout.h"
#include "daemon/policy/model_spec.h"
#include "kvtier/kvtier.h"
#include "tiers/base/units.h"

namespace kvtier::ctl {
namespace {

constexpr int kOk = 0, kError = 1, kUsage = 2;
constexpr char kDefaultSocket[] = "/run/kvtier/kvtierd.sock";
constexpr char kDefaultMetrics[] = "127.0.0.1:9464";

/// Says what it wants instead of a range up to the largest double.
std::string CheckCount(const std::string& text) {
  uint64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  const bool good = error == std::errc() && end == text.data() + text.size() && count > 0;
  return good ? std::string() : "\"" + text + "\" is not a whole number of at least 1";
}

/// An empty name would else be the same as none.
std::string CheckNamed(const std::string& text) {
  return text.empty() ? "must not be empty" : std::string();
}

/// CLI11's ranges take what compares with nothing.
std::string CheckReal(const std::string& text) {
  return std::isnan(std::strtod(text.c_str(), nullptr)) ? "\"" + text + "\" is not a number" : std::string();
}

std::string CheckSize(const std::string& text) {
  return ParseBytes(text).status().message();
}

struct Arguments {
  std::string socket = kDefaultSocket;
  bool json = false;
  uint32_t timeout_s = 600;
  std::string tier;
  uint64_t count = 0;
  uint32_t model = 0;
  uint64_t limit = 0;
  std::string store, key, dtype = "fp16", config_file, shell;
  std::string metrics = kDefaultMetrics;
  double interval_s = 2;
  uint64_t frames = 0;
  bool follow = false;
  SizeRequest size{.block = {.tokens = kMaxTokens}};

  Format format() const { return json ? Format::kJson : Format::kHuman; }
};

using Ask = std::function<Result<std::string>(Verbs&)>;

Result<std::shared_ptr<client::Client>> OpenClient(const Arguments& arguments) {
  client::Client::Options options;
  options.connection = {.socket = arguments.socket, .client_name = "kvtierctl"};
  options.timeout = std::chrono::seconds(2);
  return client::Client::Open(std::move(options));
}

Result<std::string> AskDaemon(const Arguments& arguments, const Ask& ask) {
  KVTIER_ASSIGN(const std::shared_ptr<client::Client> client, OpenClient(arguments));
  Verbs verbs(*client, arguments.format(), std::chrono::seconds(arguments.timeout_s));
  const Result<std::string> text = ask(verbs);
  client->Close();
  return text;
}

/// The verbs of the command line. One more is one more call of Add, or of AddOfDaemon.
class VerbTable {
 public:
  /// Gives back what there is to print.
  using Run = std::function<Result<std::string>()>;

  VerbTable(CLI::App& app, const Arguments& arguments) : app_(app), arguments_(arguments) {}
  CLI::App* Add(const char* name, const char* what, Run does) {
    return AddTo(app_, name, what, std::move(does));
  }
  /// What verbs of two words begin with.
  CLI::App& AddGroup(const char* name, const char* what) {
    CLI::App* group = app_.add_subcommand(name, what);
    group->require_subcommand(1);
    return *group;
  }
  CLI::App* AddTo(CLI::App& group, const char* name, const char* what, Run does) {
    CLI::App* added = group.add_subcommand(name, what);
    added->callback([this, does = std::move(does)] { chosen_ = does; });
    return added;
  }
  CLI::App* AddOfDaemon(const char* name, const char* what, Ask ask) {
    return Add(name, what, [this, ask = std::move(ask)] { return AskDaemon(arguments_, ask); });
  }
  Result<std::string> RunChosen() const { return chosen_(); }

 private:
  CLI::App& app_;
  const Arguments& arguments_;
  Run chosen_;
};

void AddVerbs(VerbTable& verbs, Arguments& arguments) {
  const auto with_tier = [&arguments](CLI::App* added) {
    added->add_option("TIER", arguments.tier, "name or number of the tier")->required()->check(CheckNamed);
    return added;
  };
  const auto with_count = [&arguments](CLI::App* added) {
    added->add_option("N", arguments.count, "how many blocks; all when left out")->check(CheckCount);
  };
  verbs.AddOfDaemon("status", "the daemon and its tiers", [](Verbs& v) { return v.Status(); });
  verbs.AddOfDaemon("tiers", "what the tiers hold", [](Verbs& v) { return v.Tiers(); });
  verbs.AddOfDaemon("models", "registered models of all tenants", [](Verbs& v) { return v.Models(); });
  CLI::App* blocks = verbs.AddOfDaemon("blocks", "blocks of a model",
                                       [&](Verbs& v) { return v.Blocks(arguments.model, arguments.limit); });
  blocks->add_option("MODEL", arguments.model, "number of the model, see `models`")->required();
  blocks->add_option("--limit", arguments.limit, "at most so many blocks");
  verbs
      .AddOfDaemon("explain", "where a block is, and why", [&](Verbs& v) { return v.Explain(arguments.key); })
      ->add_option("KEY", arguments.key, "its key, or as much of it as no other starts with")
      ->required();
  with_count(
      with_tier(verbs.AddOfDaemon("demote", "move the least valuable blocks of a tier one tier down",
                                  [&](Verbs& v) { return v.Demote(arguments.tier, arguments.count); })));
  with_count(with_tier(verbs.AddOfDaemon("evict", "drop the least valuable blocks of a tier", [&](Verbs& v) {
    return v.Evict(arguments.tier, arguments.count);
  })));
  const Ask verify_tier = [&arguments](Verbs& v) { return v.Verify(arguments.tier); };
  CLI::App* verify = verbs.Add(
      "verify", "read and check every block of a tier; of all when none is named", [&arguments, verify_tier] {
        return arguments.store.empty() ? AskDaemon(arguments, verify_tier)
                                       : VerifyStore(arguments.store, arguments.format());
      });
  CLI::Option* tier =
      verify->add_option("TIER", arguments.tier, "name or number of the tier")->check(CheckNamed);
  verify
      ->add_option("--store", arguments.store,
                   "check a cold tier that no daemon uses instead: its folder, or the file or device of a "
                   "CXL tier")
      ->excludes(tier)
      ->check(CheckNamed)
      ->type_name("PATH");
  verbs
      .Add("repair", "make a cold tier's folder whole again, while no daemon uses it",
           [&arguments] { return RepairStore(arguments.store, arguments.format()); })
      ->add_option("--store", arguments.store, "the folder")
      ->required()
      ->check(CheckNamed)
      ->type_name("FOLDER");
  verbs.AddOfDaemon("drain", "make every block durable and take no more puts",
                    [](Verbs& v) { return v.Drain(); });
}

Result<std::string> Top(const Arguments& arguments) {
  if (arguments.json) return Status(Code::kInvalidArgument, "top is for people: it has no JSON");
  const auto interval = std::chrono::duration<double>(arguments.interval_s);
  KVTIER_TRY(ShowTop({.address = arguments.metrics,
                      .interval = std::chrono::duration_cast<Duration>(interval),
                      .frames = arguments.frames},
                     stdout));
  return std::string();
}

void AddTop(VerbTable& verbs, Arguments& arguments) {
  CLI::App* top = verbs.Add("top", "what the daemon does, live, from its metrics",
                            [&arguments] { return Top(arguments); });
  top->add_option("--metrics", arguments.metrics, "where the daemon's metrics are")
      ->envname("KVTIER_METRICS")
      ->capture_default_str();
  top->add_option("--interval", arguments.interval_s, "seconds between two looks")
      ->check(CLI::Range(0.1, 3600.0))
      ->check(CheckReal)
      ->capture_default_str();
  top->add_option("--frames", arguments.frames, "how many looks; until killed when left out")
      ->check(CheckCount);
}

/// With what was left out.
SizeRequest Completed(const Arguments& arguments) {
  SizeRequest request = arguments.size;
  BlockShape& block = request.block;
  block.dtype = arguments.dtype == "fp8"    ? DType::kE4m3
                : arguments.dtype == "bf16" ? DType::kBf16
                                            : DType::kFp16;
  if (block.v_dim == 0) block.v_dim = block.k_dim;
  block.nb = DefaultBoost(block.k_dim);
  return request;
}

Result<std::string> Events(const Arguments& arguments) {
  KVTIER_ASSIGN(const std::shared_ptr<client::Client> client, OpenClient(arguments));
  const Status shown = ShowEvents(*client,
                                  {.until = arguments.follow ? EventsUntil::kForever : EventsUntil::kNow,
                                   .most = arguments.count,
                                   .format = arguments.format(),
                                   .patience = std::chrono::seconds(arguments.timeout_s)},
                                  stdout);
  client->Close();
  KVTIER_TRY(shown);
  return std::string();
}

void AddEvents(VerbTable& verbs, Arguments& arguments) {
  CLI::App* events = verbs.Add("events", "what has happened lately, then how things stand",
                               [&arguments] { return Events(arguments); });
  events->add_flag("--follow", arguments.follow, "and what happens from now on, until killed");
  events->add_option("--count", arguments.count, "end after so many")->check(CheckCount);
}

void AddConfig(VerbTable& verbs, Arguments& arguments) {
  const auto check = [&arguments]() -> Result<std::string> {
    KVTIER_ASSIGN(const std::string daemon, FindDaemonProgram());
    return CheckConfig(daemon, arguments.config_file, arguments.format(),
                       std::chrono::seconds(arguments.timeout_s));
  };
  CLI::App& config = verbs.AddGroup("config", "the configuration of a daemon");
  verbs.AddTo(config, "check", "check a configuration by `kvtierd --check`; asks no running daemon", check)
      ->add_option("FILE", arguments.config_file, "a kvtier.toml")
      ->required()
      ->check(CheckNamed)
      ->type_name("FILE");
}

void AddSize(VerbTable& verbs, Arguments& arguments) {
  CLI::App* size = verbs.Add("size", "what tiers of a size hold of a model; asks no daemon",
                             [&arguments] { return SizeReport(Completed(arguments), arguments.format()); });
  BlockShape& block = arguments.size.block;
  const auto shape = [size](const char* name, uint16_t& value, uint16_t most, const char* what) {
    return size->add_option(name, value, what)->check(CLI::Range(uint16_t{1}, most));
  };
  shape("--layers", block.layers, kMaxLayers, "layers of the model")->required();
  shape("--kv-heads", block.kv_heads, 1024, "KV heads of a layer, of one rank")->required();
  shape("--head-dim", block.k_dim, static_cast<uint16_t>(kMaxHeadDim), "channels of a K head")->required();
  shape("--v-dim", block.v_dim, static_cast<uint16_t>(kMaxHeadDim),
        "channels of a V head; as K when left out");
  size->add_option("--tokens-per-block", block.tokens)
      ->check(CLI::IsMember({64, 128}))
      ->capture_default_str();
  size->add_option("--dtype", arguments.dtype, "of the engine's cache")
      ->check(CLI::IsMember({"fp16", "bf16", "fp8"}))
      ->capture_default_str();
  const auto capacity = [size](const char* name, uint64_t& value, const char* what) {
    size->add_option_function<std::string>(
            name, [&value](const std::string& text) { value = ParseBytes(text).value(); }, what)
        ->check(CheckSize)
        ->type_name("SIZE");
  };
  capacity("--hot", arguments.size.hot_bytes, "capacity of the hot tier, like 4GiB");
  capacity("--warm", arguments.size.warm_bytes, "of the warm one");
  capacity("--cold", arguments.size.cold_bytes, "of the cold one");
  capacity("--segment", arguments.size.segment_bytes, "segment of the cold tier");
  size->add_flag("!--no-tails", arguments.size.keep_tails, "the cold tier has tails = \"never\"");
  size->add_option("--tokens-per-second", arguments.size.tokens_per_second,
                   "new tokens of all engines together: how long a tier lasts")
      ->check(CLI::PositiveNumber)
      ->check(CheckReal);
}

std::string CompletionOf(const CLI::App& app, const std::string& shell) {
  const Command program = CommandTree(app);
  return shell == "bash"  ? BashCompletion(program)
         : shell == "zsh" ? ZshCompletion(program)
                          : FishCompletion(program);
}

void AddCompletion(VerbTable& verbs, const CLI::App& app, Arguments& arguments) {
  verbs
      .Add("completion", "print what makes a shell complete kvtierctl's command line",
           [&app, &arguments]() -> Result<std::string> { return CompletionOf(app, arguments.shell); })
      ->add_option("SHELL", arguments.shell, "whose")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
}

int Fail(const kvtier::Status& status, Format format) {
  if (format == Format::kJson) {
    JsonWriter json;
    json.BeginObject().Text("error", CodeName(status.code())).Text("message", status.message()).EndObject();
    std::printf("%s\n", json.str().c_str());
  } else {
    std::fprintf(stderr, "kvtierctl: %s\n", Printable(status.ToString()).c_str());
  }
  return kError;
}

int Print(const Result<std::string>& text, Format format) {
  if (text.ok()) {
    std::fputs(text.value().c_str(), stdout);
    return kOk;
  }
  // A verify that found damage has its figures to print all the same.
  if (text.status().code() == Code::kDataLoss && text.status().message().ends_with('\n')) {
    std::fputs(text.status().message().c_str(), stdout);
    return kError;
  }
  return Fail(text.status(), format);
}

int Main(int argc, char** argv) {
  CLI::App app("Looks into a running kvtierd and tells it what to do.", "kvtierctl");
  app.set_version_flag("--version", std::string("kvtierctl ") + kvtier_version());
  Arguments arguments;
  app.add_option("--socket", arguments.socket, "the daemon's socket")
      ->envname("KVTIER_SOCKET")
      ->type_name("PATH")
      ->capture_default_str();
  app.add_option("--timeout", arguments.timeout_s, "seconds to wait for an answer")
      ->check(CLI::Range(1, 86'400))
      ->capture_default_str();
  app.add_flag("--json", arguments.json, "one JSON object instead of text for people");
  app.require_subcommand(1);
  app.fallthrough();
  VerbTable verbs(app, arguments);
  AddVerbs(verbs, arguments);
  AddTop(verbs, arguments);
  AddEvents(verbs, arguments);
  AddConfig(verbs, arguments);
  AddCompletion(verbs, app, arguments);
  AddSize(verbs, arguments);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kOk : kUsage;
  }
  return Print(verbs.RunChosen(), arguments.format());
}

}  // namespace
}  // namespace kvtier::ctl

int main(int argc, char** argv) {
  return kvtier::ctl::Main(argc, argv);
}
