// SPDX-License-Identifier: Apache-2.0
#include "c_api/src/errors.h"

#include <new>

#include "core/src/base/text.h"
#include "ronde/config.h"
#include "ronde/log.h"
#include "ronde/ronde.h"

namespace ronde::c {
namespace {

struct LastError {
  std::string text;
  const char* shown = "";  ///< `text`, or a constant where there was no memory for one
};

thread_local LastError last_error;

int keep_text(int status, const char* function, const char* text) noexcept {
  try {
    last_error.text = function == nullptr ? "" : std::string(function) + ": ";
    last_error.text += text;
    last_error.shown = last_error.text.c_str();
  } catch (...) {
    last_error.shown = "there was no memory for the text of the error";
  }
  return status;
}

int status_of(const UsageError& error) noexcept {
  switch (error.kind()) {
    case UsageError::Kind::DuplicateName:
      return RONDE_E_DUPLICATE_NAME;
    case UsageError::Kind::UnknownProcessSet:
      return RONDE_E_UNKNOWN_SET;
    case UsageError::Kind::NotAMember:
      return RONDE_E_NOT_A_MEMBER;
    case UsageError::Kind::Other:
      break;
  }
  return RONDE_E_USAGE;
}

// Both are read for each line, as they may be needed after ronde_shutdown(), or during that of
// another thread. ronde_init() has checked the variables, unless the program sets them later.

LogLevel threshold() {
  try {
    return parse_log_level(load_config_from_environment().config.log_level);
  } catch (const UsageError&) {
    return parse_log_level(Config().log_level);
  }
}

int own_rank() {
  try {
    return ronde::rank();
  } catch (const NotInitializedError&) {
    return -1;
  }
}

void log(LogLevel level, std::string_view name, const char* what,
         const std::exception_ptr& error) noexcept {
  try {
    Logger(threshold(), own_rank())
        .log(level, std::string(name) + what + ": " + exception_text(error));
  } catch (...) {
    // There is no memory for a line.
  }
}

}  // namespace

int report_exception(const char* function) noexcept {
  try {
    throw;
  } catch (const Failure& failure) {
    return keep_text(failure.status(), function, failure.what());
  } catch (const NotInitializedError&) {
    return keep_text(RONDE_E_NOT_INITIALIZED, function,
                     "Ronde is not initialised: call it after ronde_init() and before "
                     "ronde_shutdown(), for a world before ronde_world_shutdown()");
  } catch (const TimeoutError& error) {
    return keep_text(RONDE_E_DEADLINE, nullptr, error.what());
  } catch (const OutOfMemoryError& error) {
    return keep_text(RONDE_E_OUT_OF_MEMORY, nullptr, error.what());
  } catch (const UsageError& error) {
    return keep_text(status_of(error), nullptr, error.what());
  } catch (const GroupError& error) {
    return keep_text(RONDE_E_GROUP, nullptr, error.what());
  } catch (const std::bad_alloc&) {
    return keep_text(RONDE_E_OUT_OF_MEMORY, function, "out of memory");
  } catch (const std::exception& error) {
    return keep_text(RONDE_E_INTERNAL, function, error.what());
  } catch (...) {
    return keep_text(RONDE_E_INTERNAL, function, "an exception that is no std::exception");
  }
}

void expect_no_callback() {
  if (!CallbackScope::is_open()) return;
  throw Failure(RONDE_E_USAGE,
                "this blocks, which a callback must not do: have another thread call it");
}

void log_unheard(std::string_view name, const std::exception_ptr& error) noexcept {
  log(LogLevel::Warning, name, " failed and nobody asked", error);
}

void log_thrown(std::string_view what, const std::exception_ptr& error) noexcept {
  log(LogLevel::Error, what, "", error);
}

}  // namespace ronde::c

const char* ronde_last_error(void) {
  return ronde::c::last_error.shown;
}
