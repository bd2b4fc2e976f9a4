// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace ronde {

/// Levels of messages. `Off` is a threshold only, never the level of a message.
enum class LogLevel : std::uint8_t { Trace, Debug, Info, Warning, Error, Off };

/// "trace", "debug", "info", "warning", "error", "off": what RONDE_LOG_LEVEL takes.
std::string_view to_string(LogLevel level) noexcept;

/// Parses a text of to_string(), in any case of letters. Throws UsageError quoting any other text.
LogLevel parse_log_level(std::string_view text);

/// Writes lines such as `14:03:07.123 [ronde rank 3] warning: ...` to standard error. Each Runtime
/// has its own; nothing is shared between loggers but the stream.
///
/// Thread-safety: every member may be called from any thread. None throws: a line that cannot be
/// written is lost.
class Logger {
 public:
  /// Messages below `threshold` are not written. `rank` < 0: not known yet, the prefix is
  /// "[ronde]". `world`: RuntimeOptions::world_name, for "[ronde WORLD rank 3]".
  explicit Logger(LogLevel threshold, int rank = -1, std::string_view world = {});
  ~Logger();

  /// Sets the rank in the prefix of later lines.
  void set_rank(int rank) noexcept;

  /// Returns whether a message of `level` is written: call it before building a costly text.
  bool enabled(LogLevel level) const noexcept;

  /// Writes `text` as one line, if its level is enabled.
  /// @{
  void log(LogLevel level, std::string_view text) const noexcept;
  void trace(std::string_view text) const noexcept { log(LogLevel::Trace, text); }
  void debug(std::string_view text) const noexcept { log(LogLevel::Debug, text); }
  void info(std::string_view text) const noexcept { log(LogLevel::Info, text); }
  void warning(std::string_view text) const noexcept { log(LogLevel::Warning, text); }
  void error(std::string_view text) const noexcept { log(LogLevel::Error, text); }
  /// @}

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
  std::string world_;
};

}  // namespace ronde
