#pragma once

#include <array>
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

/// Values of Precision.
inline constexpr std::array<const char*, 6> kPrecisionNames = {"none", "int2",  "k4v2",
                                                               "int4", "bits8", "bits16"};
/// Its number where it has no name.
std::string PrecisionName(uint32_t precision);
/// "1.5 GiB".
std::string HumanBytes(uint64_t bytes);
/// "250 us", "90.5 s", "2.5 min", "3.0 h", "4.0 d".
std::string HumanSeconds(double seconds);
std::string Hex(std::string_view bytes);
/// Control characters (C0, DEL, C1 in UTF-8) and bytes that are no characters as \xNN: they must not reach a
/// terminal.
std::string Printable(std::string_view text);

}  // namespace kvtier::ctl
