// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <catch2/catch.hpp>
#include <functional>
#include <source_location>
#include <string>
#include <utility>

namespace ronde::test {

/// A test case whose body is a closure.
class TableCase final : public Catch::ITestInvoker {
 public:
  explicit TableCase(std::function<void()> body) : body_(std::move(body)) {}
  void invoke() const override { body_(); }

 private:
  const std::function<void()> body_;
};

/// Registers one row of a table as a case of its own, as TEST_CASE(name, tags) would. To be called
/// before main, from the initialiser of a constant at namespace scope; the case belongs to the
/// file of the caller. Names must be unique in the program.
inline void add_case(const std::string& name, const std::string& tags, std::function<void()> body,
                     std::source_location where = std::source_location::current()) {
  const Catch::SourceLineInfo line(where.file_name(), where.line());
#if RONDE_CATCH2_VERSION == 2
  // Catch2 owns the invoker.
  const Catch::AutoReg registered(new TableCase(std::move(body)), line, Catch::StringRef(),
                                  Catch::NameAndTags{name, tags});
#else
  const Catch::AutoReg registered(
      Catch::Detail::unique_ptr<Catch::ITestInvoker>(new TableCase(std::move(body))), line,
      Catch::StringRef(), Catch::NameAndTags{name, tags});
#endif
}

}  // namespace ronde::test
