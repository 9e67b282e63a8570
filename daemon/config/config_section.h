#pragma once

#include <toml++/toml.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "tiers/base/status.h"
#include "tiers/base/units.h"

namespace kvtier {

/// Reads one table key by key, remembers which keys exist, and names whatever is left.
/// The first error is kept; later calls do nothing, so that a reader is a plain list of keys.
class Section {
 public:
  Section(const toml::table& table, std::string title, std::string_view file)
      : table_(table), title_(std::move(title)), file_(file) {}

  void Text(std::string_view key, std::string& out) {
    if (const toml::node* node = Take(key)) {
      if (const auto value = node->value_exact<std::string>()) {
        // A path with one would end there for the system, and name something else.
        if (value->find('\0') != std::string::npos) return Fail(*node, key, "must not contain a NUL byte");
        out = *value;
      } else {
        Fail(*node, key, "must be a string");
      }
    }
  }
  void Flag(std::string_view key, bool& out) {
    if (const toml::node* node = Take(key)) {
      if (const auto value = node->value_exact<bool>()) {
        out = *value;
      } else {
        Fail(*node, key, "must be true or false");
      }
    }
  }
  template <typename Int>
  void Number(std::string_view key, Int& out, uint64_t min, uint64_t max) {
    const toml::node* node = Take(key);
    if (node == nullptr) return;
    const auto value = node->value_exact<int64_t>();
    if (!value || *value < 0 || static_cast<uint64_t>(*value) < min || static_cast<uint64_t>(*value) > max) {
      return Fail(*node, key,
                  "must be a whole number from " + std::to_string(min) + " to " + std::to_string(max));
    }
    out = static_cast<Int>(*value);
  }
  void Share(std::string_view key, double& out) {
    const toml::node* node = Take(key);
    if (node == nullptr) return;
    const auto value = node->value<double>();
    if (!value || !(*value > 0.0 && *value <= 1.0))
      return Fail(*node, key, "must be a number above 0 and at most 1");
    out = *value;
  }
  /// A share that may be nothing.
  void Part(std::string_view key, double& out, double max) {
    const toml::node* node = Take(key);
    if (node == nullptr) return;
    const auto value = node->value<double>();
    if (!value || !(*value >= 0.0 && *value <= max)) {
      std::ostringstream what;
      what << "must be a number from 0 to " << max;
      return Fail(*node, key, what.str());
    }
    out = *value;
  }
  void Bytes(std::string_view key, uint64_t& out, uint64_t min, uint64_t max) {
    const toml::node* node = Take(key);
    if (node == nullptr) return;
    Result<uint64_t> bytes(Code::kInvalidArgument, "must be a size (examples: 512MiB, 4GiB, 1048576)");
    if (const auto text = node->value_exact<std::string>()) {
      bytes = ParseBytes(*text);
    } else if (const auto number = node->value_exact<int64_t>(); number && *number >= 0) {
      bytes = static_cast<uint64_t>(*number);
    }
    if (!bytes.ok()) return Fail(*node, key, bytes.status().message());
    if (*bytes < min || *bytes > max) {
      return Fail(*node, key, "must be from " + FormatBytes(min) + " to " + FormatBytes(max));
    }
    out = *bytes;
  }
  /// A list of whole numbers of 32 bits, each once.
  void Numbers(std::string_view key, std::vector<uint32_t>& out, size_t most) {
    const toml::node* node = Take(key);
    if (node == nullptr) return;
    const toml::array* list = node->as_array();
    if (list == nullptr) return Fail(*node, key, "must be a list of numbers, as [1000, 1001]");
    if (list->size() > most)
      return Fail(*node, key, "must have at most " + std::to_string(most) + " numbers");
    out.clear();
    for (const toml::node& one : *list) {
      const auto value = one.value_exact<int64_t>();
      // The highest number is nobody, for the system as well.
      if (!value || *value < 0 || *value >= UINT32_MAX)
        return Fail(one, key, "must be whole numbers from 0 to " + std::to_string(UINT32_MAX - 1));
      if (std::find(out.begin(), out.end(), static_cast<uint32_t>(*value)) != out.end())
        return Fail(one, key, std::to_string(*value) + " is there twice");
      out.push_back(static_cast<uint32_t>(*value));
    }
  }

  /// Another check of a key that was read: fails with its line.
  void Check(std::string_view key, const Status& status) {
    if (status.ok() || !status_.ok()) return;
    const toml::node* node = table_.get(key);
    Fail(node != nullptr ? *node : table_, key, status.message(), status.code());
  }
  bool Has(std::string_view key) const { return table_.contains(key); }
  /// A key that was not read this time.
  void Known(std::string_view key) { known_.emplace_back(key); }

  /// After all keys: the first error, or one for a key that nobody asked for.
  Status Finish() {
    for (const auto& [key, node] : table_) {
      if (!status_.ok()) break;
      if (std::find(known_.begin(), known_.end(), key.str()) != known_.end()) continue;
      std::string known;
      for (const std::string& name : known_) known += (known.empty() ? "" : ", ") + name;
      FailAt(key.source(), key.str(), "unknown key (known: " + known + ")", Code::kInvalidArgument);
    }
    return status_;
  }

 private:
  const toml::node* Take(std::string_view key) {
    known_.emplace_back(key);
    return status_.ok() ? table_.get(key) : nullptr;
  }
  void Fail(const toml::node& node, std::string_view key, std::string_view what,
            Code code = Code::kInvalidArgument) {
    FailAt(node.source(), key, what, code);
  }
  void FailAt(const toml::source_region& where, std::string_view key, std::string_view what, Code code) {
    std::ostringstream line;
    line << file_ << ':' << where.begin.line << ": [" << title_ << "] " << key << ": " << what;
    status_ = Status(code, line.str());
  }

  const toml::table& table_;
  const std::string title_;
  const std::string_view file_;
  std::vector<std::string> known_;
  Status status_;
};

/// An error in the file's line of `node`.
inline Status ErrorAt(std::string_view file, const toml::node& node, std::string_view what) {
  std::ostringstream line;
  line << file << ':' << node.source().begin.line << ": " << what;
  return Status(Code::kInvalidArgument, line.str());
}

}  // namespace kvtier
