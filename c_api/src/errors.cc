// SPDX-License-Identifier: Apache-2.0
#include "c_api/src/errors.h"

#include <new>

#include "ronde/error.h"

namespace ronde::c {
namespace {

struct LastError {
  std::string text;
  const char* shown = "";  ///< `text`, or a constant where there was no memory for one
};

thread_local LastError last_error;

int remember(int status, const char* function, const char* text) noexcept {
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

}  // namespace

int report_exception(const char* function) noexcept {
  try {
    throw;
  } catch (const Failure& failure) {
    return remember(failure.status(), function, failure.what());
  } catch (const NotInitializedError&) {
    return remember(RONDE_E_NOT_INITIALIZED, function,
                    "Ronde is not initialised: call it after ronde_init() and before "
                    "ronde_shutdown(), for a world before ronde_world_shutdown()");
  } catch (const OutOfMemoryError& error) {
    return remember(RONDE_E_OUT_OF_MEMORY, nullptr, error.what());
  } catch (const UsageError& error) {
    return remember(status_of(error), nullptr, error.what());
  } catch (const GroupError& error) {
    return remember(RONDE_E_GROUP, nullptr, error.what());
  } catch (const std::bad_alloc&) {
    return remember(RONDE_E_OUT_OF_MEMORY, function, "out of memory");
  } catch (const std::exception& error) {
    return remember(RONDE_E_INTERNAL, function, error.what());
  } catch (...) {
    return remember(RONDE_E_INTERNAL, function, "an exception that is no std::exception");
  }
}

void expect_no_callback() {
  if (!CallbackScope::is_open()) return;
  throw Failure(RONDE_E_USAGE,
                "this blocks, which a callback must not do: have another thread call it");
}

}  // namespace ronde::c

const char* ronde_last_error(void) {
  return ronde::c::last_error.shown;
}
