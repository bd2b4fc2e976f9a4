// SPDX-License-Identifier: Apache-2.0
#include "c_api/src/log.h"

#include <string>

#include "core/src/base/text.h"
#include "ronde/config.h"
#include "ronde/error.h"
#include "ronde/log.h"
#include "ronde/ronde.h"

namespace ronde::c {
namespace {

// Asked anew for each line, as both may be needed after ronde_shutdown(), and during another
// thread's. The variables were found to be good by ronde_init(), unless the program sets them.

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
    const Logger logger(threshold(), own_rank());
    logger.log(level, std::string(name) + what + ": " + exception_text(error));
  } catch (...) {
    // There is no memory for a line.
  }
}

}  // namespace

void log_unheard(std::string_view name, const std::exception_ptr& error) noexcept {
  log(LogLevel::Warning, name, " failed and nobody asked", error);
}

void log_thrown(std::string_view what, const std::exception_ptr& error) noexcept {
  log(LogLevel::Error, what, "", error);
}

}  // namespace ronde::c
