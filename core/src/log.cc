// SPDX-License-Identifier: Apache-2.0
#include "ronde/log.h"

#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <mutex>
#include <utility>

#include "ronde/error.h"

namespace ronde {
namespace {

constexpr std::array<std::string_view, 6> kLevelNames = {"trace",   "debug", "info",
                                                         "warning", "error", "off"};

spdlog::level::level_enum native(LogLevel level) noexcept {
  switch (level) {
    case LogLevel::Trace:
      return spdlog::level::trace;
    case LogLevel::Debug:
      return spdlog::level::debug;
    case LogLevel::Info:
      return spdlog::level::info;
    case LogLevel::Warning:
      return spdlog::level::warn;
    case LogLevel::Error:
      return spdlog::level::err;
    case LogLevel::Off:
      break;
  }
  return spdlog::level::off;
}

class FunctionSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FunctionSink(LogSink function) : function_(std::move(function)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    function_(std::string_view(line.data(), line.size()));
  }
  void flush_() override {}

  LogSink function_;
};

std::string pattern_for(int rank) {
  const std::string who = rank < 0 ? "ronde" : "ronde rank " + std::to_string(rank);
  return "%H:%M:%S.%e [" + who + "] %l: %v";
}

}  // namespace

std::string_view to_string(LogLevel level) noexcept {
  const auto index = static_cast<std::size_t>(level);
  return index < kLevelNames.size() ? kLevelNames[index] : "unknown level";
}

LogLevel parse_log_level(std::string_view text) {
  const auto equal = [](char name, unsigned char letter) { return name == std::tolower(letter); };
  for (std::size_t i = 0; i < kLevelNames.size(); ++i) {
    const std::string_view name = kLevelNames[i];
    if (std::equal(name.begin(), name.end(), text.begin(), text.end(), equal)) {
      return static_cast<LogLevel>(i);
    }
  }
  throw UsageError("\"" + std::string(text) +
                   "\" is not a log level: write trace, debug, info, warning, error or off");
}

// The logger is never put into spdlog's registry: that one is a process-wide static, destroyed at
// an unknown time before the last Runtime may be.
class Logger::Impl {
 public:
  Impl(LogLevel threshold, int rank, spdlog::sink_ptr sink, std::string end_of_line)
      : logger("ronde", std::move(sink)), end_of_line_(std::move(end_of_line)) {
    logger.set_level(native(threshold));
    logger.flush_on(spdlog::level::trace);
    set_rank(rank);
  }

  void set_rank(int rank) {
    logger.set_formatter(std::make_unique<spdlog::pattern_formatter>(
        pattern_for(rank), spdlog::pattern_time_type::local, end_of_line_));
  }

  spdlog::logger logger;

 private:
  const std::string end_of_line_;
};

Logger::Logger(LogLevel threshold, int rank)
    : impl_(std::make_unique<Impl>(threshold, rank,
                                   std::make_shared<spdlog::sinks::stderr_sink_mt>(), "\n")) {}

Logger::Logger(LogLevel threshold, int rank, LogSink sink)
    : impl_(std::make_unique<Impl>(threshold, rank, std::make_shared<FunctionSink>(std::move(sink)),
                                   "")) {}

Logger::~Logger() = default;
Logger::Logger(Logger&&) noexcept = default;
Logger& Logger::operator=(Logger&&) noexcept = default;

void Logger::set_threshold(LogLevel threshold) noexcept {
  impl_->logger.set_level(native(threshold));
}

void Logger::set_rank(int rank) noexcept {
  try {
    impl_->set_rank(rank);
  } catch (...) {
    // Only memory can be short here; the old prefix stays.
  }
}

bool Logger::enabled(LogLevel level) const noexcept {
  return level != LogLevel::Off && impl_->logger.should_log(native(level));
}

void Logger::log(LogLevel level, std::string_view text) const noexcept {
  if (!enabled(level)) {
    return;
  }
  try {
    impl_->logger.log(native(level), spdlog::string_view_t(text.data(), text.size()));
  } catch (...) {
    // spdlog reports what derives from std::exception and passes on the rest, which a sink threw.
  }
}

}  // namespace ronde
