// SPDX-License-Identifier: Apache-2.0
// Ronde is initialised before each case but those with the tag [own], which change what it reads
// first, and call use_ronde() themselves.
#if RONDE_CATCH2_VERSION == 2
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include <catch2/catch.hpp>
#else
#include <catch2/catch_test_case_info.hpp>
#include <catch2/reporters/catch_reporter_event_listener.hpp>
#include <catch2/reporters/catch_reporter_registrars.hpp>
#endif

#include "tests/torch/support.h"

namespace {

#if RONDE_CATCH2_VERSION == 2
class InitializedCases : public Catch::TestEventListenerBase {
 public:
  using TestEventListenerBase::TestEventListenerBase;
#else
class InitializedCases : public Catch::EventListenerBase {
 public:
  using EventListenerBase::EventListenerBase;
#endif

  void testCaseStarting(const Catch::TestCaseInfo& info) override {
    if (!ronde_test::contains(info.tagsAsString(), "[own]")) ronde_test::use_ronde();
  }
};

CATCH_REGISTER_LISTENER(InitializedCases)

}  // namespace
