#include "tests/support/fault_fs/rules.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <sstream>
#include <utility>

namespace kvtier::fault_fs {
namespace {

/// No operation hangs for longer, so that a test that dies leaves no process behind that cannot be killed.
constexpr std::chrono::seconds kLongestHang{60};

constexpr std::pair<std::string_view, Op> kOps[] = {
    {"open", Op::kOpen},     {"create", Op::kCreate}, {"read", Op::kRead},
    {"write", Op::kWrite},   {"sync", Op::kSync},     {"allocate", Op::kAllocate},
    {"rename", Op::kRename}, {"unlink", Op::kUnlink}, {"other", Op::kOther}};
constexpr std::pair<std::string_view, int> kErrors[] = {
    {"EIO", EIO},     {"ENOSPC", ENOSPC}, {"ENODEV", ENODEV},        {"ENOTCONN", ENOTCONN},
    {"EROFS", EROFS}, {"EINVAL", EINVAL}, {"EOPNOTSUPP", EOPNOTSUPP}};

bool ParseOps(const std::string& text, std::vector<Op>& out) {
  std::istringstream names(text);
  for (std::string name; std::getline(names, name, ',');) {
    if (name == "all") continue;
    const auto found =
        std::find_if(std::begin(kOps), std::end(kOps), [&](const auto& op) { return op.first == name; });
    if (found == std::end(kOps)) return false;
    out.push_back(found->second);
  }
  return true;
}

/// The number after `name` and "=".
std::optional<uint64_t> Value(const std::string& word, std::string_view name) {
  if (!word.starts_with(std::string(name) + "=")) return std::nullopt;
  return std::stoull(word.substr(name.size() + 1));
}

}  // namespace

std::unique_ptr<Rules::Rule> Rules::Parse(const std::string& line) {
  std::istringstream words(line);
  std::string word, ops, action;
  if (!(words >> word >> ops >> action)) return nullptr;
  auto rule = std::make_unique<Rule>();
  if (!ParseOps(ops, rule->ops)) return nullptr;
  const auto error = std::find_if(std::begin(kErrors), std::end(kErrors),
                                  [&](const auto& known) { return known.first == action; });
  if (error != std::end(kErrors)) {
    rule->effect.error = error->second;
  } else if (const auto delay = Value(action, "delay")) {
    rule->delay_ms = static_cast<uint32_t>(*delay);
  } else {
    rule->hang = action == "hang" || action == "stop";
    if (action == "stop") rule->effect.error = EIO;
    rule->effect.halve = action == "short";
    rule->effect.flip = action == "flip";
    rule->effect.lose_sync = action == "lose";
    if (!rule->hang && !rule->effect.halve && !rule->effect.flip && !rule->effect.lose_sync) return nullptr;
  }
  while (words >> word) {
    if (word.starts_with("path=")) {
      rule->path = word.substr(5);
    } else if (const auto after = Value(word, "after")) {
      rule->after = *after;
    } else if (const auto count = Value(word, "count")) {
      rule->count = *count;
    } else if (const auto percent = Value(word, "percent")) {
      rule->percent = static_cast<uint32_t>(*percent);
    } else if (const auto seed = Value(word, "seed")) {
      rule->random.seed(*seed);
    } else if (word == "direct") {
      rule->only_direct = true;
    } else {
      return nullptr;
    }
  }
  return rule;
}

bool Rules::Rule::Matches(Op op, std::string_view at, bool direct) {
  if (!ops.empty() && std::find(ops.begin(), ops.end(), op) == ops.end()) return false;
  if (at.find(path) == std::string_view::npos || (only_direct && !direct)) return false;
  if (matches++ < after || hits >= count) return false;
  return percent >= 100 || random() % 100 < percent;
}

std::optional<std::string> Rules::Command(const std::string& line) {
  std::istringstream words(line);
  std::string word;
  words >> word;
  std::lock_guard lock(mutex_);
  if (word == "fault") {
    std::unique_ptr<Rule> rule = Parse(line);
    if (rule == nullptr) return "error: " + line;
    rules_.push_back(std::move(rule));
    return "rule " + std::to_string(cleared_hits_.size() + rules_.size() - 1);
  }
  if (word == "hits") {
    size_t number = 0;
    words >> number;
    if (number < cleared_hits_.size()) return std::to_string(cleared_hits_[number]);
    number -= cleared_hits_.size();
    return number < rules_.size() ? std::to_string(rules_[number]->hits) : "error: no such rule";
  }
  if (word == "waiting") return std::to_string(waiting_);
  if (word == "clear") {
    for (const auto& rule : rules_) cleared_hits_.push_back(rule->hits);
    rules_.clear();
    ++generation_;
    changed_.notify_all();
    return "ok";
  }
  return std::nullopt;
}

Effect Rules::Apply(Op op, std::string_view path, bool direct) {
  std::unique_lock lock(mutex_);
  const auto found = std::find_if(rules_.begin(), rules_.end(),
                                  [&](const auto& rule) { return rule->Matches(op, path, direct); });
  if (found == rules_.end()) return {};
  Rule& rule = **found;
  ++rule.hits;
  Effect effect = rule.effect;
  effect.random = rule.random();
  if (!rule.hang && rule.delay_ms == 0) return effect;
  const auto longest = rule.hang ? kLongestHang : std::chrono::milliseconds(rule.delay_ms);
  ++waiting_;
  changed_.wait_for(lock, longest, [this, before = generation_] { return generation_ != before; });
  --waiting_;
  return effect;
}

}  // namespace kvtier::fault_fs
