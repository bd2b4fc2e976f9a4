// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "core/src/base/json.h"
#include "core/src/base/text.h"
#include "ronde/log.h"

namespace ronde {

/// Replaces the file at once: a reader sees the old content or the new one. Makes its folder if
/// there is none. Throws Error that says why it cannot be written.
void write_file(const std::string& path, const std::string& content);

/// Logs the failure of a repeated write once, until its reason changes or a write succeeds.
///
/// Thread-safety: none.
class RepeatedWrite {
 public:
  /// `what` begins each warning. `log` outlives this.
  RepeatedWrite(const Logger& log, std::string what) : log_(log), what_(std::move(what)) {}

  /// Runs `write`; an exception of it is logged. Returns whether there was none.
  template <typename Write>
  bool run(const Write& write) {
    try {
      write();
      said_.clear();
      return true;
    } catch (...) {
      std::string why = exception_text();
      if (why != said_) log_.warning(what_ + ": " + why);
      said_ = std::move(why);
      return false;
    }
  }

 private:
  const Logger& log_;
  const std::string what_;
  std::string said_;
};

/// Formats JSON with an indent; replaces bytes of names that are no UTF-8.
std::string to_text(const nlohmann::ordered_json& json);

}  // namespace ronde
