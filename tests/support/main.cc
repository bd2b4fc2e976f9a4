// SPDX-License-Identifier: Apache-2.0
// The main function of every Catch2 program of Ronde: a deadline for each case (watchdog.h), the
// listing that ctest's discovery reads (--ronde-list), and failure when nothing was run.
#define CATCH_CONFIG_RUNNER
#if RONDE_CATCH2_VERSION == 2
#include <catch2/catch.hpp>
#else
#include <catch2/catch_session.hpp>
#include <catch2/catch_test_case_info.hpp>
#include <catch2/internal/catch_test_case_registry_impl.hpp>
#include <catch2/reporters/catch_reporter_event_listener.hpp>
#include <catch2/reporters/catch_reporter_registrars.hpp>
#endif

#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>

#include "watchdog.h"

namespace {

constexpr int kNothingRun = 3;
constexpr int kBadSetup = 4;

int cases_started = 0;

#if RONDE_CATCH2_VERSION == 2
class DeadlineListener : public Catch::TestEventListenerBase {
 public:
  using TestEventListenerBase::TestEventListenerBase;
#else
class DeadlineListener : public Catch::EventListenerBase {
 public:
  using EventListenerBase::EventListenerBase;
#endif

  void testCaseStarting(const Catch::TestCaseInfo& info) override {
    ++cases_started;
    ronde_test::watchdog().arm(info.name, ronde_test::watchdog_deadline());
  }

  void testCaseEnded(const Catch::TestCaseStats& /*stats*/) override {
    ronde_test::watchdog().disarm();
  }
};

CATCH_REGISTER_LISTENER(DeadlineListener)

// Catch2 reads a bare name as a pattern: the characters that mean something are escaped.
std::string as_test_spec(const std::string& name) {
  std::string spec;
  for (const char c : name) {
    if (std::strchr("\\,[]\"*~", c) != nullptr) spec += '\\';
    spec += c;
  }
  return spec;
}

std::string suite_of(const std::string& file) {
  std::string stem = std::filesystem::path(file).stem().string();
  constexpr std::string_view kSuffix = "_test";
  if (stem.ends_with(kSuffix)) stem.resize(stem.size() - kSuffix.size());
  return stem;
}

void print_case(const std::string& file, const std::string& name, const std::string& tags) {
  std::cout << suite_of(file) << '\t' << name << '\t' << as_test_spec(name) << '\t' << tags << '\n';
}

// One line for each case that is not hidden: suite, name, Catch2's test spec, tags; separated by
// tabs.
void list_cases(Catch::Session& session) {
  for (const auto& test : Catch::getAllTestCasesSorted(session.config())) {
#if RONDE_CATCH2_VERSION == 2
    const Catch::TestCaseInfo& info = test;
#else
    const Catch::TestCaseInfo& info = test.getTestCaseInfo();
#endif
    if (!info.isHidden()) print_case(info.lineInfo.file, info.name, info.tagsAsString());
  }
}

}  // namespace

int main(int argc, char** argv) try {
  Catch::Session session;
  if (argc == 2 && std::strcmp(argv[1], "--ronde-list") == 0) {
    list_cases(session);
    return 0;
  }
  const int parse_status = session.applyCommandLine(argc, argv);
  if (parse_status != 0) return parse_status;
  const auto& data = session.configData();
#if RONDE_CATCH2_VERSION == 2
  const bool lists = data.showHelp || data.listTests || data.listTags || data.listReporters ||
                     data.listTestNamesOnly;
#else
  const bool lists = data.showHelp || data.listTests || data.listTags || data.listReporters;
#endif
  const int status = session.run();
  if (!lists && status == 0 && cases_started == 0) {
    std::cerr << "no test case matches the arguments\n";
    return kNothingRun;
  }
  return status;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
  return kBadSetup;
}
