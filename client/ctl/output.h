#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvtier::ctl {

/// A JSON document written front to back. Single-owner.
class JsonWriter {
 public:
  JsonWriter& BeginObject(std::string_view name = {});
  JsonWriter& EndObject();
  JsonWriter& BeginArray(std::string_view name = {});
  JsonWriter& EndArray();
  JsonWriter& Text(std::string_view name, std::string_view value);
  JsonWriter& Number(std::string_view name, uint64_t value);
  JsonWriter& Real(std::string_view name, double value);
  JsonWriter& Bool(std::string_view name, bool value);
  JsonWriter& Element(uint64_t value);
  const std::string& str() const { return out_; }

 private:
  void Separate(std::string_view name);
  void Quote(std::string_view text);

  std::string out_;
  bool first_ = true;
};

/// Columns as wide as their widest cell; numbers to the right. Control characters of cells are shown as \xNN.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  void Row(const std::vector<std::string>& cells);
  std::string str() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// "1.5 GiB".
std::string HumanBytes(uint64_t bytes);
std::string Hex(std::string_view bytes);

}  // namespace kvtier::ctl
