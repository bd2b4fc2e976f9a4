// SPDX-License-Identifier: Apache-2.0
// The main function of every Catch2 program of Ronde: a deadline for each case (watchdog.h), the
// listing that ctest's discovery reads (--ronde-list), all cases of one source file
// (--ronde-run SUITE [Catch2 options]), and failure when nothing was run.
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

#include <pthread.h>
#include <sanitizer/common_interface_defs.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string_view>
#include <vector>

#include "tests/support/harness/watchdog.h"

// Programs with a sanitizer have it.
#pragma weak __sanitizer_set_report_fd

namespace {

constexpr int kNothingRun = 3;
constexpr int kBadSetup = 4;

int cases_started = 0;

std::string from_environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Catch2 reads a bare name as a pattern: the characters that mean something are escaped.
std::string as_test_spec(const std::string& name) {
  std::string spec;
  for (const char c : name) {
    if (std::strchr("\\,[]\"*~", c) != nullptr) spec += '\\';
    spec += c;
  }
  return spec;
}

// The file's name without folder, extension and "_test".
std::string suite_of(const Catch::TestCaseInfo& info) {
  std::string stem = std::filesystem::path(info.lineInfo.file).stem().string();
  constexpr std::string_view kSuffix = "_test";
  if (stem.ends_with(kSuffix)) stem.resize(stem.size() - kSuffix.size());
  return stem;
}

std::string in_single_quotes(const std::string& word) {
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

// ctest gives the program's command line in RONDE_TEST_COMMAND, launcher and variables included.
void print_failure(const Catch::TestCaseInfo& info) {
  std::string command = from_environment("RONDE_TEST_COMMAND");
  if (command.empty()) command = std::filesystem::read_symlink("/proc/self/exe").string();
  std::cout << "FAILED " << suite_of(info) << ": " << info.name << "\n  alone: " << command << ' '
            << in_single_quotes(as_test_spec(info.name)) << std::endl;
}

bool is_one_of_several_ranks() {
  const std::string ranks = from_environment("RONDE_TEST_RANKS");
  return !ranks.empty() && ranks != "1";
}

#if RONDE_CATCH2_VERSION == 2
class CaseListener : public Catch::TestEventListenerBase {
 public:
  using TestEventListenerBase::TestEventListenerBase;
#else
class CaseListener : public Catch::EventListenerBase {
 public:
  using EventListenerBase::EventListenerBase;
#endif

  void testCaseStarting(const Catch::TestCaseInfo& info) override {
    ++cases_started;
    ronde_test::watchdog().arm(info.name, ronde_test::watchdog_deadline(info.isHidden()));
  }

  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    ronde_test::watchdog().disarm();
    if (stats.totals.assertions.failed == 0) return;
#if RONDE_CATCH2_VERSION == 2
    print_failure(stats.testInfo);
#else
    print_failure(*stats.testInfo);
#endif
    // The ranks are no longer at the same place of the same case: the launcher ends the others.
    if (is_one_of_several_ranks()) std::_Exit(EXIT_FAILURE);
  }
};

CATCH_REGISTER_LISTENER(CaseListener)

using Cases = std::vector<const Catch::TestCaseInfo*>;

// Every case that is not hidden.
Cases cases_of(Catch::Session& session) {
  Cases cases;
  for (const auto& test : Catch::getAllTestCasesSorted(session.config())) {
#if RONDE_CATCH2_VERSION == 2
    const Catch::TestCaseInfo& info = test;
#else
    const Catch::TestCaseInfo& info = test.getTestCaseInfo();
#endif
    if (!info.isHidden()) cases.push_back(&info);
  }
  return cases;
}

// One line for each case: suite, name, Catch2's test spec, tags; separated by tabs.
void list_cases(const Cases& cases) {
  for (const Catch::TestCaseInfo* info : cases) {
    std::cout << suite_of(*info) << '\t' << info->name << '\t' << as_test_spec(info->name) << '\t'
              << info->tagsAsString() << '\n';
  }
}

// Whether a case runs in the process of its suite: not with the tag [own], and where it has tags
// such as [n2], only on so many ranks.
bool runs_in_suite(const Catch::TestCaseInfo& info) {
  const std::string tags = info.tagsAsString();
  if (tags.find("[own]") != std::string::npos) return false;
  const std::string ranks = from_environment("RONDE_TEST_RANKS");
  bool is_restricted = false;
  for (const char count : std::string_view("1234")) {
    is_restricted |= tags.find(std::string("[n") + count + "]") != std::string::npos;
  }
  return !is_restricted || ranks.empty() || tags.find("[n" + ranks + "]") != std::string::npos;
}

std::string spec_of_suite(const Cases& cases, const std::string& suite) {
  std::string spec;
  for (const Catch::TestCaseInfo* info : cases) {
    if (suite_of(*info) != suite || !runs_in_suite(*info)) continue;
    spec += (spec.empty() ? "" : ",") + as_test_spec(info->name);
  }
  return spec.empty() ? "no case of suite " + suite : spec;
}

void report_past_captures() {
  const auto descriptor = static_cast<std::intptr_t>(ronde_test::uncaptured_stderr());
  __sanitizer_set_report_fd(reinterpret_cast<void*>(descriptor));
}

}  // namespace

int main(int argc, char** argv) try {
  if (__sanitizer_set_report_fd != nullptr) {
    report_past_captures();
    // A sanitizer reports of a child of fork() into a file, unless it is told again.
    pthread_atfork(nullptr, nullptr, report_past_captures);
  }
  Catch::Session session;
  if (argc == 2 && std::strcmp(argv[1], "--ronde-list") == 0) {
    list_cases(cases_of(session));
    return 0;
  }
  std::string spec;
  if (argc >= 3 && std::strcmp(argv[1], "--ronde-run") == 0) {
    spec = spec_of_suite(cases_of(session), argv[2]);
    argv[2] = spec.data();
    argv[1] = argv[0];
    --argc;
    ++argv;
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
