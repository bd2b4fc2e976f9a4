// SPDX-License-Identifier: Apache-2.0
// ronde::main().
#include <cerrno>  // program_invocation_short_name
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>

#include "api/src/process.h"
#include "core/src/base/text.h"
#include "ronde/ronde.h"

namespace ronde {
namespace {

void print_error(const std::string& text) {
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, text.c_str());
}

/// Leaves the group, and fails it before that if there is a `reason`. Returns why it failed,
/// perhaps for the reason of another rank; null if it did not, or if there is no group.
std::exception_ptr leave_group(const std::optional<std::string>& reason = {}) {
  try {
    if (reason && is_initialized()) abort(*reason);
    return Process::instance().default_world().shutdown();
  } catch (...) {
    return std::current_exception();
  }
}

/// Returns the text of `error`, without the stack at the end of LibTorch's errors.
std::string text_of(const std::exception_ptr& error) {
  const std::string text = exception_text(error);
  return text.substr(0, text.find("\nException raised from "));
}

}  // namespace

int main(const std::function<int()>& program, const InitOptions& options) {
  try {
    init(options);
    const int status = program();
    if (const auto failure = leave_group()) std::rethrow_exception(failure);
    return status;
  } catch (...) {
    const std::string reason = text_of(std::current_exception());
    print_error(reason);
    const std::exception_ptr failure = leave_group(reason);
    const std::string cause = failure ? text_of(failure) : reason;
    const bool is_new = reason.find(cause) == std::string::npos;
    if (is_new && cause.find(reason) == std::string::npos) print_error(cause);
  }
  return EXIT_FAILURE;
}

}  // namespace ronde
