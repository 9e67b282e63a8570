#include "tests/bench/bench.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace kvtier::bench {
namespace {

std::string Printed(const Report& report, bool json, int* exit_status) {
  testing::internal::CaptureStdout();
  *exit_status = report.Print({.quick = false, .json = json, .kvtierd = ""});
  return testing::internal::GetCapturedStdout();
}

TEST(ReportTest, ChecksThatHoldExitWithZero) {
  Report report("test");
  report.AtMost("latency", 5, 5, "us");
  report.AtLeast("speed", 2, 1.5, "GB/s");
  int exit_status = -1;
  EXPECT_NE(
      Printed(report, true, &exit_status).find(R"({"name": "speed", "value": 2, "bound": 1.5, "ok": true})"),
      std::string::npos);
  EXPECT_EQ(exit_status, 0);
}

TEST(ReportTest, OneCheckOnTheWrongSideExitsWithOne) {
  for (const bool at_most : {true, false}) {
    Report report("test");
    report.AtMost("fine", 1, 2, "us");
    if (at_most) {
      report.AtMost("latency", 5.1, 5, "us");
    } else {
      report.AtLeast("speed", 1.4, 1.5, "GB/s");
    }
    int exit_status = -1;
    EXPECT_NE(Printed(report, true, &exit_status).find(R"("ok": false)"), std::string::npos);
    EXPECT_EQ(exit_status, 1);
    EXPECT_NE(Printed(report, false, &exit_status).find("NOT OK"), std::string::npos);
    EXPECT_EQ(exit_status, 1);
  }
}

TEST(ReportTest, ANumberThatIsNoneFailsItsCheck) {
  Report report("test");
  report.AtMost("latency", std::nan(""), 5, "us");
  int exit_status = -1;
  EXPECT_NE(Printed(report, true, &exit_status).find(R"("value": null, "bound": 5, "ok": false)"),
            std::string::npos);
  EXPECT_EQ(exit_status, 1);
}

TEST(ReportTest, APartThatCannotBeMeasuredFails) {
  Report report("test");
  report.Failed("copies", Status(Code::kUnavailable, "no \"daemon\""));
  int exit_status = -1;
  EXPECT_NE(Printed(report, true, &exit_status).find(R"("copies: UNAVAILABLE: no \"daemon\"")"),
            std::string::npos);
  EXPECT_EQ(exit_status, 1);
}

TEST(SamplesTest, PercentilesAreNearestRanks) {
  Samples samples;
  EXPECT_EQ(samples.Median(), 0);
  for (const double value : {40.0, 10.0, 30.0, 20.0}) samples.Add(value);
  EXPECT_EQ(samples.Median(), 20);
  EXPECT_EQ(samples.Percentile(99), 40);
  EXPECT_EQ(samples.Percentile(1), 10);
}

}  // namespace
}  // namespace kvtier::bench
