// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "ronde/tuning.h"

namespace ronde {

/// Reads a file of RONDE_TUNED: a JSON object of one layout. Nothing if there is none, or it is of
/// no use here; then `problem` says why, and is empty otherwise.
std::optional<TunedSettings> read_tuned(const std::string& path, std::string& problem);

/// Replaces the file, so that a reader sees the old one or the new one. Returns why it cannot;
/// empty if it has.
std::string write_tuned(const std::string& path, const TunedSettings& settings);

/// The file of RONDE_AUTOTUNE_LOG: a line of CSV for each measurement.
///
/// Thread-safety: none.
class TuneLog {
 public:
  explicit TuneLog(std::string path) : path_(std::move(path)) {}

  /// Returns why it cannot; empty if it has, or has failed before.
  std::string add(const TuneTrial& trial);

 private:
  const std::string path_;
  bool has_begun_ = false, has_failed_ = false;
};

}  // namespace ronde
