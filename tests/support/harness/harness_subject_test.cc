// SPDX-License-Identifier: Apache-2.0
// A suite that harness_test.cc runs; not a test of ctest's.
#include <catch2/catch.hpp>
#include <cstdlib>

TEST_CASE("the rank's case fails, if it is told to") {
  CHECK(std::getenv("HARNESS_SUBJECT_FAILS") == nullptr);
}

TEST_CASE("passes afterwards") {
  SUCCEED();
}

TEST_CASE("has a process of its own", "[own]") {
  SUCCEED();
}

TEST_CASE("runs on two ranks", "[n2]") {
  SUCCEED();
}
