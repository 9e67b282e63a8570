#include "tiers/base/status.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>

namespace kvtier {
namespace {

TEST(Status, SaysCodeAndMessage) {
  EXPECT_EQ(Status::Ok().ToString(), "OK");
  EXPECT_EQ(Status(Code::kNotFound, "no such block").ToString(), "NOT_FOUND: no such block");
}

TEST(Status, PutsContextInFrontAndKeepsTheCode) {
  const Status status = Status(Code::kDataLoss, "bad crc").WithContext("segment 3");
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_EQ(status.message(), "segment 3: bad crc");
  EXPECT_TRUE(Status::Ok().WithContext("anything").ok());
}

TEST(Status, MapsErrnoToWhatACallerCanDo) {
  EXPECT_EQ(StatusFromErrno(ENOSPC, "x").code(), Code::kResourceExhausted);
  EXPECT_EQ(StatusFromErrno(EACCES, "x").code(), Code::kPermissionDenied);
  EXPECT_EQ(StatusFromErrno(ENOENT, "x").code(), Code::kNotFound);
  EXPECT_EQ(StatusFromErrno(EIO, "x").code(), Code::kUnavailable);
}

Result<std::unique_ptr<int>> Half(int value) {
  if (value % 2 != 0) return Status(Code::kInvalidArgument, "odd");
  return std::make_unique<int>(value / 2);
}

Result<int> Quarter(int value) {
  KVTIER_ASSIGN(const std::unique_ptr<int> half, Half(value));
  KVTIER_ASSIGN(const std::unique_ptr<int> quarter, Half(*half));
  return *quarter;
}

TEST(Result, CarriesAMoveOnlyValueOrTheFirstError) {
  EXPECT_EQ(Quarter(12).value(), 3);
  EXPECT_EQ(Quarter(6).status().code(), Code::kInvalidArgument);
}

TEST(ResultDeathTest, StopsWhenAnErrorIsUsedAsAValue) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH({ std::ignore = Quarter(1).value(); }, "check failed");
}

}  // namespace
}  // namespace kvtier
