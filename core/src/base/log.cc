// SPDX-License-Identifier: Apache-2.0
#include "ronde/log.h"

// Renamed for the reason in core/src/base/json.h.
#ifndef FMT_HEADER_ONLY
#define FMT_HEADER_ONLY
#endif
#define fmt ronde_fmt
#define spdlog ronde_spdlog
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "core/src/base/text.h"
#include "ronde/error.h"

namespace ronde {
namespace {

constexpr std::array<std::string_view, 6> kLevelNames = {"trace",   "debug", "info",
                                                         "warning", "error", "off"};

spdlog::level::level_enum native(LogLevel level) noexcept {
  static_assert(static_cast<int>(LogLevel::Error) == SPDLOG_LEVEL_ERROR);
  return level < LogLevel::Off ? static_cast<spdlog::level::level_enum>(level) : spdlog::level::off;
}

std::string pattern_for(const std::string& world, int rank) {
  std::string who = world.empty() ? "ronde" : "ronde " + world;
  if (rank >= 0) who += " rank " + std::to_string(rank);
  return "%H:%M:%S.%e [" + who + "] %l: %v";
}

}  // namespace

std::string_view to_string(LogLevel level) noexcept {
  return enum_name(kLevelNames, level, "unknown level");
}

LogLevel parse_log_level(std::string_view text) {
  const auto equal = [](char name, unsigned char letter) { return name == std::tolower(letter); };
  for (std::size_t i = 0; i < kLevelNames.size(); ++i) {
    const std::string_view name = kLevelNames[i];
    if (std::ranges::equal(name, text, equal)) {
      return static_cast<LogLevel>(i);
    }
  }
  throw UsageError("\"" + std::string(text) +
                   "\" is not a log level: write trace, debug, info, warning, error or off");
}

// The logger is not in spdlog's registry: that is a process-wide static, which may be destroyed
// before the last Runtime.
class Logger::Impl : public spdlog::logger {
 public:
  using spdlog::logger::logger;
};

Logger::Logger(LogLevel threshold, int rank, std::string_view world)
    : impl_(std::make_unique<Impl>("ronde", std::make_shared<spdlog::sinks::stderr_sink_mt>())),
      world_(world) {
  impl_->set_level(native(threshold));
  impl_->flush_on(spdlog::level::trace);
  set_rank(rank);
}

Logger::~Logger() = default;

void Logger::set_rank(int rank) noexcept {
  try {
    impl_->set_formatter(std::make_unique<spdlog::pattern_formatter>(
        pattern_for(world_, rank), spdlog::pattern_time_type::local, "\n"));
  } catch (...) {
    // Out of memory; the old prefix stays.
  }
}

bool Logger::enabled(LogLevel level) const noexcept {
  return level != LogLevel::Off && impl_->should_log(native(level));
}

void Logger::log(LogLevel level, std::string_view text) const noexcept {
  if (!enabled(level)) {
    return;
  }
  try {
    impl_->log(native(level), spdlog::string_view_t(text.data(), text.size()));
  } catch (...) {
    // spdlog reports what derives from std::exception and passes on the rest, which a sink threw.
  }
}

}  // namespace ronde
